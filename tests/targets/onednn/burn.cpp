// A matrix product for 75 % of the time and a softmax for 25 %, by oneDNN's generated kernels.
//
//     c++ -O1 burn.cpp -ldnnl && OMP_NUM_THREADS=1 INTEL_JIT_PROFILER64=.../libjitprof_agent.so ./a.out SECONDS
//
// The shares are those of a clock: 15 ms of one, 5 ms of the other.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <unistd.h>

using namespace dnnl;
using clock_type = std::chrono::steady_clock;

int main(int argc, char **argv) {
    engine cpu(engine::kind::cpu, 0);
    stream queue(cpu);
    const memory::dim n = 64;
    memory::desc matrix({n, n}, memory::data_type::f32, memory::format_tag::ab);
    memory a(matrix, cpu), b(matrix, cpu), c(matrix, cpu);
    for (auto *m : {&a, &b})
        for (memory::dim i = 0; i < n * n; i++) static_cast<float *>(m->get_data_handle())[i] = 0.01f * (float)(i % 7);
    matmul product(matmul::primitive_desc(cpu, matrix, matrix, matrix));
    softmax_forward soft(softmax_forward::primitive_desc(
        cpu, prop_kind::forward_inference, algorithm::softmax_accurate, matrix, matrix, 1));
    auto multiply = [&] { product.execute(queue, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}}); };
    auto normalise = [&] { soft.execute(queue, {{DNNL_ARG_SRC, a}, {DNNL_ARG_DST, c}}); };
    auto run = [&](auto work, int ms) {
        auto end = clock_type::now() + std::chrono::milliseconds(ms);
        while (clock_type::now() < end) work();
        queue.wait();
    };
    multiply();
    normalise();
    std::printf("ready pid=%d\n", getpid());
    std::fflush(stdout);
    auto end = clock_type::now() + std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 4);
    while (clock_type::now() < end) {
        run(multiply, 15);
        run(normalise, 5);
    }
}

/* Products and convolutions by oneDNN's jitted kernels, which use rbp as any register.
 *
 *   c++ -O1 burn.cpp -o burn -ldnnl          (oneDNN 2 or 3; Debian: libdnnl-dev)
 *   OMP_NUM_THREADS=1 ONEDNN_JIT_PROFILE=4 JITDUMPDIR=DIR ./burn [SECONDS]             its own jitdump
 *   OMP_NUM_THREADS=1 INTEL_JIT_PROFILER64=.../libjitprof_agent.so ./burn [SECONDS]    Intel's API
 *
 *   main -> outer -> product_hot       3 n products       75 % of the products' time
 *                 -> product_cold        n products       25 %
 *                 -> convolution_hot   3 n convolutions   75 % of the convolutions' time
 *                 -> convolution_cold    n convolutions   25 %
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include "dnnl.hpp"

#define KEEP __attribute__((noinline))

using dnnl::memory;
using Layout = memory::format_tag;

static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
static dnnl::stream work(cpu);

static memory::desc shape(memory::dims dims, Layout layout) {
    return memory::desc(dims, memory::data_type::f32, layout);
}

static memory filled(const memory::desc &shape) {
    memory data(shape, cpu);
    float *values = static_cast<float *>(data.get_data_handle());
    for (size_t i = 0; i < shape.get_size() / sizeof *values; i++) values[i] = float(i % 7) * 0.125f;
    return data;
}

struct Step {
    dnnl::primitive primitive;
    std::unordered_map<int, memory> arguments;
};

using Task = std::vector<Step>;

static void times(const Task &task, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        for (const Step &step : task) step.primitive.execute(work, step.arguments);
        work.wait();
    }
}

static Step product(memory::dim depth) {
    auto a = shape({96, depth}, Layout::ab), b = shape({depth, 96}, Layout::ab), c = shape({96, 96}, Layout::ab);
#if DNNL_VERSION_MAJOR >= 3
    dnnl::matmul::primitive_desc description(cpu, a, b, c);
#else
    dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), cpu);
#endif
    return {dnnl::matmul(description),
            {{DNNL_ARG_SRC, filled(a)}, {DNNL_ARG_WEIGHTS, filled(b)}, {DNNL_ARG_DST, filled(c)}}};
}

static Step convolution() {
    /* The layout is the library's choice, as its users are told to do. */
    auto any = Layout::any;
    auto input = shape({1, 16, 28, 28}, any), weights = shape({16, 16, 3, 3}, any), output = input;
    const auto forward = dnnl::prop_kind::forward_inference;
    const auto direct = dnnl::algorithm::convolution_direct;
    const memory::dims ones = {1, 1};
#if DNNL_VERSION_MAJOR >= 3
    dnnl::convolution_forward::primitive_desc description(cpu, forward, direct, input, weights, output, ones, ones,
                                                          ones);
#else
    dnnl::convolution_forward::desc what(forward, direct, input, weights, output, ones, ones, ones);
    dnnl::convolution_forward::primitive_desc description(what, cpu);
#endif
    return {dnnl::convolution_forward(description),
            {{DNNL_ARG_SRC, filled(description.src_desc())},
             {DNNL_ARG_WEIGHTS, filled(description.weights_desc())},
             {DNNL_ARG_DST, filled(description.dst_desc())}}};
}

/* volatile: a call that is followed by something is no tail call. */
static volatile unsigned done;

KEEP static void product_hot(const Task &task, unsigned n) { times(task, 3 * n); done += 1; }
KEEP static void product_cold(const Task &task, unsigned n) { times(task, n); done += 1; }
KEEP static void convolution_hot(const Task &task, unsigned n) { times(task, 3 * n); done += 1; }
KEEP static void convolution_cold(const Task &task, unsigned n) { times(task, n); done += 1; }

KEEP static void outer(const Task &products, const Task &convolutions, unsigned n) {
    product_hot(products, n);
    product_cold(products, n);
    convolution_hot(convolutions, n);
    convolution_cold(convolutions, n);
    done += 1;
}

int main(int argc, char **argv) {
    using clock = std::chrono::steady_clock;
    /* Of a product without AVX-512, the kernel works on a stack of its own: in an aligned piece of the thread's up to a
     * depth of 252, in memory that it is given beyond. */
    const Task products = {product(128), product(512)}, convolutions = {convolution()};
    outer(products, convolutions, 1);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    const auto end = clock::now() + std::chrono::duration<double>(argc > 1 ? atof(argv[1]) : 4);
    unsigned calls = 0, noise = 1;
    do {
        /* A tenth to nineteen tenths, at random: calls of similar length fall into step with a profiler's clock. */
        noise = noise * 1103515245u + 12345u;
        outer(products, convolutions, 1 + (noise >> 8) % 18);
        calls++;
    } while (clock::now() < end);
    printf("calls %u\n", calls);
    return 0;
}

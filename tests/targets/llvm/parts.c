/* run() of ../jit_api/inlined.c, all of which is inlined into it, run by LLVM's JIT with its debug information.
 *
 *   clang-14 -g -O2 -fomit-frame-pointer -S -emit-llvm parts.c -o parts.ll
 *   lli-14 -jit-kind=orc parts.ll [SECONDS]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) uint64_t run(uint64_t n);

#include "../jit_api/inlined.c"

int main(int argc, char **argv)
{
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 4);
    uint64_t sum = 0;
    uint32_t noise = 1;
    do {
        /* A tenth to nineteen tenths of 200000, at random: calls of similar length fall into step with a profiler's
         * clock. */
        noise = noise * 1103515245u + 12345u;
        sum ^= run(20000 + (noise >> 8) % 360001);
    } while (time(NULL) < end);
    printf("sum %llu\n", (unsigned long long)sum);
    return 0;
}

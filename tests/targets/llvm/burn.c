/* outer -> middle -> leaf_hot (75 %), outer -> side_cold -> leaf_cold (25 %), run by LLVM's JIT.
 *
 *   clang-14 -O1 -fno-omit-frame-pointer -S -emit-llvm burn.c -o burn.ll     (or -fomit-frame-pointer)
 *   lli-14 -jit-kind=mcjit burn.ll [SECONDS]
 *
 * Only MCJIT registers LLVM's perf listener. The dump is $JITDUMPDIR/.debug/jit/llvm-IR-jit-DATE-XXXXXX/jit-PID.dump,
 * below /tmp if that variable is not set, and its LOAD records have vma 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline))
#define LEAF(name, seed)                      \
    KEEP unsigned name(unsigned n)            \
    {                                         \
        unsigned x = seed;                    \
        for (unsigned i = 0; i < n; i++) {    \
            x ^= x << 13;                     \
            x ^= x >> 17;                     \
            x ^= x << 5;                      \
        }                                     \
        return x;                             \
    }
LEAF(leaf_hot, 88172645)
LEAF(leaf_cold, 12345678)

/* volatile: a result that is stored first makes the call no tail call. */
KEEP unsigned middle(unsigned n) { volatile unsigned r = leaf_hot(n * 3); return r + 1; }
KEEP unsigned side_cold(unsigned n) { volatile unsigned r = leaf_cold(n); return r + 1; }
KEEP unsigned outer(unsigned n) { volatile unsigned a = middle(n); return a ^ side_cold(n); }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    double end = now() + (argc > 1 ? atof(argv[1]) : 4);
    unsigned calls = 0, sum = 0, noise = 1;
    do {
        /* A tenth to nineteen tenths of 200000, at random: calls of similar length fall into step with a profiler's
         * clock. */
        noise = noise * 1103515245u + 12345u;
        sum ^= outer(20000 + (noise >> 8) % 360001);
        calls++;
    } while (now() < end);
    printf("calls %u sum %u\n", calls, sum);
    return 0;
}

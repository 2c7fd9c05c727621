/* Native code that keeps no frame pointer, with a deep stack through libc.
 *
 *   cc -O2 -fomit-frame-pointer -o deepnofp deepnofp.c && ./deepnofp [SECONDS]
 *
 *   main -> run -> l1 .. l8 -> sort_a -> qsort (libc) -> compare_a -> work_a   75 %
 *                           -> sort_b -> qsort (libc) -> compare_b -> work_b   25 %
 *
 * Only .eh_frame leads from the leaves to main. With TIMELINE=FILE it writes "time_s iterations cpu_s" twice a second.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* noipa: no copies of a function under another name, no knowledge of what a callee does. */
#define KEEP __attribute__((noinline, noipa))
#define COUNT 16
#define UNIT 200

/* Written after each call, so that no call is a tail call. */
static volatile uint32_t sink;
static uint32_t unit = UNIT;
static FILE *timeline;

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#define WORK(name)                                  \
    KEEP uint32_t name(uint32_t rounds)             \
    {                                               \
        uint32_t x = 1;                             \
        for (uint32_t i = 0; i < rounds; i++) {     \
            x = x * 1103515245u + 12345u + i;       \
            x ^= x >> 7;                            \
        }                                           \
        return x;                                   \
    }
WORK(work_a)
WORK(work_b)

static int order(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}
KEEP int compare_a(const void *a, const void *b) { sink ^= work_a(75 * unit); return order(a, b); }
KEEP int compare_b(const void *a, const void *b) { sink ^= work_b(25 * unit); return order(a, b); }
KEEP void sort_a(int *v) { qsort(v, COUNT, sizeof *v, compare_a); sink++; }
KEEP void sort_b(int *v) { qsort(v, COUNT, sizeof *v, compare_b); sink++; }
KEEP void l8(int *v, int *w) { sort_a(v); sort_b(w); sink++; }
KEEP void l7(int *v, int *w) { l8(v, w); sink++; }
KEEP void l6(int *v, int *w) { l7(v, w); sink++; }
KEEP void l5(int *v, int *w) { l6(v, w); sink++; }
KEEP void l4(int *v, int *w) { l5(v, w); sink++; }
KEEP void l3(int *v, int *w) { l4(v, w); sink++; }
KEEP void l2(int *v, int *w) { l3(v, w); sink++; }
KEEP void l1(int *v, int *w) { l2(v, w); sink++; }

KEEP double run(double length)
{
    static const int base[COUNT] = { 5, 3, 9, 1, 7, 15, 2, 8, 4, 12, 6, 11, 0, 14, 10, 13 };
    int v[COUNT], w[COUNT];
    double iterations = 0;
    uint32_t noise = 1;
    double next = 0, now, end = seconds(CLOCK_MONOTONIC) + length;
    do {
        memcpy(v, base, sizeof v);
        memcpy(w, base, sizeof w);
        /* A tenth to nineteen tenths, at random: iterations of similar length fall into step with a profiler's clock.
         * What is counted is the work, in iterations of UNIT. */
        noise = noise * 1103515245u + 12345u;
        unit = UNIT / 10 + (noise >> 8) % (UNIT * 9 / 5 + 1);
        l1(v, w);
        iterations += (double)unit / UNIT;
        now = seconds(CLOCK_MONOTONIC);
        if (timeline && now >= next) {
            fprintf(timeline, "%.6f %.2f %.6f\n", now, iterations, seconds(CLOCK_PROCESS_CPUTIME_ID));
            fflush(timeline);
            next = now + 0.5;
        }
    } while (now < end);
    return iterations;
}

int main(int argc, char **argv)
{
    double length = argc > 1 ? atof(argv[1]) : 20;
    if (getenv("TIMELINE"))
        timeline = fopen(getenv("TIMELINE"), "w");
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    double iterations = run(length);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    printf("{\"iters\":%.2f,\"secs\":%.3f,\"rate\":%.2f,\"cpu_s\":%.3f,\"rate_cpu\":%.2f}\n", iterations, length,
           iterations / length, cpu, iterations / cpu);
    return 0;
}

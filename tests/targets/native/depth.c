/* A stack of a chosen depth, for what a sample costs.
 *
 *   cc -O2 -fno-omit-frame-pointer -o depth depth.c && ./depth DEPTH [SECONDS]        (or -fomit-frame-pointer)
 *
 *   main -> down -> .. (DEPTH times) -> down -> work
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))

/* Written after each call, so that no call is a tail call. */
static volatile uint32_t sink;

KEEP uint32_t work(uint32_t rounds)
{
    uint32_t x = 1;
    for (uint32_t i = 0; i < rounds; i++) {
        x = x * 1103515245u + 12345u + i;
        x ^= x >> 7;
    }
    return x;
}

KEEP uint32_t down(uint32_t depth)
{
    uint32_t x = depth > 1 ? down(depth - 1) : work(1000000);
    sink = sink ^ x;
    return x + 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc < 2 || atoi(argv[1]) < 1) {
        fprintf(stderr, "usage: %s DEPTH [SECONDS]\n", argv[0]);
        return 2;
    }
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    double end = now() + (argc > 2 ? atof(argv[2]) : 4);
    while (now() < end)
        sink = sink ^ down((uint32_t)atoi(argv[1]));
    return 0;
}

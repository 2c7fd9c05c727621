/* A program that spends its time in the kernel, like dd, and keeps no frame pointer.
 *
 *   cc -O2 -fomit-frame-pointer -o calls calls.c && ./calls [SECONDS]
 *
 *   main -> copy -> block -> read (libc)      from /dev/zero
 *                         -> write (libc)     to /dev/null
 *                         -> checksum         in user mode
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))

static volatile uint32_t sink;
static unsigned char bytes[1 << 16];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

KEEP uint32_t checksum(size_t size)
{
    uint32_t x = 1;
    for (size_t i = 0; i < size; i++)
        x = x * 31 + bytes[i];
    return x;
}

KEEP void block(int from, int to, size_t size)
{
    if (read(from, bytes, size) < 0 || write(to, bytes, size) < 0)
        sink = 0;
    sink = sink ^ checksum(size / 64);
}

KEEP void copy(int from, int to, double seconds)
{
    uint32_t noise = 1;
    double end = now() + seconds;
    while (now() < end) {
        for (int i = 0; i < 100; i++) {
            noise = noise * 1103515245u + 12345u;
            block(from, to, 64 + (noise >> 8) % (sizeof bytes - 64));
        }
        sink = sink + 1;
    }
}

int main(int argc, char **argv)
{
    int from = open("/dev/zero", O_RDONLY), to = open("/dev/null", O_WRONLY);
    if (from < 0 || to < 0)
        return perror("open"), 1;
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    copy(from, to, argc > 1 ? atof(argv[1]) : 4);
    return 0;
}

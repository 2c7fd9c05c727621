/* Two programs that lie at the same addresses and have frames of different sizes: each runs for 3 ms and executes the other.
 *
 *   cc -O1 -no-pie -fomit-frame-pointer -DWORDS=4 "-DOF(name)=name##_a" -o a swap.c
 *   cc -O1 -no-pie -fomit-frame-pointer -DWORDS=20 "-DOF(name)=name##_b" -o b swap.c
 *   ./a ./a ./b first
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

__attribute__((noinline, noipa)) void OF(leaf)(uint64_t count)
{
    volatile uint64_t room[WORDS];
    for (uint64_t i = 0; i < count; i++) {
        room[i % WORDS] = i;
        sink += room[0];
    }
}

__attribute__((noinline, noipa)) void OF(inner)(uint64_t count)
{
    volatile uint64_t room[3 * WORDS];
    room[1] = count;
    OF(leaf)(room[1]);
    sink++;
}

__attribute__((noinline, noipa)) void OF(outer)(uint64_t count)
{
    volatile uint64_t room[5 * WORDS];
    room[1] = count;
    OF(inner)(room[1]);
    sink++;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 1;
    if (argc > 3) {
        printf("ready pid=%d\n", getpid());
        fflush(stdout);
    }
    for (uint64_t end = now() + 3000000; now() < end;)
        OF(outer)(2000);
    execl(argv[2], argv[2], argv[2], argv[1], (char *)0);
    return 1;
}

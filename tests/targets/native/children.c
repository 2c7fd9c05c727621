/* Children that have ended before anybody has looked at them.
 *
 *   cc -O1 -g -o children children.c && ./children
 *
 * In turns burns 4 ms of CPU time in parent_burn, has a child do so in child_burn, and a program that it starts in
 * started_burn. It waits for each. Does not end by itself.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))

static volatile uint64_t sink;

static uint64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static inline __attribute__((always_inline)) void burn(void)
{
    for (uint64_t until = cpu_us() + 4000; cpu_us() < until;)
        for (int turn = 0; turn < 1000; turn++)
            sink += (uint64_t)turn;
}

KEEP static void parent_burn(void)
{
    burn();
    sink++;
}

KEEP static void child_burn(void)
{
    burn();
    sink++;
}

KEEP static void started_burn(void)
{
    burn();
    sink++;
}

static void wait_for(pid_t child)
{
    if (child < 0 || waitpid(child, NULL, 0) != child) {
        perror("fork or waitpid");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        started_burn();
        return 0;
    }
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    for (;;) {
        parent_burn();
        pid_t child = fork();
        if (child == 0) {
            child_burn();
            _exit(0);
        }
        wait_for(child);
        pid_t program = fork();
        if (program == 0) {
            execl("/proc/self/exe", argv[0], "started", (char *)NULL);
            _exit(127);
        }
        wait_for(program);
    }
}

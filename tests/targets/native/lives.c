/* How threads and processes begin and end.
 *
 *   cc -O1 -g -fno-omit-frame-pointer -o lives lives.c -lpthread -ldl && ./lives MODE
 *
 *   threads   a thread after the other burns in thread_work for 30 ms of CPU time and ends
 *   leader    the first thread burns in leader_work for 300 ms and ends; another goes on in outlives_leader
 *   setuid    burns in as_root for 300 ms, becomes user 65534, and goes on in as_nobody
 *   library   burns in the function work of ./libwork.so; on SIGUSR1 it starts itself once more, and goes on
 *
 * None ends by itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))

static volatile uint64_t sink;
static volatile sig_atomic_t asked;

static uint64_t cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void burn(uint64_t until_ms)
{
    while (cpu_ms() < until_ms)
        for (uint64_t i = 0; i < 20000; i++)
            sink += i * i;
}

KEEP static void *thread_work(void *unused)
{
    burn(30);
    sink++;
    return unused;
}

KEEP static void leader_work(void)
{
    burn(300);
    sink++;
}

KEEP static void *outlives_leader(void *unused)
{
    burn(UINT64_MAX);
    sink++;
    return unused;
}

KEEP static void as_root(void)
{
    burn(300);
    sink++;
}

KEEP static void as_nobody(void)
{
    burn(UINT64_MAX);
    sink++;
}

static void use_library(char **argv)
{
    void *library = dlopen("./libwork.so", RTLD_NOW);
    void (*work)(void) = library ? (void (*)(void))dlsym(library, "work") : 0;
    for (; work; work())
        if (asked) {
            asked = 0;
            if (fork() == 0)
                execv("/proc/self/exe", argv);
        }
    fprintf(stderr, "%s\n", dlerror());
}

static void ask(int signal)
{
    asked = signal;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    signal(SIGUSR1, ask);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    pthread_t thread;
    if (!strcmp(mode, "threads")) {
        while (pthread_create(&thread, 0, thread_work, 0) == 0 && pthread_join(thread, 0) == 0)
            ;
    } else if (!strcmp(mode, "leader")) {
        if (pthread_create(&thread, 0, outlives_leader, 0) == 0) {
            leader_work();
            pthread_exit(0);
        }
    } else if (!strcmp(mode, "setuid")) {
        as_root();
        if (setuid(65534) == 0)
            as_nobody();
    } else if (!strcmp(mode, "library")) {
        use_library(argv);
    }
    perror(mode);
    return 2;
}

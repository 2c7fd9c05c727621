// Memory that does not answer: a page fault in it waits for this very process, which never looks.
//
//   unanswered
//
// Has two threads that wait. The outer half of the stack of one is such memory. Says `ready pid=N` when both wait.
#define _GNU_SOURCE
#include <alloca.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };

static volatile int waits;

static void check(int is_right, const char *what) {
    if (is_right) return;
    perror(what);
    exit(1);
}

static void *waits_within(void *unused) {
    // The frames below this are in the other half.
    volatile char *room = alloca(SIZE * 5 / 8);
    room[0] = 1;
    waits = 1;
    for (;;) pause();
    return unused;
}

int main(void) {
    char *stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(stack != MAP_FAILED, "mmap");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, SIZE);
    pthread_t thread;
    check(pthread_create(&thread, &attributes, waits_within, NULL) == 0, "pthread_create");
    while (!waits) usleep(1000);
    usleep(20000);
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    check(faults >= 0, "userfaultfd");
    struct uffdio_api api = {.api = UFFD_API};
    check(ioctl(faults, UFFDIO_API, &api) == 0, "UFFDIO_API");
    struct uffdio_register range = {
        .range = {.start = (unsigned long)stack + SIZE / 2, .len = SIZE / 2 - (64 << 10)}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    check(ioctl(faults, UFFDIO_REGISTER, &range) == 0, "UFFDIO_REGISTER");
    check(madvise((void *)range.range.start, range.range.len, MADV_DONTNEED) == 0, "madvise");
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    for (;;) pause();
}

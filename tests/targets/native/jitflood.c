/* Many generated functions in a large jitdump, all up front or while it runs.
 *
 *   cc -O2 -o jitflood jitflood.c && ./jitflood FUNCTIONS SIZE SECONDS [RATE]
 *
 * Emits FUNCTIONS records of SIZE bytes of code into ./jit-PID.dump, up front or RATE a second, and calls functions at
 * random. Each keeps a frame pointer. Every fourth is named GB_func..., the others GA_func..., and all take the same
 * time: 25 % and 75 %.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct header {
    uint32_t magic, version, size, machine, pad, pid;
    uint64_t time, flags;
} __attribute__((packed));

struct load {
    uint32_t id, size;
    uint64_t time;
    uint32_t pid, tid;
    uint64_t vma, address, code_size, index;
} __attribute__((packed));

static const uint16_t LOOPS = 20000;
static uint8_t *code;
static size_t code_size, stride;
static FILE *dump;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void emit(long i)
{
    uint8_t *at = code + (size_t)i * stride;
    const uint8_t body[] = {
        0x55,                                            /* push rbp */
        0x48, 0x89, 0xe5,                                /* mov rbp, rsp */
        0xb9, LOOPS & 255, LOOPS >> 8, 0, 0,             /* mov ecx, LOOPS */
        0xff, 0xc9,                                      /* dec ecx */
        0x75, 0xfc,                                      /* jnz to dec */
        0x5d,                                            /* pop rbp */
        0xc3,                                            /* ret */
    };
    memset(at, 0x90, code_size);
    memcpy(at, body, sizeof body);

    char name[128];
    int length = snprintf(name, sizeof name, "%s_func%06ld /srv/app/lib/module%03ld.js:%ld", i % 4 == 3 ? "GB" : "GA", i,
                          i % 997, i % 4000) + 1;
    struct load load = {
        .size = (uint32_t)(sizeof load + (size_t)length + code_size),
        .time = now(),
        .pid = (uint32_t)getpid(),
        .tid = (uint32_t)syscall(SYS_gettid),
        .vma = (uintptr_t)at,
        .address = (uintptr_t)at,
        .code_size = code_size,
        .index = (uint64_t)i,
    };
    fwrite(&load, sizeof load, 1, dump);
    fwrite(name, (size_t)length, 1, dump);
    fwrite(at, code_size, 1, dump);
}

static int open_dump(void)
{
    char path[64];
    snprintf(path, sizeof path, "jit-%d.dump", getpid());
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0644);
    struct header header = {
        .magic = 0x4A695444, .version = 1, .size = sizeof header, .machine = 62, .pid = (uint32_t)getpid(), .time = now(),
    };
    if (fd < 0 || write(fd, &header, sizeof header) != (ssize_t)sizeof header)
        return 0;
    /* The executable mapping is how profilers find the file. */
    if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
        return 0;
    dump = fdopen(fd, "r+");
    return dump && fseek(dump, 0, SEEK_END) == 0 && setvbuf(dump, 0, _IOFBF, 1 << 20) == 0;
}

int main(int argc, char **argv)
{
    if (argc < 4 || atol(argv[1]) < 1 || atol(argv[2]) < 16) {
        fprintf(stderr, "usage: %s FUNCTIONS SIZE(>=16) SECONDS [RATE]\n", argv[0]);
        return 2;
    }
    long functions = atol(argv[1]), rate = argc > 4 ? atol(argv[4]) : 0, done = 0, calls = 0;
    double length = atof(argv[3]);
    code_size = (size_t)atol(argv[2]);
    stride = (code_size + 63) & ~(size_t)63;
    int protection = PROT_READ | PROT_WRITE | PROT_EXEC;
    code = mmap(0, (size_t)functions * stride, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED || !open_dump()) {
        perror("jitflood");
        return 1;
    }

    uint64_t start = now();
    while (!rate && done < functions)
        emit(done++);
    fflush(dump);
    fprintf(stderr, "emitted %ld in %.3f s\n", done, (double)(now() - start) / 1e9);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);

    start = now();
    uint64_t end = start + (uint64_t)(length * 1e9), t;
    uint32_t x = 1;
    while ((t = now()) < end) {
        if (rate) {
            long wanted = (long)((double)(t - start) / 1e9 * (double)rate) + 1;
            for (wanted = wanted > functions ? functions : wanted; done < wanted;)
                emit(done++);
            fflush(dump);
        }
        for (int k = 0; k < 50; k++, calls++) {
            x = x * 1103515245 + 12345;
            ((void (*)(void))(code + (size_t)((x >> 4) % (uint32_t)done) * stride))();
        }
    }
    fflush(dump);
    printf("calls %ld records %ld\n", calls, done);
    return 0;
}

/* What a profiler that stays on has to bear.
 *
 *   cc -O1 -g -o storm storm.c && ./storm MODE SECONDS [AMOUNT]
 *
 *   forks   starts AMOUNT children a second, one after the other; every second one executes /bin/true
 *   maps    maps and unmaps its own file as code, as fast as it can, AMOUNT mappings at a time
 *   dumps   begins AMOUNT jitdumps a second, each with one function
 *   flood   writes AMOUNT MB a second into one jitdump: whole records, noise between them, and cuts it now and then
 *   loads   announces AMOUNT functions of 16 MiB a second, whose code is a hole in the jitdump
 *   burn    nothing else
 *
 * Each burns CPU in storm_burn meanwhile, and says at its end how much it did.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

static volatile uint64_t sink;
static uint64_t done;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((noinline)) static void storm_burn(uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds; i++)
        sink += i * i;
}

static int begin_dump(uint64_t number)
{
    char path[64];
    snprintf(path, sizeof path, "jit-%d-%llu.dump", getpid(), (unsigned long long)number);
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0644);
    struct header header = {
        .magic = 0x4A695444, .version = 1, .size = sizeof header, .machine = 62, .pid = (uint32_t)getpid(), .time = now(),
    };
    if (fd < 0 || write(fd, &header, sizeof header) != (ssize_t)sizeof header) {
        perror(path);
        exit(1);
    }
    /* The executable mapping is how profilers find the file. */
    if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    unlink(path);
    return fd;
}

static void announce(int fd, uint64_t number, size_t bytes)
{
    static uint8_t code[1 << 16];
    char name[32];
    size_t length = (size_t)snprintf(name, sizeof name, "storm_%llu", (unsigned long long)number) + 1;
    struct load load = {
        .size = (uint32_t)(sizeof load + length + bytes),
        .time = now(),
        .pid = (uint32_t)getpid(),
        .tid = (uint32_t)syscall(SYS_gettid),
        .vma = 0x700000000000u + number * 0x10000,
        .address = 0x700000000000u + number * 0x10000,
        .code_size = bytes,
        .index = number,
    };
    if (write(fd, &load, sizeof load) < 0 || write(fd, name, length) < 0 || write(fd, code, bytes) < 0)
        perror("write");
}

static void step_forks(void)
{
    pid_t child = fork();
    if (child == 0) {
        storm_burn(2000);
        if (done % 2)
            execl("/bin/true", "true", (char *)0);
        _exit(0);
    }
    if (child > 0)
        waitpid(child, 0, 0);
}

static void step_maps(uint64_t amount)
{
    static int self = -1;
    if (self < 0)
        self = open("/proc/self/exe", O_RDONLY);
    void *mapped[4096];
    uint64_t count = amount < 4096 ? amount : 4096;
    for (uint64_t i = 0; i < count; i++)
        mapped[i] = mmap(0, 4096 * (1 + i % 3), PROT_READ | PROT_EXEC, MAP_PRIVATE, self, 0);
    storm_burn(20000);
    for (uint64_t i = 0; i < count; i++)
        munmap(mapped[i], 4096 * (1 + i % 3));
}

static void step_dumps(void)
{
    int fd = begin_dump(done);
    announce(fd, done, 64);
    close(fd);
}

static void step_flood(void)
{
    static int fd = -1;
    static uint8_t noise[4096];
    if (fd < 0)
        fd = begin_dump(0);
    /* 64 KiB together. */
    for (int i = 0; i < 15; i++)
        announce(fd, done * 15 + (uint64_t)i, 4000);
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)(sink * 31 + i * i);
    if (write(fd, noise, sizeof noise) < 0)
        perror("write");
    if (done % 4096 == 4095) {
        off_t end = lseek(fd, 0, SEEK_END);
        if (ftruncate(fd, end / 2) != 0 || lseek(fd, 0, SEEK_END) < 0)
            perror("ftruncate");
    }
}

static void step_loads(void)
{
    enum { BYTES = 16 << 20 };
    static int fd = -1;
    if (fd < 0)
        fd = begin_dump(0);
    char name[32];
    size_t length = (size_t)snprintf(name, sizeof name, "large_%llu", (unsigned long long)done) + 1;
    struct load load = {
        .size = (uint32_t)(sizeof load + length + BYTES),
        .time = now(),
        .pid = (uint32_t)getpid(),
        .tid = (uint32_t)syscall(SYS_gettid),
        .vma = 0x700000000000u + done * BYTES,
        .address = 0x700000000000u + done * BYTES,
        .code_size = BYTES,
        .index = done,
    };
    off_t end = lseek(fd, 0, SEEK_END);
    if (write(fd, &load, sizeof load) < 0 || write(fd, name, length) < 0 || ftruncate(fd, end + load.size) != 0)
        perror("loads");
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s forks|maps|dumps|flood|loads|burn SECONDS [AMOUNT]\n", argv[0]);
        return 2;
    }
    const char *mode = argv[1];
    uint64_t amount = argc > 3 ? strtoull(argv[3], 0, 10) : 1;
    double rate = !strcmp(mode, "flood") ? (double)amount * 16 : !strcmp(mode, "maps") ? 1e9 : (double)amount;
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    uint64_t start = now(), end = start + (uint64_t)(atof(argv[2]) * 1e9);
    for (uint64_t t; (t = now()) < end;) {
        uint64_t due = (uint64_t)((double)(t - start) / 1e9 * rate);
        if (!strcmp(mode, "burn") || done >= due) {
            storm_burn(20000);
            continue;
        }
        if (!strcmp(mode, "forks"))
            step_forks();
        else if (!strcmp(mode, "maps"))
            step_maps(amount);
        else if (!strcmp(mode, "dumps"))
            step_dumps();
        else if (!strcmp(mode, "flood"))
            step_flood();
        else if (!strcmp(mode, "loads"))
            step_loads();
        done++;
    }
    printf("done %llu\n", (unsigned long long)done);
    return 0;
}

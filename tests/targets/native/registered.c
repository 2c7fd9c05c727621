/* Generated functions without frame pointers, whose unwinding data is registered with libgcc, as JITs do for exceptions.
 * Nothing else says that they are there.
 *
 *   cc -O1 -shared-libgcc registered.c -o registered && ./registered [SECONDS]
 *
 *   main -> run -> call_hot  -> a generated function   75 %
 *               -> call_cold -> another one            25 %
 *
 * Both count in the register of the frame pointer: only .eh_frame leads from them to their callers. x86-64.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))
#define PAGE 4096
/* Where the second function is, and the unwinding data. */
#define SECOND 64
#define FRAMES PAGE
#define UNIT 2000

extern void __register_frame(void *);

static const uint8_t CODE[] = {
    0x55,                               /*  0 push %rbp            */
    0x53,                               /*  1 push %rbx            */
    0x48, 0x83, 0xec, 0x28,             /*  2 sub $40,%rsp         */
    0x89, 0xf9,                         /*  6 mov %edi,%ecx        */
    0x31, 0xed,                         /*  8 xor %ebp,%ebp        */
    0x69, 0xed, 0x6d, 0x4e, 0xc6, 0x41, /* 10 imul $K,%ebp,%ebp    */
    0x01, 0xcd,                         /* 16 add %ecx,%ebp        */
    0xff, 0xc9,                         /* 18 dec %ecx             */
    0x75, 0xf4,                         /* 20 jnz 10               */
    0x89, 0xe8,                         /* 22 mov %ebp,%eax        */
    0x48, 0x83, 0xc4, 0x28,             /* 24 add $40,%rsp         */
    0x5b,                               /* 28 pop %rbx             */
    0x5d,                               /* 29 pop %rbp             */
    0xc3,                               /* 30 ret                  */
};

/* Length, 0, version 1, "zR", alignments 1 and -8, return address, addresses are relative and of 4 bytes; the CFA is
 * %rsp + 8, and below it the return address. */
static const uint8_t COMMON[24] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1};

/* No augmentation; what the instructions do to the CFA, and where %rbp and %rbx are. */
static const uint8_t CHANGES[] = {
    0, 0x41, 0x0e, 16, 0x86, 2, 0x41, 0x0e, 24, 0x83, 3, 0x44, 0x0e, 64,
    0x56, 0x0e, 24, 0x41, 0x0e, 16, 0x41, 0x0e, 8, 0xc6,
};

typedef uint32_t (*generated)(uint32_t);

static volatile uint32_t sink;

KEEP void call_hot(generated function, uint32_t unit) { sink ^= function(75 * unit); }
KEEP void call_cold(generated function, uint32_t unit) { sink ^= function(25 * unit); }

static void put(uint8_t *to, int64_t value)
{
    int32_t small = (int32_t)value;
    memcpy(to, &small, 4);
}

/* The entry of the function at `code`; returns where the next one is. */
static uint8_t *describe(uint8_t *entry, uint8_t *common, uint8_t *code)
{
    put(entry, 12 + sizeof CHANGES);
    put(entry + 4, entry + 4 - common);
    put(entry + 8, code - (entry + 8));
    put(entry + 12, sizeof CODE);
    memcpy(entry + 16, CHANGES, sizeof CHANGES);
    return entry + 16 + sizeof CHANGES;
}

KEEP void run(uint8_t *memory, double length)
{
    generated hot = (generated)memory, cold = (generated)(memory + SECOND);
    time_t end = time(NULL) + (time_t)length;
    uint32_t noise = 1;
    do {
        /* A tenth to nineteen tenths, at random, so that it does not fall into step with a profiler's clock. */
        noise = noise * 1103515245u + 12345u;
        uint32_t unit = UNIT / 10 + (noise >> 8) % (UNIT * 9 / 5 + 1);
        call_hot(hot, unit);
        call_cold(cold, unit);
    } while (time(NULL) < end);
}

int main(int argc, char **argv)
{
    double length = argc > 1 ? atof(argv[1]) : 20;
    uint8_t *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    memcpy(memory, CODE, sizeof CODE);
    memcpy(memory + SECOND, CODE, sizeof CODE);
    uint8_t *common = memory + FRAMES;
    memcpy(common, COMMON, sizeof COMMON);
    /* Behind them is an entry of no length, which ends them. */
    describe(describe(common + sizeof COMMON, common, memory), common, memory + SECOND);
    __register_frame(common);
    if (mprotect(memory, PAGE, PROT_READ | PROT_EXEC) != 0)
        return 1;
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    run(memory, length);
    return 0;
}

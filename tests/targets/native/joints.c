/* What makes a profiler give yesterday's answer: libraries that change places, fresh memory, signals, children.
 *
 *   cc -O1 -g -o joints joints.c -ldl && ./joints MODE [ARGUMENT...]
 *
 *   plugins A.so B.so     loads A, burns 15 ms in it, unloads it, loads B, burns 5 ms in it, unloads it, and again
 *   rewritten A.so B.so   the same with one file that holds A and B in turns
 *   fresh                 calls nofp_leaf through code in a page that is mapped anew every 2 ms
 *   fresh_jit             the same with generated_leaf, which a jitdump announces (x86-64)
 *   signal                a timer interrupts the first instruction of spin, whose handler burns
 *   signal_bare           the same, with a restorer that nothing describes (x86-64)
 *   children N            makes N children that burn, and sleeps
 *
 * None ends by itself. It says how often it was at the address where it was first, and where not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
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

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void ready(void)
{
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
}

static void same_place(const void *at)
{
    static const void *first;
    if (!first)
        first = at;
    static int said;
    if (at != first && !said++)
        fprintf(stderr, "not at one place: %p and %p\n", first, at);
}

static inline __attribute__((always_inline)) void use(const char *path, uint64_t us)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    void (*work)(void) = (void (*)(void))dlsym(library, "work");
    same_place((void *)work);
    for (uint64_t until = cpu_us() + us; cpu_us() < until;) {
        work();
        sink++;
    }
    dlclose(library);
}

KEEP static void use_first(const char *path)
{
    use(path, 15000);
}

KEEP static void use_second(const char *path)
{
    use(path, 5000);
}

static void plugins(char **paths)
{
    ready();
    for (;;) {
        use_first(paths[0]);
        use_second(paths[1]);
    }
}

static size_t load(const char *path, char **bytes)
{
    struct stat stat;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &stat))
        fail(path);
    *bytes = malloc((size_t)stat.st_size);
    if (read(file, *bytes, (size_t)stat.st_size) != stat.st_size)
        fail(path);
    close(file);
    return (size_t)stat.st_size;
}

static void write_over(const char *path, const char *bytes, size_t size)
{
    int file = open(path, O_WRONLY | O_CREAT, 0755);
    if (file < 0 || write(file, bytes, size) != (ssize_t)size)
        fail(path);
    close(file);
}

static void rewritten(char **paths)
{
    char *a, *b;
    size_t size_a = load(paths[0], &a), size_b = load(paths[1], &b);
    ready();
    for (;;) {
        write_over("./both.so", a, size_a);
        use_first("./both.so");
        write_over("./both.so", b, size_b);
        use_second("./both.so");
    }
}

KEEP __attribute__((optimize("omit-frame-pointer"))) void nofp_leaf(void)
{
    for (int i = 0; i < 20000; i++)
        sink += (uint64_t)i * (uint64_t)i;
}

/* Keeps a frame pointer, so that a walk by frame pointer from below lands behind it. */
KEEP __attribute__((optimize("no-omit-frame-pointer"))) void enter(void (*code)(void (*)(void)), void (*leaf)(void))
{
    code(leaf);
    sink++;
}

/* Generates a function that keeps no frame pointer, and announces it. */
static void (*generate(void))(void)
{
    /* mov $20000,%ecx; again: add %ecx,%eax; dec %ecx; jnz again; ret */
    static const unsigned char text[] = {0xb9, 0x20, 0x4e, 0, 0, 0x01, 0xc8, 0xff, 0xc9, 0x75, 0xfa, 0xc3};
    static const char name[] = "generated_leaf";
    void *code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        fail("mmap");
    memcpy(code, text, sizeof text);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC))
        fail("mprotect");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t time = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    struct {
        uint32_t magic, version, size, machine, zero, pid;
        uint64_t time, flags;
    } header = {0x4a695444, 1, sizeof header, 62, 0, (uint32_t)getpid(), time, 0};
    struct {
        uint32_t id, size;
        uint64_t time;
        uint32_t pid, tid;
        uint64_t vma, address, length, index;
    } load = {0, sizeof load + sizeof name + sizeof text, time, (uint32_t)getpid(), (uint32_t)getpid(),
              (uint64_t)code, (uint64_t)code, sizeof text, 1};
    char path[64];
    snprintf(path, sizeof path, "./jit-%d.dump", getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, &header, sizeof header) < 0 || write(file, &load, sizeof load) < 0 ||
        write(file, name, sizeof name) < 0 || write(file, text, sizeof text) < 0)
        fail(path);
    if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
        fail("mmap");
    return (void (*)(void))code;
}

static void fresh(void (*leaf)(void))
{
    /* sub $8,%rsp; call *%rdi; add $8,%rsp; ret */
    static const unsigned char text[] = {0x48, 0x83, 0xec, 8, 0xff, 0xd7, 0x48, 0x83, 0xc4, 8, 0xc3};
    ready();
    for (;;) {
        void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            fail("mmap");
        memcpy(page, text, sizeof text);
        if (mprotect(page, 4096, PROT_READ | PROT_EXEC))
            fail("mprotect");
        for (uint64_t until = cpu_us() + 2000; cpu_us() < until;)
            enter((void (*)(void (*)(void)))page, leaf);
        /* What lies around stays, so that the next one lies elsewhere. */
        munmap(page, 4096);
        mmap(page, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
}

/* `spin` begins with the instruction that it stays at; the byte before belongs to `before`. */
__asm__(".text\n"
        ".globl before\n.type before,@function\nbefore:\n.cfi_startproc\nnop\nret\n.cfi_endproc\n.size before,.-before\n"
        ".globl spin\n.type spin,@function\nspin:\n.cfi_startproc\njmp spin\n.cfi_endproc\n.size spin,.-spin\n");
void spin(void);

KEEP void handler_burn(void)
{
    for (uint64_t until = cpu_us() + 5000; cpu_us() < until;)
        sink++;
}

static void handler(int signal)
{
    (void)signal;
    handler_burn();
    sink++;
}

#ifdef __x86_64__
/* As musl has it: no call frame information, and the byte before it is another function's. */
__asm__(".text\n.balign 64\n"
        ".globl undescribed\n.type undescribed,@function\nundescribed:\n.fill 127,1,0xc3\nnop\n.size undescribed,.-undescribed\n"
        ".globl bare_restorer\n.type bare_restorer,@function\nbare_restorer:\nmov $15,%rax\nsyscall\n"
        ".size bare_restorer,.-bare_restorer\n.fill 64,1,0xc3\n");
void bare_restorer(void);

static void handle_by_bare(int signal)
{
    struct {
        void (*handler)(int);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {handler, 0x04000000 /* SA_RESTORER */, bare_restorer, 0};
    if (syscall(SYS_rt_sigaction, signal, &action, 0, sizeof action.mask))
        fail("rt_sigaction");
}
#else
static void handle_by_bare(int signal)
{
    (void)signal;
    fail("signal_bare");
}
#endif

static void signals(int is_bare)
{
    struct itimerval timer = {{0, 10000}, {0, 10000}};
    if (is_bare)
        handle_by_bare(SIGALRM);
    else
        signal(SIGALRM, handler);
    if (setitimer(ITIMER_REAL, &timer, 0))
        fail("setitimer");
    ready();
    spin();
}

KEEP void child_burn(void)
{
    for (;;)
        sink++;
}

static void children(int count)
{
    for (int i = 0; i < count; i++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            child_burn();
        }
    }
    ready();
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "plugins") && argc == 4)
        plugins(argv + 2);
    else if (!strcmp(mode, "rewritten") && argc == 4)
        rewritten(argv + 2);
    else if (!strcmp(mode, "fresh"))
        fresh(nofp_leaf);
    else if (!strcmp(mode, "fresh_jit"))
        fresh(generate());
    else if (!strcmp(mode, "signal"))
        signals(0);
    else if (!strcmp(mode, "signal_bare"))
        signals(1);
    else if (!strcmp(mode, "children") && argc == 3)
        children(atoi(argv[2]));
    fprintf(stderr, "see the first lines of joints.c\n");
    return 2;
}

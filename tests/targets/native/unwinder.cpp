/* C++ that keeps no frame pointer, with exceptions and signal handlers.
 *
 *   g++ -O2 -fomit-frame-pointer -o unwinder unwinder.cpp && ./unwinder [SECONDS]
 *
 *   main -> run -> straight -> inner -> burn_plain                                            plain calls
 *                  catcher -> middle_throw -> deep_throw -> burn_throw, then an exception      libgcc's unwinder
 *                  raiser -> raise (libc) -> on_signal -> signal_work -> burn_signal           on the same stack
 *                  raiser -> raise (libc) -> on_alternate -> alternate_work -> burn_alternate  on a sigaltstack
 *
 * A timer interrupts all of it 200 times a second: anything -> on_timer -> timer_work -> burn_timer, also on the
 * alternate stack.
 */
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <sys/time.h>
#include <unistd.h>

/* noipa: no copies of a function under another name, no knowledge of what a callee does. */
#define KEEP extern "C" __attribute__((noinline, noipa))

/* Written after each call, so that no call is a tail call. */
static volatile uint32_t sink;

#define BURN(name)                                  \
    KEEP uint32_t name(uint32_t rounds)             \
    {                                               \
        uint32_t x = 1;                             \
        for (uint32_t i = 0; i < rounds; i++) {     \
            x = x * 1103515245u + 12345u + i;       \
            x ^= x >> 7;                            \
        }                                           \
        return x;                                   \
    }
BURN(burn_plain)
BURN(burn_throw)
BURN(burn_signal)
BURN(burn_alternate)
BURN(burn_timer)

KEEP void inner(uint32_t n) { sink = sink ^ burn_plain(n); sink = sink + 1; }
KEEP void straight(uint32_t n) { inner(n); sink = sink + 1; }

KEEP void deep_throw(uint32_t n)
{
    sink = sink ^ burn_throw(n);
    if (n)
        throw std::runtime_error("expected");
    sink = sink + 1;
}
KEEP void middle_throw(uint32_t n)
{
    /* A destructor, so that the unwinder stops here on its way. */
    struct Guard { ~Guard() { sink = sink + 1; } } guard;
    deep_throw(n);
    sink = sink + 1;
}
KEEP void catcher(uint32_t n)
{
    try {
        middle_throw(n);
    } catch (const std::runtime_error &) {
        sink = sink + 1;
    }
}

KEEP void signal_work(uint32_t n) { sink = sink ^ burn_signal(n); sink = sink + 1; }
KEEP void alternate_work(uint32_t n) { sink = sink ^ burn_alternate(n); sink = sink + 1; }
KEEP void timer_work(uint32_t n) { sink = sink ^ burn_timer(n); sink = sink + 1; }
static volatile uint32_t rounds;
KEEP void on_signal(int) { signal_work(rounds); sink = sink + 1; }
KEEP void on_alternate(int) { alternate_work(rounds); sink = sink + 1; }
KEEP void on_timer(int) { timer_work(200000); sink = sink + 1; }
KEEP void raiser(int number, uint32_t n) { rounds = n; raise(number); sink = sink + 1; }

static void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = flags | SA_RESTART;
    if (sigaction(number, &action, nullptr) != 0)
        perror("sigaction"), exit(1);
}

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

KEEP void run(double seconds)
{
    uint32_t noise = 1;
    double end = now() + seconds;
    while (now() < end) {
        noise = noise * 1103515245u + 12345u;
        uint32_t n = 10000 + (noise >> 8) % 180001;
        straight(n);
        catcher(n);
        /* Throwing takes microseconds: often enough to be seen. */
        for (int i = 0; i < 30; i++)
            catcher(1 + i % 3);
        raiser(SIGUSR1, n);
        raiser(SIGUSR2, n);
    }
}

int main(int argc, char **argv)
{
    static char alternate[1 << 16];
    stack_t stack = {};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    if (sigaltstack(&stack, nullptr) != 0)
        return perror("sigaltstack"), 1;
    handle(SIGUSR1, on_signal, 0);
    handle(SIGUSR2, on_alternate, SA_ONSTACK);
    handle(SIGPROF, on_timer, SA_ONSTACK);
    struct itimerval every = { { 0, 5000 }, { 0, 5000 } };
    setitimer(ITIMER_PROF, &every, nullptr);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    run(argc > 1 ? atof(argv[1]) : 4);
    return 0;
}

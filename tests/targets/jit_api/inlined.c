/* Code that is compiled with optimisation and handed to a process as an object in memory, see module.c.
 *
 *     cc -g -O2 -fomit-frame-pointer -c inlined.c
 *
 *     run(n) = outer_part (hot_part: 3 n rounds) + cold_part (n rounds), all inlined: 75 % and 25 % */

#include <stdint.h>

#define INLINED static inline __attribute__((always_inline))

INLINED uint64_t hot_part(uint64_t n) {
    uint64_t x = 88172645463325252u;
    for (uint64_t i = 0; i < 3 * n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
    }
    return x;
}

INLINED uint64_t outer_part(uint64_t n) {
    return hot_part(n + 1) | 1;
}

INLINED uint64_t cold_part(uint64_t n) {
    uint64_t x = 12345678912345u;
    for (uint64_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
    }
    return x;
}

/* rbx is kept on the stack, so that the stack pointer leads to the caller by the object's own unwinding data only. */
uint64_t run(uint64_t n) {
    uint64_t hot = outer_part(n);
    __asm__ volatile("" : "+r"(hot) : : "rbx", "rbp", "memory");
    return hot ^ cold_part(n);
}

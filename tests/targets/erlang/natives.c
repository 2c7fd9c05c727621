/* What natives.erl calls: both spin for so many rounds, `dirty` on a dirty scheduler.
 *
 *   ordinary_function -> spin_ordinary      dirty_function -> spin_dirty
 */
#include <erl_nif.h>
#include <stdint.h>

#define KEEP __attribute__((noinline, noipa))
#define STEPS 64

/* Two of one kind, so that a name says who has called. */
#define SPIN(name)                                     \
    KEEP uint32_t name(unsigned long rounds)           \
    {                                                  \
        uint32_t x = 88172645;                         \
        for (unsigned long i = 0; i < rounds; i++) {   \
            for (int step = 0; step < STEPS; step++) { \
                x ^= x << 13;                          \
                x ^= x >> 17;                          \
                x ^= x << 5;                           \
            }                                          \
        }                                              \
        return x;                                      \
    }

SPIN(spin_ordinary)
SPIN(spin_dirty)

KEEP ERL_NIF_TERM ordinary_function(ErlNifEnv *env, int count, const ERL_NIF_TERM terms[])
{
    unsigned long rounds;
    if (count != 1 || !enif_get_ulong(env, terms[0], &rounds))
        return enif_make_badarg(env);
    return enif_make_uint(env, spin_ordinary(rounds));
}

KEEP ERL_NIF_TERM dirty_function(ErlNifEnv *env, int count, const ERL_NIF_TERM terms[])
{
    unsigned long rounds;
    if (count != 1 || !enif_get_ulong(env, terms[0], &rounds))
        return enif_make_badarg(env);
    return enif_make_uint(env, spin_dirty(rounds));
}

static ErlNifFunc functions[] = {
    {"ordinary", 1, ordinary_function, 0},
    {"dirty", 1, dirty_function, ERL_NIF_DIRTY_JOB_CPU_BOUND},
};

ERL_NIF_INIT(natives, functions, NULL, NULL, NULL, NULL)

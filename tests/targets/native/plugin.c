/* A library of a fixed length whose function has a name of the builder's choice.
 *
 *   cc -O1 -g -shared -fPIC -DWORK=work_a -o a.so plugin.c
 */
#include <stdint.h>

static volatile uint64_t sink;

__attribute__((noinline, noipa)) void WORK(void)
{
    for (uint64_t i = 0; i < 20000; i++)
        sink += i * i;
}

void work(void)
{
    WORK();
    sink++;
}

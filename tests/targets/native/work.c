/* A library whose builds differ in the name of the function that burns: what lives.c loads, and a test replaces.
 *
 *   cc -O1 -g -fno-omit-frame-pointer -shared -fPIC -DWORK=old_work -o libwork.so work.c
 */
#include <stdint.h>

static volatile uint64_t sink;

__attribute__((noinline, noipa)) static void WORK(void)
{
    for (uint64_t i = 0; i < 2000000; i++)
        sink += i * i;
}

void work(void)
{
    WORK();
    sink++;
}

/* A library of a fixed length whose function has a name and a frame of the builder's choice.
 *
 *   cc -O1 -g -shared -fPIC -DWORK=work_a -DWORDS=40 -o a.so plugin.c
 *
 * With more than 16 words all instructions lie where they lie with any other number of them. The words are addresses that
 * calls return to, as old stacks leave behind: whoever takes the frame for a smaller one finds a caller that is none.
 */
#include <stdint.h>

static volatile uint64_t sink;

__attribute__((noinline, noipa)) void WORK(void)
{
    volatile uint64_t room[WORDS];
    for (unsigned i = 0; i < WORDS; i++)
        room[i] = (uint64_t)__builtin_return_address(0);
    for (uint64_t i = 0; i < 20000; i++)
        sink += i * i;
    sink += room[0];
}

void work(void)
{
    WORK();
    sink++;
}

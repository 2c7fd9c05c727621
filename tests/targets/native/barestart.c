/* A program whose start file says nothing about its frame, as those of lld's users do (Deno, Bun), and which is stripped:
 * what calls the C library's start has no name and no rule.
 *
 *   cc -O1 -nostartfiles -s barestart.c -o barestart && ./barestart [SECONDS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\nxor %ebp,%ebp\nmov %rdx,%r9\npop %rsi\nmov %rsp,%rdx\nand $-16,%rsp\npush %rax\npush %rsp\n"
        "xor %r8d,%r8d\nxor %ecx,%ecx\nlea main(%rip),%rdi\ncall *__libc_start_main@GOTPCREL(%rip)\nhlt\n");
#else
__asm__(".globl _start\n_start:\nmov x29,#0\nmov x30,#0\nmov x5,x0\nldr x1,[sp]\nadd x2,sp,#8\nmov x6,sp\n"
        "adrp x0,main\nadd x0,x0,:lo12:main\nmov x3,#0\nmov x4,#0\nbl __libc_start_main\nbl abort\n");
#endif

int main(int argc, char **argv)
{
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 4);
    volatile unsigned x = 1;
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    while (time(NULL) < end)
        for (int i = 0; i < 1000000; i++)
            x = x * 1103515245 + 12345;
    return 0;
}

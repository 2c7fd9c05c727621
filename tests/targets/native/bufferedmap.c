/* Generates a function and lists it in /tmp/perf-PID.map as Mono does: through a stdio buffer that is never flushed.
 *
 *   cc -O1 bufferedmap.c -o bufferedmap && ./bufferedmap [SECONDS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
/* mov %edi,%eax; dec %eax; jnz .-2; ret */
static const unsigned char CODE[] = {0x89, 0xf8, 0xff, 0xc8, 0x75, 0xfc, 0xc3};
#else
/* subs w0, w0, #1; b.ne .-4; ret */
static const unsigned CODE[] = {0x71000400, 0x54ffffe1, 0xd65f03c0};
#endif

int main(int argc, char **argv)
{
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 4);
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    memcpy(memory, CODE, sizeof CODE);
    __builtin___clear_cache(memory, memory + sizeof CODE);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (map == NULL)
        return 1;
    /* More than the buffer holds, so that a part of the map is in the file and a line is torn. */
    for (int i = 0; i < 100; i++)
        fprintf(map, "%llx %x padding_that_is_listed_and_never_runs_%d\n", (unsigned long long)memory + 1024 + 8 * i, 8, i);
    fprintf(map, "%llx %x in_the_buffer\n", (unsigned long long)memory, (unsigned)sizeof CODE);
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    while (time(NULL) < end)
        ((void (*)(int))memory)(1000000);
    return 0;
}

/* A JIT engine that loads compiled objects, and announces each by ITT's module events, as LLVM's does.
 *
 *     cc -O1 -g -I ITTAPI/include module.c ITTAPI/src/ittnotify/ittnotify_static.c -ldl -lpthread
 *     cc -g -O2 -fomit-frame-pointer -c inlined.c
 *     INTEL_LIBITTNOTIFY64=.../libjitprof_agent.so ./a.out inlined.o [SECONDS]
 *
 * Only objects whose code needs no relocation: it is copied as it is. Its function `run` is called all the time. */

#define _GNU_SOURCE
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ittnotify.h"

enum { ROOM = 1 << 20, MOST_SECTIONS = 64 };

static char *whole(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *bytes = malloc(ROOM);
    if (!file || !bytes) return NULL;
    *size = fread(bytes, 1, ROOM, file);
    fclose(file);
    return bytes;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    size_t size = 0;
    char *object = argc > 1 ? whole(argv[1], &size) : NULL;
    if (!object || size < sizeof(Elf64_Ehdr)) {
        fprintf(stderr, "module: give the path of an object file\n");
        return 1;
    }
    char *space = mmap(NULL, ROOM, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return 1;
    Elf64_Ehdr *header = (Elf64_Ehdr *)object;
    Elf64_Shdr *table = (Elf64_Shdr *)(object + header->e_shoff);
    char *names = object + table[header->e_shstrndx].sh_offset;
    __itt_section_info sections[MOST_SECTIONS];
    size_t count = 0, used = 0;
    uint64_t (*run)(uint64_t) = NULL;
    for (int i = 0; i < header->e_shnum && count < MOST_SECTIONS; i++) {
        if (!(table[i].sh_flags & SHF_ALLOC) || !table[i].sh_size) continue;
        char *at = space + used;
        memcpy(at, object + table[i].sh_offset, table[i].sh_size);
        used += (table[i].sh_size + 63) & ~(size_t)63;
        __itt_section_info section = {0};
        section.name = names + table[i].sh_name;
        section.type = table[i].sh_flags & SHF_EXECINSTR ? itt_section_type_text : itt_section_type_data;
        section.start_addr = at;
        section.size = table[i].sh_size;
        section.file_offset = table[i].sh_offset;
        sections[count++] = section;
        if (!strcmp(section.name, ".text")) run = (uint64_t(*)(uint64_t))(uintptr_t)at;
    }
    __itt_module_object module = {0};
    module.version = 1;
    module.module_type = __itt_module_type_elf;
    module.module_name = "compiled";
    module.module_buffer = object;
    module.module_size = size;
    module.section_array = sections;
    module.section_number = count;
    __itt_module_load_with_sections(&module);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    double end = now() + (argc > 2 ? atof(argv[2]) : 4);
    unsigned noise = 1;
    uint64_t sum = 0;
    do {
        /* A tenth to nineteen tenths, at random: calls of similar length fall into step with a profiler's clock. */
        noise = noise * 1103515245u + 12345u;
        sum ^= run(20000 + (noise >> 8) % 360001);
    } while (now() < end);
    __itt_module_unload_with_sections(&module);
    printf("sum %llu\n", (unsigned long long)sum);
    return 0;
}

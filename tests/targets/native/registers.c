/* Two functions that take turns at one address, each registered with a debugger while it is there: turn_cold for 50 to 100 ms of CPU
 * time, turn_hot for three times as long. Both entries and their object files are the same bytes each time.
 *
 *   cc -O1 -fno-omit-frame-pointer -o registers registers.c && ./registers [SECONDS]
 */
#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noipa))

struct entry {
    struct entry *next, *previous;
    const void *image;
    uint64_t size;
};

struct descriptor {
    uint32_t version, action;
    struct entry *relevant, *first;
};

struct descriptor __jit_debug_descriptor = {1, 0, NULL, NULL};

KEEP void __jit_debug_register_code(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Counts its argument down. */
#if defined(__x86_64__)
#define MACHINE EM_X86_64
static const unsigned char hot_code[] = {0x48, 0x83, 0xef, 0x01, 0x75, 0xfa, 0xc3};
static const unsigned char cold_code[] = {0x90, 0x48, 0x83, 0xef, 0x01, 0x75, 0xfa, 0x90, 0xc3};
#else
#define MACHINE EM_AARCH64
static const uint32_t hot_code[] = {0xf1000400, 0x54ffffe1, 0xd65f03c0};
static const uint32_t cold_code[] = {0xd503201f, 0xf1000400, 0x54ffffe1, 0xd503201f, 0xd65f03c0};
#endif

struct image {
    Elf64_Ehdr head;
    Elf64_Sym symbols[2];
    char names[16];
    Elf64_Shdr sections[3];
};

struct function {
    const char *name;
    const void *code;
    size_t size;
    struct entry entry;
    struct image image;
};

static void describe(struct function *function, const void *address)
{
    struct image *image = &function->image;
    memcpy(image->head.e_ident, ELFMAG, SELFMAG);
    image->head.e_ident[EI_CLASS] = ELFCLASS64;
    image->head.e_ident[EI_DATA] = ELFDATA2LSB;
    image->head.e_ident[EI_VERSION] = EV_CURRENT;
    image->head.e_type = ET_EXEC;
    image->head.e_machine = MACHINE;
    image->head.e_version = EV_CURRENT;
    image->head.e_ehsize = sizeof(Elf64_Ehdr);
    image->head.e_shoff = offsetof(struct image, sections);
    image->head.e_shentsize = sizeof(Elf64_Shdr);
    image->head.e_shnum = 3;
    image->head.e_shstrndx = 2;
    strcpy(image->names + 1, function->name);
    image->symbols[1].st_name = 1;
    image->symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    image->symbols[1].st_shndx = 1;
    image->symbols[1].st_value = (uintptr_t)address;
    image->symbols[1].st_size = function->size;
    image->sections[1].sh_type = SHT_SYMTAB;
    image->sections[1].sh_offset = offsetof(struct image, symbols);
    image->sections[1].sh_size = sizeof(image->symbols);
    image->sections[1].sh_link = 2;
    image->sections[1].sh_info = 1;
    image->sections[1].sh_addralign = 8;
    image->sections[1].sh_entsize = sizeof(Elf64_Sym);
    image->sections[2].sh_type = SHT_STRTAB;
    image->sections[2].sh_offset = offsetof(struct image, names);
    image->sections[2].sh_size = sizeof(image->names);
    image->sections[2].sh_addralign = 1;
    function->entry.image = image;
    function->entry.size = sizeof(*image);
}

static void tell(uint32_t action, struct entry *entry)
{
    __jit_debug_descriptor.first = action == 1 ? entry : NULL;
    __jit_debug_descriptor.action = action;
    __jit_debug_descriptor.relevant = entry;
    __jit_debug_register_code();
}

static uint64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void turn(struct function *function, void *place, uint64_t us)
{
    memcpy(place, function->code, function->size);
    __builtin___clear_cache((char *)place, (char *)place + function->size);
    tell(1, &function->entry);
    for (uint64_t end = cpu_us() + us; cpu_us() < end;)
        ((void (*)(uint64_t))place)(1000000);
    tell(2, &function->entry);
}

int main(int argc, char **argv)
{
    static struct function hot = {.name = "turn_hot", .code = hot_code, .size = sizeof(hot_code)};
    static struct function cold = {.name = "turn_cold", .code = cold_code, .size = sizeof(cold_code)};
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 4);
    void *place = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t noise = 1;
    if (place == MAP_FAILED)
        return 1;
    describe(&hot, place);
    describe(&cold, place);
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    while (time(NULL) < end) {
        noise = noise * 1103515245u + 12345u;
        uint64_t us = 50000 + (noise >> 8) % 50001;
        turn(&hot, place, 3 * us);
        turn(&cold, place, us);
    }
    return 0;
}

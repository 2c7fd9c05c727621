/* Libraries with more symbols than anybody reads gladly, each on a file system of its own, by turns.
 *
 *   cc -O1 -g -fno-omit-frame-pointer -o manysymbols manysymbols.c -ldl
 *   cc -O1 -shared -fPIC -DLIBRARY -o small.so manysymbols.c
 *   ./manysymbols DIRECTORY small.so FILE_SYSTEMS SYMBOLS UID
 *
 * As root it mounts the file systems and writes small.so to each, with so many symbols; as the user UID it runs them.
 */
#ifdef LIBRARY

static volatile unsigned long sink;

__attribute__((noinline, noipa)) void turn(void)
{
    for (unsigned long i = 0; i < 3000000; i++)
        sink += i * i;
}

/* Where the further functions are said to be; it takes no room in the file. */
__asm__(".section .bulk,\"ax\",@nobits\n.globl bulk\n.type bulk,@function\nbulk: .space 0x8000000\n.size bulk,1\n.previous");

#else

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(int is_good, const char *what)
{
    if (!is_good) {
        perror(what);
        exit(1);
    }
}

/* The same library with a symbol table of so many functions behind it, all of one name. */
static void write_library(const char *from, const char *to, unsigned long symbols)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    check(in && out, to);
    fseek(in, 0, SEEK_END);
    size_t length = (size_t)ftell(in), end = (length + 15) & ~15ul;
    char *bytes = calloc(1, end);
    rewind(in);
    check(fread(bytes, 1, length, in) == length, from);
    Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;
    Elf64_Shdr *sections = (Elf64_Shdr *)(bytes + header->e_shoff), *table = sections;
    while (table->sh_type != SHT_SYMTAB)
        table++;
    Elf64_Sym bulk = {0};
    const char *names = bytes + sections[table->sh_link].sh_offset;
    for (Elf64_Sym *s = (Elf64_Sym *)(bytes + table->sh_offset); !bulk.st_value; s++)
        if (!strcmp(names + s->st_name, "bulk"))
            bulk = *s;
    table->sh_offset = end;
    table->sh_size = symbols * sizeof bulk;
    table->sh_info = 0;
    check(fwrite(bytes, 1, end, out) == end, to);
    for (unsigned long i = 0; i < symbols; i++, bulk.st_value += 16)
        check(fwrite(&bulk, sizeof bulk, 1, out) == 1, to);
    check(!fclose(out), to);
    fclose(in);
    free(bytes);
}

__attribute__((noinline, noipa)) void by_turns(void (**turns)(void), unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        turns[i]();
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    unsigned count = (unsigned)atoi(argv[3]), uid = (unsigned)atoi(argv[5]);
    void (*turns[64])(void);
    char path[4096];
    for (unsigned i = 0; i < count && i < 64; i++) {
        snprintf(path, sizeof path, "%s/%u", argv[1], i);
        check(!mkdir(path, 0755) && !mount("tmpfs", path, "tmpfs", 0, NULL), path);
        snprintf(path, sizeof path, "%s/%u/many.so", argv[1], i);
        write_library(argv[2], path, strtoul(argv[4], NULL, 10));
        check(!chown(path, uid, uid), path);
        void *library = dlopen(path, RTLD_NOW);
        check(library && (turns[i] = (void (*)(void))dlsym(library, "turn")), path);
        /* It goes with its last mapping. */
        snprintf(path, sizeof path, "%s/%u", argv[1], i);
        check(!umount2(path, MNT_DETACH), path);
    }
    check(!setgid(uid) && !setuid(uid), "setuid");
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    for (;;)
        by_turns(turns, count);
}

#endif

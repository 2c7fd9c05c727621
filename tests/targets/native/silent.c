// A file system that stops to answer, and programs that run from it.
//
//   silent DIRECTORY WHAT COUNT [OWNER]
//   silent burn DESCRIPTOR
//
// Mounts a FUSE file system at DIRECTORY, in a mount namespace of its own, that holds this very program COUNT times, as
// the files of the user OWNER; starts each of them; and when all run, leaves requests for ever: WHAT is `open` (opening a
// file), `lookup` (asking for a name) or a section's name, such as `.symtab` (reading a page of it). Closing a file is not
// answered either. Says
// `ready pid=N` then, N being its own pid, and ends with a SIGTERM, which ends the file system.
//
// What it starts, and what can be started alone, burns CPU time in silent_burn and writes `ready pid=N` to a descriptor.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// So many functions that their unwind rules and symbols have pages of their own.
__asm__(".text\n.altmacro\n"
        ".macro one n\n.type many_\\n,@function\nmany_\\n: .cfi_startproc\nnop\n.cfi_def_cfa_offset 16\nret\n.cfi_endproc\n"
        ".size many_\\n,.-many_\\n\n.endm\n"
        ".set i,0\n.rept 4000\none %i\n.set i,i+1\n.endr\n.noaltmacro\n");

static volatile unsigned long sink;

__attribute__((noinline)) void silent_burn(unsigned long rounds) {
    for (unsigned long round = 0; round < rounds; round++) sink += round * round;
}

static int burn(int ready) {
    for (unsigned long turn = 0;; turn++) {
        silent_burn(10000000);
        if (turn == 2) dprintf(ready, "ready pid=%d\n", getpid());
    }
}

static char *image;
static size_t length;
static size_t hole_start, hole_end;
static int is_silent, no_open, no_lookup;
static unsigned owner;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void load(void) {
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (file < 0 || fstat(file, &stat) != 0) fail("/proc/self/exe");
    length = stat.st_size;
    image = malloc(length);
    if (!image || read(file, image, length) != (ssize_t)length) fail("reading");
    close(file);
}

static void find_hole(const char *name) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
    const char *names = image + sections[header->e_shstrndx].sh_offset;
    for (int index = 0; index < header->e_shnum; index++) {
        if (strcmp(names + sections[index].sh_name, name) == 0) {
            hole_start = sections[index].sh_offset;
            hole_end = hole_start + sections[index].sh_size;
        }
    }
    if (hole_end == 0) {
        fprintf(stderr, "no section %s\n", name);
        exit(1);
    }
}

static void reply(int fuse, unsigned long unique, int error, const void *data, size_t size) {
    struct fuse_out_header header = {.len = sizeof header + size, .error = -error, .unique = unique};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)data, size}};
    if (writev(fuse, parts, 2) < 0 && errno != ENOENT) fail("answering");
}

// What others have read of the hole is forgotten.
static void forget(int fuse, unsigned long node) {
    struct fuse_notify_inval_inode_out what = {.ino = node, .off = (hole_start + 4095) & ~4095UL};
    what.len = (hole_end & ~4095UL) - what.off;
    struct fuse_out_header header = {.len = sizeof header + sizeof what, .error = FUSE_NOTIFY_INVAL_INODE};
    struct iovec parts[2] = {{&header, sizeof header}, {&what, sizeof what}};
    if (writev(fuse, parts, 2) < 0 && errno != ENOENT) fail("forgetting");
}

static struct fuse_attr attributes(unsigned long node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .uid = owner, .blksize = 4096, .mtime = 1000000000, .ctime = 1000000000};
    attr.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0755;
    attr.size = node == FUSE_ROOT_ID ? 0 : length;
    return attr;
}

static void answer(int fuse, const char *request, int count) {
    const struct fuse_in_header *in = (const void *)request;
    const void *arguments = in + 1;
    switch (in->opcode) {
    case FUSE_INIT: {
        const struct fuse_init_in *init = arguments;
        // Without read-ahead only those pages are there that somebody has asked for.
        struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = init->minor, .max_write = 65536};
        out.minor = init->minor < FUSE_KERNEL_MINOR_VERSION ? init->minor : FUSE_KERNEL_MINOR_VERSION;
        return reply(fuse, in->unique, 0, &out, sizeof out);
    }
    case FUSE_LOOKUP: {
        if (is_silent && no_lookup) return;
        int number = atoi(arguments);
        if (number < 1 || number > count) return reply(fuse, in->unique, ENOENT, NULL, 0);
        struct fuse_entry_out out = {.nodeid = number + 1, .entry_valid = 3600, .attr_valid = 3600};
        out.attr = attributes(number + 1);
        return reply(fuse, in->unique, 0, &out, sizeof out);
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 3600, .attr = attributes(in->nodeid)};
        return reply(fuse, in->unique, 0, &out, sizeof out);
    }
    case FUSE_OPEN: {
        if (is_silent && no_open) return;
        struct fuse_open_out out = {.open_flags = FOPEN_KEEP_CACHE};
        return reply(fuse, in->unique, 0, &out, sizeof out);
    }
    case FUSE_READ: {
        const struct fuse_read_in *read = arguments;
        size_t start = read->offset < length ? read->offset : length;
        size_t end = start + read->size < length ? start + read->size : length;
        if (is_silent && start < hole_end && end > hole_start) return;
        return reply(fuse, in->unique, 0, image + start, end - start);
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    case FUSE_FLUSH:
        if (is_silent) return;
        return reply(fuse, in->unique, 0, NULL, 0);
    case FUSE_RELEASE:
    case FUSE_ACCESS:
        return reply(fuse, in->unique, 0, NULL, 0);
    default:
        return reply(fuse, in->unique, ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "burn") == 0) return burn(atoi(argv[2]));
    if (argc < 4) return 2;
    int count = atoi(argv[3]);
    owner = argc > 4 ? atoi(argv[4]) : 0;
    load();
    no_open = strcmp(argv[2], "open") == 0;
    no_lookup = strcmp(argv[2], "lookup") == 0;
    if (!no_open && !no_lookup) find_hole(argv[2]);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) fail("a mount namespace");
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fuse < 0) fail("/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
    if (mount("silent", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) != 0) fail("mounting");
    int ready[2];
    if (pipe(ready) != 0) fail("pipe");
    for (int number = 1; number <= count; number++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            char path[4096], pipe_end[16];
            snprintf(path, sizeof path, "%s/%d", argv[1], number);
            snprintf(pipe_end, sizeof pipe_end, "%d", ready[1]);
            execl(path, path, "burn", pipe_end, NULL);
            fail(path);
        }
    }
    static char request[1 << 20];
    for (int running = 0;;) {
        struct pollfd both[2] = {{fuse, POLLIN, 0}, {ready[0], POLLIN, 0}};
        if (poll(both, 2, -1) < 0) fail("poll");
        if (both[1].revents & POLLIN) {
            char byte;
            if (read(ready[0], &byte, 1) == 1 && byte == '\n' && ++running == count) {
                is_silent = 1;
                for (int number = 1; number <= count && hole_end != 0; number++) forget(fuse, number + 1);
                printf("ready pid=%d\n", getpid());
                fflush(stdout);
            }
        }
        if (both[0].revents & (POLLIN | POLLERR)) {
            if (read(fuse, request, sizeof request) > 0) answer(fuse, request, count);
            else if (errno != EINTR && errno != EAGAIN && errno != ENOENT) fail("reading requests");
        }
    }
}

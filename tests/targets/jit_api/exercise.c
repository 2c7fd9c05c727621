/* A small JIT engine that announces its code through Intel's JIT profiling API, by the API's own static part.
 *
 *     cc -O1 -g -fno-omit-frame-pointer -I ITTAPI/include exercise.c ITTAPI/src/ittnotify/jitprofiling.c -ldl -lpthread
 *     INTEL_JIT_PROFILER64=.../libjitprof_agent.so ./a.out SECONDS
 *
 * Each generated function is loops of the same cost per round, so the shares are known:
 *
 *     run(n) -> two_loops(n)    75 % in its part inlined from `hot_part` (in `outer_part`), 25 % in that from `cold_part`
 *            -> leaf_hot(n)     V2, 3 n rounds    75 % of the two leaves
 *            -> leaf_cold(n)    V3,   n rounds    25 %
 *            -> updated(n)      announced as empty code, written later, then METHOD_UPDATE
 *
 * and at one address, in turn: `first`, unloaded, `second`. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "jitprofiling.h"

typedef uint64_t (*code_fn)(uint64_t);

static unsigned char *space;
static size_t used;

static unsigned char *room(size_t size) {
    unsigned char *at = space + used;
    used += (size + 63) & ~(size_t)63;
    return at;
}

/* 24 bytes: `rounds` times the argument, one multiplication of three cycles each.
 *   push rbp; mov rbp,rsp; imul rcx,rdi,rounds; 1: imul rax,rax; dec rcx; jnz 1b; pop rbp; ret */
static size_t one_loop(unsigned char *at, unsigned char rounds) {
    const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x6b, 0xcf, rounds, 0x48, 0x0f, 0xaf, 0xc0,
                                  0x48, 0xff, 0xc9, 0x75, 0xf7, 0x5d, 0xc3};
    memcpy(at, code, sizeof code);
    return sizeof code;
}

enum { HOT_START = 4, HOT_END = 17, COLD_END = 29, TWO_LOOPS = 31 };

/* push rbp; mov rbp,rsp; [imul rcx,rdi,3; 1: imul rax,rax; dec rcx; jnz 1b] [mov rcx,rdi; 2: the same] pop rbp; ret */
static size_t two_loops(unsigned char *at) {
    const unsigned char code[TWO_LOOPS] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x6b, 0xcf, 0x03, 0x48, 0x0f, 0xaf,
                                           0xc0, 0x48, 0xff, 0xc9, 0x75, 0xf7, 0x48, 0x89, 0xf9, 0x48, 0x0f,
                                           0xaf, 0xc0, 0x48, 0xff, 0xc9, 0x75, 0xf7, 0x5d, 0xc3};
    memcpy(at, code, sizeof code);
    return sizeof code;
}

static size_t call(unsigned char *at, const void *callee) {
    const unsigned char code[] = {0x48, 0x89, 0xdf, 0x48, 0xb8};
    memcpy(at, code, sizeof code);
    memcpy(at + 5, &callee, 8);
    memcpy(at + 13, "\xff\xd0", 2);
    return 15;
}

/* push rbp; mov rbp,rsp; push rbx; push rbx; mov rbx,rdi; { mov rdi,rbx; mov rax,callee; call rax } ..; pop rbx; leave */
static size_t caller(unsigned char *at, int count, void *const *callees) {
    const unsigned char head[] = {0x55, 0x48, 0x89, 0xe5, 0x53, 0x53, 0x48, 0x89, 0xfb};
    memcpy(at, head, sizeof head);
    size_t size = sizeof head;
    for (int i = 0; i < count; i++) size += call(at + size, callees[i]);
    const unsigned char tail[] = {0x5b, 0x5b, 0x5d, 0xc3};
    memcpy(at + size, tail, sizeof tail);
    return size + sizeof tail;
}

static void load(unsigned id, const char *name, void *at, size_t size) {
    iJIT_Method_Load method = {0};
    method.method_id = id;
    method.method_name = (char *)name;
    method.method_load_address = at;
    method.method_size = (unsigned)size;
    method.source_file_name = (char *)"engine.src";
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_LOAD_FINISHED, &method);
}

static void inlined(unsigned id, unsigned parent, const char *name, unsigned char *at, size_t size, unsigned line) {
    LineNumberInfo lines[] = {{(unsigned)size, line}};
    iJIT_Method_Inline_Load method = {0};
    method.method_id = id;
    method.parent_method_id = parent;
    method.method_name = (char *)name;
    method.method_load_address = at;
    method.method_size = (unsigned)size;
    method.line_number_size = 1;
    method.line_number_table = lines;
    method.source_file_name = (char *)"library.src";
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_INLINE_LOAD_FINISHED, &method);
}

static unsigned two_loops_method(unsigned char *at) {
    unsigned id = iJIT_GetNewMethodID(), outer = iJIT_GetNewMethodID();
    /* The inner one before the one around it, and both before the method. */
    inlined(iJIT_GetNewMethodID(), outer, "hot_part", at + HOT_START, HOT_END - HOT_START, 10);
    inlined(outer, id, "outer_part", at + HOT_START, HOT_END - HOT_START, 20);
    LineNumberInfo lines[] = {{HOT_START, 1}, {HOT_END, 2}, {COLD_END, 3}, {TWO_LOOPS, 4}};
    iJIT_Method_Load method = {0};
    method.method_id = id;
    method.method_name = (char *)"two_loops";
    method.method_load_address = at;
    method.method_size = TWO_LOOPS;
    method.line_number_size = 4;
    method.line_number_table = lines;
    method.source_file_name = (char *)"engine.src";
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_LOAD_FINISHED, &method);
    inlined(iJIT_GetNewMethodID(), id, "cold_part", at + HOT_END, COLD_END - HOT_END, 30);
    return id;
}

static void leaves(unsigned char *hot, size_t hot_size, unsigned char *cold, size_t cold_size) {
    iJIT_Method_Load_V2 v2 = {0};
    v2.method_id = iJIT_GetNewMethodID();
    v2.method_name = (char *)"leaf_hot";
    v2.method_load_address = hot;
    v2.method_size = (unsigned)hot_size;
    v2.class_file_name = (char *)"Leaves";
    v2.module_name = (char *)"exercise";
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_LOAD_FINISHED_V2, &v2);
    iJIT_Method_Load_V3 v3 = {0};
    v3.method_id = iJIT_GetNewMethodID();
    v3.method_name = (char *)"leaf_cold";
    v3.method_load_address = cold;
    v3.method_size = (unsigned)cold_size;
    v3.class_file_name = (char *)"Leaves";
    v3.module_name = (char *)"exercise";
    v3.module_arch = iJIT_CA_64;
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_LOAD_FINISHED_V3, &v3);
}

static void unload(unsigned id) {
    iJIT_Method_Load method = {0};
    method.method_id = id;
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_UNLOAD_START, &method);
}

/* What no engine should send, and some do. */
static void bad_events(unsigned char *at) {
    iJIT_Method_Load method = {0};
    method.method_id = iJIT_GetNewMethodID();
    method.method_name = (char *)"bad";
    method.method_load_address = (void *)0x1000;
    method.method_size = 64;
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_LOAD_FINISHED, &method);
    method.method_load_address = at;
    method.method_name = (char *)0x1000;
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_LOAD_FINISHED, &method);
    struct { unsigned id, stack; char *name; } enter = {method.method_id, 0, (char *)0x1000};
    iJIT_NotifyEvent((iJIT_JVM_EVENT)19, &enter);
    iJIT_NotifyEvent((iJIT_JVM_EVENT)20, &enter);
}

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double now(void) { return seconds(CLOCK_MONOTONIC); }

/* Announces methods from a thread while others do, and frees them again. */
static void *announce(void *argument) {
    unsigned char *at = argument;
    for (int round = 0; round < 2000; round++) {
        char name[32];
        snprintf(name, sizeof name, "thread_method_%d", round);
        unsigned id = iJIT_GetNewMethodID();
        load(id, name, at, 19);
        unload(id);
    }
    return NULL;
}

static int threads(void) {
    pthread_t all[8];
    unsigned char *at = room(64 * 8);
    /* The API's own loader is not made for threads: what others announce while it loads the library gets nowhere. */
    iJIT_IsProfilingActive();
    for (int i = 0; i < 8; i++) {
        one_loop(at + 64 * i, 1);
        pthread_create(&all[i], NULL, announce, at + 64 * i);
    }
    /* Children are forked while the threads are inside. */
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            load(iJIT_GetNewMethodID(), "of_the_child", at, 19);
            _exit(0);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) return 1;
    }
    for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
    return 0;
}

/* Announces many methods and says what each took. */
static int many(long count) {
    size_t size = 512;
    unsigned char *code = mmap(NULL, (size_t)count * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return 1;
    memset(code, 0x90, (size_t)count * size);
    LineNumberInfo lines[10];
    for (unsigned i = 0; i < 10; i++) lines[i] = (LineNumberInfo){(i + 1) * 50, i + 1};
    iJIT_IsProfilingActive();
    long pages[2];
    double times[2];
    for (int part = 0; part < 2; part++) {
        FILE *statm = fopen("/proc/self/statm", "r");
        if (!statm || fscanf(statm, "%*d %ld", &pages[part]) != 1) return 1;
        fclose(statm);
        times[part] = seconds(CLOCK_PROCESS_CPUTIME_ID);
        for (long i = 0; part == 0 && i < count; i++) {
            char name[64];
            snprintf(name, sizeof name, "Class%ld::handler_%ld(int, java.lang.String)", i % 1000, i);
            iJIT_Method_Load method = {0};
            method.method_id = iJIT_GetNewMethodID();
            method.method_name = name;
            method.method_load_address = code + (size_t)i * size;
            method.method_size = 500;
            method.line_number_size = 10;
            method.line_number_table = lines;
            method.source_file_name = (char *)"handlers.src";
            iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_LOAD_FINISHED, &method);
        }
    }
    printf("{\"methods\": %ld, \"cpu_seconds\": %.6f, \"resident_bytes\": %ld}\n", count, times[1] - times[0],
           (pages[1] - pages[0]) * sysconf(_SC_PAGESIZE));
    return 0;
}

int main(int argc, char **argv) {
    space = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return 1;
    if (argc > 2 && strcmp(argv[1], "many") == 0) return many(atol(argv[2]));
    if (argc > 1 && strcmp(argv[1], "threads") == 0) return threads();

    unsigned char *both = room(TWO_LOOPS), *hot = room(64), *cold = room(64), *updated = room(64), *turns = room(64);
    unsigned char *run = room(256);
    two_loops(both);
    size_t hot_size = one_loop(hot, 3), cold_size = one_loop(cold, 1), turn_size = one_loop(turns, 1);
    void *callees[] = {both, hot, cold, updated};
    size_t run_size = caller(run, 4, callees);
    updated[0] = 0xc3;

    two_loops_method(both);
    leaves(hot, hot_size, cold, cold_size);
    /* Two regions of one method: `run`, and one that is not run. */
    unsigned run_id = iJIT_GetNewMethodID();
    load(run_id, "run", run, run_size);
    load(run_id, "not its name", room(64), 16);
    unsigned update_id = iJIT_GetNewMethodID();
    load(update_id, "updated", updated, 19);
    one_loop(updated, 1);
    iJIT_Method_Load update = {0};
    update.method_id = update_id;
    update.method_load_address = updated;
    update.method_size = 19;
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_UPDATE, &update);
    iJIT_Method_Update update_v2 = {updated, 19, iJIT_CT_CODE, NULL};
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_METHOD_UPDATE_V2, &update_v2);
    bad_events(turns);
    iJIT_NotifyEvent(iJVM_EVENT_TYPE_SHUTDOWN, NULL);

    /* After SHUTDOWN: the same bytes are `first`, and nothing, and `second`. */
    double end = now() + (argc > 1 ? atof(argv[1]) : 4);
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    code_fn run_fn = (code_fn)(void *)run, turns_fn = (code_fn)(void *)turns;
    unsigned turn = 0, noise = 1;
    while (now() < end) {
        unsigned id = iJIT_GetNewMethodID();
        if (++turn % 2) {
            load(id, "first", turns, turn_size);
        } else {
            load(id, "second", turns, turn_size);
        }
        /* The same work in each turn, however often it is interrupted. */
        for (int round = 0; round < 400; round++) {
            /* A tenth to nineteen tenths, at random: calls of similar length fall into step with a profiler's clock. */
            noise = noise * 1103515245u + 12345u;
            run_fn(200 + (noise >> 8) % 3601);
            turns_fn(8000);
        }
        unload(id);
    }
    return 0;
}

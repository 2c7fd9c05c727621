// A program that exports what CPython 3.13 does, and lies about what that leads to: who reads it as one goes astray.
//
//   cc -O2 -rdynamic -pthread -o python3.13 pretender.c && ./python3.13 MODE [SECONDS]
//
// MODE is `circle` (each list leads back to itself, and a name is as long as a number can be), `anywhere` (names and callers lie
// where nothing is mapped, in the kernel, or amid code) or `changing` (a thread writes both over all of it, all the time).
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512, INTERPRETERS = 400 };

typedef volatile uint64_t Word;

const unsigned int Py_Version = 0x030d00f0;
Word _PyRuntime[WORDS];
Word PyCode_Type[WORDS], PyUnicode_Type[WORDS], PyBytes_Type[WORDS];

static Word interpreter[WORDS], state[WORDS], frame[WORDS], code[WORDS], text[WORDS];
static __thread Word *current;
static volatile uint64_t sink;

__attribute__((noinline)) Word *_PyThreadState_GetCurrent(void) { return current; }

__attribute__((noinline)) void _PyEval_EvalFrameDefault(uint64_t rounds) {
    for (uint64_t round = 0; round < rounds; round++) sink += round * round;
}

static uint64_t at(Word *object) { return (uint64_t)(uintptr_t)object; }

// Where which field is, group by group, as debuggers are told.
static void say_offsets(void) {
    static const struct { int word; uint64_t offset; } said[] = {
        {2, INTERPRETERS * 8}, {5, 0},  {6, 8},    {18, 8},   {20, 72},  {21, 152}, {22, 160}, {26, 8},
        {27, 0},               {28, 56}, {30, 70}, {32, 112}, {34, 128}, {35, 136}, {36, 68},  {40, 200},
    };
    uint64_t cookie;
    memcpy(&cookie, "xdebugpy", 8);
    _PyRuntime[0] = cookie;
    _PyRuntime[1] = Py_Version;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) _PyRuntime[3 + said[i].word] = said[i].offset;
}

// One thread that runs one function, which is called `f` in the file `f`, in its second instruction.
static void tell_the_truth(void) {
    _PyRuntime[INTERPRETERS] = at(interpreter);
    interpreter[1] = at(state);
    state[9] = at(frame);
    state[19] = (uint64_t)pthread_self();
    state[20] = (uint64_t)getpid();
    frame[0] = at(code);
    frame[7] = at(code) + 202;
    code[0] = text[0] = 1;
    code[1] = at(PyCode_Type);
    code[2] = 8;
    code[14] = code[16] = code[17] = at(text);
    text[1] = at(PyUnicode_Type);
    text[2] = 1;
    text[4] = 0x64;
    text[5] = 'f';
    current = state;
}

static void lie_in_circles(void) {
    interpreter[0] = at(interpreter);
    state[1] = at(state);
    frame[1] = at(frame);
    text[2] = UINT64_MAX / 2;
}

static void lie_about_anywhere(void) {
    frame[1] = 0xdead0000000;
    code[14] = 0xffff800000000000;
    code[16] = (uint64_t)(uintptr_t)_PyEval_EvalFrameDefault + 1;
    code[17] = 8;
}

static void *change(void *unused) {
    Word *objects[] = {interpreter, state, frame, code, text};
    const uint64_t values[] = {
        0, 1, 8, UINT64_MAX, UINT64_MAX / 2, 0xdead0000000, 0xffff800000000000,
        at(interpreter), at(state), at(frame), at(code), at(text), at(PyCode_Type), at(PyUnicode_Type),
    };
    uint64_t random = 88172645463325252;
    for (;;) {
        // Lies for a while, and the truth again.
        for (int i = 0; i < 64; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            objects[random % 5][random / 5 % 24] = values[random / 120 % (sizeof values / sizeof *values)];
        }
        usleep(300);
        tell_the_truth();
        usleep(300);
    }
    return unused;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "circle";
    double seconds = argc > 2 ? atof(argv[2]) : 4;
    say_offsets();
    tell_the_truth();
    if (!strcmp(mode, "circle")) lie_in_circles();
    if (!strcmp(mode, "anywhere")) lie_about_anywhere();
    pthread_t thread;
    if (!strcmp(mode, "changing") && pthread_create(&thread, NULL, change, NULL)) return 1;
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    for (time_t end = time(NULL) + (time_t)seconds; time(NULL) < end;) {
        // A part of the time: others run beside it.
        _PyEval_EvalFrameDefault(1000000);
        usleep(3000);
    }
    return 0;
}

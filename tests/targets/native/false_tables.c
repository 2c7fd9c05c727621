// Pretends to be a runtime that says where it has its code, and lies about it, while it burns CPU time in pretender_burn.
//
//   false_tables endless     tables of HotSpot's classes that never end, and whose names are circles
//   false_tables anywhere    tables that lie where nothing is mapped
//   false_tables many        whole tables, and heaps with more pieces of code than anybody can read; all that these point to is one
//                         word that points to itself
//   false_tables v8          (built with -DOF_V8) a known version of V8, in which everything lies two billion bytes away
//
// Says `ready pid=N`.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef OF_V8

int major __asm__("_ZN2v88internal7Version6major_E") = 12;
int minor __asm__("_ZN2v88internal7Version6minor_E") = 4;
int build __asm__("_ZN2v88internal7Version6build_E") = 254;
int map_type __asm__("v8dbg_class_Map__instance_type__uint16_t") = 12;

// A thousand more, of which none can be.
__asm__(".data\n.altmacro\n"
        ".macro one n\n.globl v8dbg_lie_\\n\n.type v8dbg_lie_\\n,@object\n.size v8dbg_lie_\\n,4\nv8dbg_lie_\\n: .long 0x7fffffff\n.endm\n"
        ".macro same name\n.globl v8dbg_\\name\n.type v8dbg_\\name,@object\n.size v8dbg_\\name,4\nv8dbg_\\name: .long 0x7fffffff\n.endm\n"
        ".set i,0\n.rept 1000\none %i\n.set i,i+1\n.endr\n"
        "same FirstJSFunctionType\nsame LastJSFunctionType\nsame off_fp_function\nsame off_fp_context\n"
        "same off_fp_bytecode_array\nsame off_fp_bytecode_offset\n.noaltmacro\n.text\n");

static void lie(const char *how) { (void)how; }

#else

// One entry of each of HotSpot's tables; not all of its parts are used by all.
struct entry {
    const char *class, *field, *type;
    int is_static, value;
    uint64_t offset;
    const void *address;
};

#define EXPORT __attribute__((visibility("default")))

EXPORT struct entry *gHotSpotVMStructs, *gHotSpotVMTypes, *gHotSpotVMIntConstants;
EXPORT uint64_t gHotSpotVMStructEntryArrayStride = sizeof(struct entry);
EXPORT uint64_t gHotSpotVMStructEntryTypeNameOffset = offsetof(struct entry, class);
EXPORT uint64_t gHotSpotVMStructEntryFieldNameOffset = offsetof(struct entry, field);
EXPORT uint64_t gHotSpotVMStructEntryTypeStringOffset = offsetof(struct entry, type);
EXPORT uint64_t gHotSpotVMStructEntryIsStaticOffset = offsetof(struct entry, is_static);
EXPORT uint64_t gHotSpotVMStructEntryOffsetOffset = offsetof(struct entry, offset);
EXPORT uint64_t gHotSpotVMStructEntryAddressOffset = offsetof(struct entry, address);
EXPORT uint64_t gHotSpotVMTypeEntryArrayStride = sizeof(struct entry);
EXPORT uint64_t gHotSpotVMTypeEntryTypeNameOffset = offsetof(struct entry, class);
EXPORT uint64_t gHotSpotVMTypeEntrySizeOffset = offsetof(struct entry, offset);
EXPORT uint64_t gHotSpotVMIntConstantEntryArrayStride = sizeof(struct entry);
EXPORT uint64_t gHotSpotVMIntConstantEntryNameOffset = offsetof(struct entry, class);
EXPORT uint64_t gHotSpotVMIntConstantEntryValueOffset = offsetof(struct entry, value);

// Eight heaps, all there can be, each one piece of memory again and again.
enum { HEAPS = 8, PIECE = 2 << 20, PIECES = 64, SEGMENT = 128, BLOCK = 512, LOG2_SEGMENT = 7 };

struct space {
    uint64_t low, high, end;
};

struct heap {
    struct space memory, map;
    int log2_segment;
};

struct array {
    int length;
    struct heap **data;
};

// A heap's header of a block, and the blob behind it.
struct block {
    uint64_t length;
    unsigned char used, rest[7];
};

struct blob {
    const char *name;
    int size, code, data, frame_size, frame_complete, unused;
    void *mutable;
    int mutable_size, relocations;
    void *method;
    int compile_id, level, bci;
    signed char state;
    void *osr_entry;
    unsigned short verified_entry;
    int orig_pc, deopt;
    void *immutable;
    int immutable_size, pcs, scopes;
};

static struct array heaps, *heaps_at = &heaps;
static struct heap heap[HEAPS], *heap_at[HEAPS];
static int version = 25;
static const char *release = "25.0.0+pretended";
// What points to itself: as a method it has itself, as a class its name is itself.
static void *knot[512];
static void *knot_at = &knot;

#define FIELD(class, field, type, struct_, member) {class, field, type, 0, 0, offsetof(struct struct_, member), NULL}
#define KNOT(class, field, type) {class, field, type, 0, 0, 0, NULL}
#define STATIC(class, field, type, variable) {class, field, type, 1, 0, 0, variable}
#define SIZE(class, bytes) {class, NULL, NULL, 0, 0, bytes, NULL}

static struct entry structs[] = {
    STATIC("Abstract_VM_Version", "_vm_major_version", "int", &version),
    STATIC("Abstract_VM_Version", "_s_vm_release", "const char*", &release),
    STATIC("CodeCache", "_heaps", "GrowableArray<CodeHeap*>*", &heaps_at),
    FIELD("GrowableArrayBase", "_len", "int", array, length),
    FIELD("GrowableArray<int>", "_data", "int*", array, data),
    FIELD("CodeHeap", "_memory", "VirtualSpace", heap, memory),
    FIELD("CodeHeap", "_segmap", "VirtualSpace", heap, map),
    FIELD("CodeHeap", "_log2_segment_size", "int", heap, log2_segment),
    FIELD("VirtualSpace", "_low", "char*", space, low),
    FIELD("VirtualSpace", "_high", "char*", space, high),
    FIELD("VirtualSpace", "_high_boundary", "char*", space, end),
    FIELD("HeapBlock::Header", "_length", "size_t", block, length),
    FIELD("HeapBlock::Header", "_used", "bool", block, used),
    FIELD("CodeBlob", "_name", "const char*", blob, name),
    FIELD("CodeBlob", "_size", "int", blob, size),
    FIELD("CodeBlob", "_code_offset", "int", blob, code),
    FIELD("CodeBlob", "_data_offset", "int", blob, data),
    FIELD("CodeBlob", "_frame_size", "int", blob, frame_size),
    FIELD("CodeBlob", "_frame_complete_offset", "int", blob, frame_complete),
    FIELD("CodeBlob", "_mutable_data", "address", blob, mutable),
    FIELD("CodeBlob", "_mutable_data_size", "int", blob, mutable_size),
    FIELD("CodeBlob", "_relocation_size", "int", blob, relocations),
    FIELD("nmethod", "_method", "Method*", blob, method),
    FIELD("nmethod", "_compile_id", "int", blob, compile_id),
    FIELD("nmethod", "_comp_level", "CompLevel", blob, level),
    FIELD("nmethod", "_entry_bci", "int", blob, bci),
    FIELD("nmethod", "_state", "volatile signed char", blob, state),
    FIELD("nmethod", "_osr_entry_point", "address", blob, osr_entry),
    FIELD("nmethod", "_verified_entry_offset", "u2", blob, verified_entry),
    FIELD("nmethod", "_orig_pc_offset", "int", blob, orig_pc),
    FIELD("nmethod", "_deopt_handler_offset", "int", blob, deopt),
    FIELD("nmethod", "_immutable_data", "address", blob, immutable),
    FIELD("nmethod", "_immutable_data_size", "int", blob, immutable_size),
    FIELD("nmethod", "_scopes_pcs_offset", "int", blob, pcs),
    FIELD("nmethod", "_scopes_data_offset", "int", blob, scopes),
    KNOT("Method", "_constMethod", "ConstMethod*"),
    KNOT("ConstMethod", "_constants", "ConstantPool*"),
    KNOT("ConstMethod", "_flags", "u2"),
    KNOT("ConstMethod", "_code_size", "u2"),
    KNOT("ConstMethod", "_name_index", "u2"),
    KNOT("ConstMethod", "_signature_index", "u2"),
    KNOT("ConstantPool", "_pool_holder", "InstanceKlass*"),
    KNOT("ConstantPool", "_source_file_name_index", "u2"),
    KNOT("ConstantPool", "_length", "int"),
    KNOT("Klass", "_name", "Symbol*"),
    KNOT("Symbol", "_length", "u2"),
    KNOT("Symbol", "_body[0]", "u1"),
    KNOT("PcDesc", "_pc_offset", "int"),
    KNOT("PcDesc", "_scope_decode_offset", "int"),
    STATIC("AbstractInterpreter", "_code", "StubQueue*", &knot_at),
    KNOT("StubQueue", "_stub_buffer", "address"),
    KNOT("StubQueue", "_queue_begin", "int"),
    KNOT("StubQueue", "_queue_end", "int"),
    KNOT("InterpreterCodelet", "_size", "int"),
    KNOT("InterpreterCodelet", "_description", "const char*"),
    {0},
};

static struct entry types[] = {
    SIZE("HeapBlock", sizeof(struct block)),
    SIZE("CodeBlob", offsetof(struct blob, method)),
    SIZE("nmethod", sizeof(struct blob)),
    SIZE("ConstMethod", 8),
    SIZE("ConstantPool", 8),
    SIZE("PcDesc", 8),
    {0},
};

static struct entry constants[] = {
    {"ConstMethodFlags::_misc_has_linenumber_table", NULL, NULL, 0, 1, 0, NULL},
    {0},
};

static void *mapped(void *at, size_t bytes, int file) {
    int how = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void *memory = mmap(at, bytes, PROT_READ, at ? how | MAP_FIXED : how, file, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

// A file full of blobs, each whole wherever it is mapped.
static int blobs(void) {
    int file = memfd_create("blobs", MFD_CLOEXEC);
    char *piece = malloc(PIECE);
    memset(piece, 0x90, PIECE);
    for (int at = 0; at < PIECE; at += BLOCK) {
        struct block block = {.length = BLOCK / SEGMENT, .used = 1};
        struct blob blob = {.name = "nmethod", .size = 480, .code = 256, .data = 448, .frame_size = 4, .frame_complete = 8,
                            .mutable = knot, .method = knot, .compile_id = at / BLOCK + 1, .level = 4, .bci = -1,
                            .verified_entry = 16, .orig_pc = 8, .deopt = 320, .immutable = knot, .immutable_size = 0x7fffffff,
                            .pcs = 0, .scopes = 0x7ffffff0};
        memcpy(piece + at, &block, sizeof block);
        memcpy(piece + at + sizeof block, &blob, sizeof blob);
    }
    if (file < 0 || write(file, piece, PIECE) != PIECE) {
        perror("a file of blobs");
        exit(1);
    }
    free(piece);
    return file;
}

static void make_heaps(void) {
    int file = blobs();
    size_t bytes = (size_t)PIECE * PIECES, segments = bytes / SEGMENT;
    for (int number = 0; number < HEAPS; number++) {
        char *memory = mapped(NULL, bytes, -1);
        for (int piece = 0; piece < PIECES; piece++) mapped(memory + (size_t)piece * PIECE, PIECE, file);
        // Each segment begins a block.
        char *map = mapped(NULL, segments, -1);
        heap[number] = (struct heap){
            .memory = {(uint64_t)memory, (uint64_t)memory + bytes, (uint64_t)memory + bytes},
            .map = {(uint64_t)map, (uint64_t)map + segments, (uint64_t)map + segments},
            .log2_segment = LOG2_SEGMENT,
        };
        heap_at[number] = &heap[number];
    }
    heaps = (struct array){HEAPS, heap_at};
}

static void lie(const char *how) {
    for (size_t at = 0; at < sizeof knot / sizeof *knot; at++) knot[at] = knot;
    if (strcmp(how, "many") == 0) {
        make_heaps();
        gHotSpotVMStructs = structs;
        gHotSpotVMTypes = types;
        gHotSpotVMIntConstants = constants;
    } else if (strcmp(how, "endless") == 0) {
        // Each entry is eight bytes behind the one before, so that there are as many as there can be in one page.
        size_t bytes = (size_t)64 << 20;
        void **table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (table == MAP_FAILED) exit(1);
        for (size_t at = 0; at < 1 << 20; at++) table[at] = table;
        gHotSpotVMStructs = gHotSpotVMTypes = gHotSpotVMIntConstants = (struct entry *)table;
    } else {
        gHotSpotVMStructs = gHotSpotVMTypes = gHotSpotVMIntConstants = (struct entry *)0xdead0000000;
    }
}

#endif

static volatile unsigned long sink;

// Code that nobody has announced: only who runs some is asked what it knows of it. It counts down from 2^24.
static const unsigned char countdown[] = {
#ifdef __x86_64__
    0xb9, 0, 0, 0, 1,  // mov ecx, 1 << 24
    0xff, 0xc9,        // dec ecx
    0x75, 0xfc,        // jnz to dec
    0xc3,              // ret
#else
    0x01, 0x20, 0xa0, 0x52,  // mov w1, 1 << 24
    0x21, 0x04, 0x00, 0x71,  // subs w1, w1, 1
    0xe1, 0xff, 0xff, 0x54,  // b.ne to subs
    0xc0, 0x03, 0x5f, 0xd6,  // ret
#endif
};

static void (*generated(void))(void) {
    char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) exit(1);
    memcpy(code, countdown, sizeof countdown);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC) != 0) exit(1);
    __builtin___clear_cache(code, code + sizeof countdown);
    return (void (*)(void))code;
}

__attribute__((noinline)) void pretender_burn(unsigned long rounds) {
    for (unsigned long round = 0; round < rounds; round++) sink += round * round;
}

int main(int count, char **arguments) {
    lie(count > 1 ? arguments[1] : "many");
    // What others have of the machine is not what this is about.
    if (nice(19) < 0) return 1;
    void (*run)(void) = generated();
    printf("ready pid=%d\n", getpid());
    fflush(stdout);
    for (;;) {
        pretender_burn(10000000);
        run();
    }
}

/* The executor of PTX on its own: results, faults, calls, barriers, and texts that are cut off or corrupted. */
#include "expect.h"
#include "softgpu/ptx/ptx.h"

#include <stdlib.h>
#include <string.h>

#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"

static uint32_t memory[4096];

static int range(void *data, uint64_t address, uint64_t bytes, int is_write, uint64_t *start, uint64_t *end)
{
    uint64_t from = (uint64_t)(uintptr_t)memory, size = sizeof memory;
    (void)data;
    (void)is_write;
    if (address < from || address - from > size || bytes > size - (address - from))
        return 0;
    *start = from;
    *end = from + size;
    return 1;
}

static struct sg_ptx *compile(const char *text)
{
    size_t bytes = strlen(text);
    return sg_ptx_compile(&text, &bytes, 1);
}

/* Run the entry `k` with the address of the memory as its only parameter. */
static enum sg_ptx_fault run(const struct sg_ptx *program, uint32_t blocks, uint32_t threads)
{
    uint64_t address = (uint64_t)(uintptr_t)memory, addresses[16] = {0};
    static unsigned char variables[16][256];
    int entry = sg_ptx_entry(program, "k");
    EXPECT(entry >= 0);
    EXPECT(sg_ptx_variable_count(program) <= 16);
    for (size_t i = 0; i < sg_ptx_variable_count(program); i++) {
        struct sg_ptx_variable one = sg_ptx_variable(program, i);
        EXPECT(one.bytes <= sizeof variables[i]);
        addresses[i] = (uint64_t)(uintptr_t)variables[i];
        memset(variables[i], 0, sizeof variables[i]);
        if (one.initial)
            memcpy(variables[i], one.initial, one.bytes);
    }
    sg_ptx_relocate(program, addresses);
    struct sg_ptx_launch launch = {.program = program, .entry = entry, .grid = {blocks, 1, 1}, .block = {threads, 1, 1},
                                   .params = (const unsigned char *)&address, .param_bytes = sizeof address,
                                   .addresses = addresses, .sm_count = 4, .resident_blocks = 8, .warp_limit = 200000,
                                   .range = range};
    return sg_ptx_run(&launch);
}

static enum sg_ptx_fault run_text(const char *text, uint32_t blocks, uint32_t threads)
{
    struct sg_ptx *program = compile(text);
    EXPECT(program != NULL);
    const char *reason = sg_ptx_reason(program, sg_ptx_entry(program, "k"));
    if (reason)
        fprintf(stderr, "reason: %s\n", reason);
    EXPECT(reason == NULL);
    enum sg_ptx_fault fault = run(program, blocks, threads);
    sg_ptx_release(program);
    return fault;
}

#define ENTRY(registers, body)                                                                                         \
    ".visible .entry k(.param .u64 a)\n{\n .reg .b64 %d<8>; .reg .b32 %r<16>; .reg .pred %p<4>;\n" registers           \
    " ld.param.u64 %d1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;\n"                      \
    " mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %d2, %r4, 4; add.u64 %d3, %d1, %d2;\n" body " ret;\n}\n"

static const char diverging[] = HEAD ENTRY(
    "", " and.b32 %r5, %r1, 3; mov.u32 %r6, 0;\n"
        "LOOP: setp.eq.u32 %p1, %r5, 0; @%p1 bra DONE; add.u32 %r6, %r6, 10; sub.u32 %r5, %r5, 1; bra LOOP;\n"
        "DONE: activemask.b32 %r7; shfl.sync.idx.b32 %r8, %r6, 3, 31, -1; add.u32 %r6, %r6, %r8;\n"
        " st.global.u32 [%d3], %r6;");

static void test_threads_diverge_and_meet(void)
{
    EXPECT(run_text(diverging, 2, 64) == SG_PTX_DONE);
    for (uint32_t t = 0; t < 128; t++)
        EXPECT(memory[t] == t % 4 * 10 + 30);
}

static const char calling[] = HEAD
    ".global .align 4 .u32 count = 7;\n.global .align 8 .u64 pointer = count;\n"
    ".func (.param .b32 result) power(.param .b32 n)\n{\n .reg .b32 %r<4>; .reg .pred %p;\n"
    " .local .align 4 .b8 depot[8];\n"
    " ld.param.u32 %r1, [n]; setp.eq.u32 %p, %r1, 0; @%p bra ONE;\n st.local.u32 [depot+4], %r1;\n"
    " { .param .b32 x; .param .b32 y; sub.u32 %r2, %r1, 1; st.param.b32 [x], %r2; call (y), power, (x);\n"
    " ld.param.b32 %r2, [y]; }\n ld.local.u32 %r1, [depot+4]; mad.lo.u32 %r2, %r2, 3, %r1;\n"
    " st.param.b32 [result], %r2; ret;\nONE: st.param.b32 [result], 1; ret;\n}\n" ENTRY(
        "", " { .param .b32 x; .param .b32 y; and.b32 %r5, %r1, 7; st.param.b32 [x], %r5; call (y), power, (x);\n"
            " ld.param.b32 %r6, [y]; }\n ld.global.u64 %d4, [pointer]; ld.u32 %r7, [%d4]; add.u32 %r6, %r6, %r7;\n"
            " st.global.u32 [%d3], %r6;");

static uint32_t power(uint32_t n)
{
    return n ? power(n - 1) * 3 + n : 1;
}

static int with_variables(void *data, uint64_t address, uint64_t bytes, int is_write, uint64_t *start, uint64_t *end)
{
    if (range(data, address, bytes, is_write, start, end))
        return 1;
    *start = address;
    *end = address + bytes;
    return 1;
}

static void test_functions_are_called_by_each_thread(void)
{
    struct sg_ptx *program = compile(calling);
    EXPECT(program && !sg_ptx_reason(program, sg_ptx_entry(program, "k")));
    EXPECT(sg_ptx_variable_count(program) == 2);
    uint32_t count = 7;
    uint64_t pointer = (uint64_t)(uintptr_t)&count, address = (uint64_t)(uintptr_t)memory;
    uint64_t addresses[2] = {(uint64_t)(uintptr_t)&count, (uint64_t)(uintptr_t)&pointer};
    pointer = 0;
    sg_ptx_relocate(program, addresses);
    EXPECT(pointer == addresses[0]);
    struct sg_ptx_launch launch = {.program = program, .entry = sg_ptx_entry(program, "k"), .grid = {1, 1, 1},
                                   .block = {40, 1, 1}, .params = (const unsigned char *)&address, .param_bytes = 8,
                                   .addresses = addresses, .range = with_variables};
    EXPECT(sg_ptx_run(&launch) == SG_PTX_DONE);
    for (uint32_t t = 0; t < 40; t++)
        EXPECT(memory[t] == power(t & 7) + 7);
    sg_ptx_release(program);
}

static void test_faults_end_the_launch(void)
{
    EXPECT(run_text(HEAD ENTRY("", "LOOP: bra LOOP;"), 1, 32) == SG_PTX_TIMEOUT);
    EXPECT(run_text(HEAD ENTRY("", " st.global.u32 [%d3+65536], %r1;"), 1, 32) == SG_PTX_ILLEGAL_ADDRESS);
    EXPECT(run_text(HEAD ENTRY("", " st.global.u32 [%d3+2], %r1;"), 1, 32) == SG_PTX_MISALIGNED_ADDRESS);
    EXPECT(run_text(HEAD ENTRY("", " trap;"), 1, 32) == SG_PTX_TRAP);
    EXPECT(run_text(HEAD ENTRY(".shared .b32 s;", " ld.shared.u32 %r5, [s+1024];"), 1, 1) == SG_PTX_ILLEGAL_ADDRESS);
    /* One half of the warp waits at a barrier of all threads, the other at another barrier: no thread can continue. */
    EXPECT(run_text(HEAD ENTRY("", " setp.lt.u32 %p1, %r1, 16; @%p1 bra A; bar.sync 1; bra B;\nA: bar.sync 2;\nB:"), 1,
                    32) == SG_PTX_TIMEOUT);
}

static void test_blocks_that_wait_for_each_other_make_progress(void)
{
    struct sg_ptx *program =
        compile(HEAD ENTRY("", " atom.global.add.u32 %r5, [%d1], 1;\n"
                               "WAIT: ld.volatile.global.u32 %r6, [%d1]; setp.lt.u32 %p2, %r6, 4; @%p2 bra WAIT;\n"));
    uint64_t address = (uint64_t)(uintptr_t)memory;
    memset(memory, 0, sizeof memory);
    struct sg_ptx_launch launch = {.program = program, .entry = sg_ptx_entry(program, "k"), .grid = {4, 1, 1},
                                   .block = {1, 1, 1}, .params = (const unsigned char *)&address, .param_bytes = 8,
                                   .resident_blocks = 4, .range = range};
    EXPECT(sg_ptx_run(&launch) == SG_PTX_DONE);
    EXPECT(memory[0] == 4);
    sg_ptx_release(program);
}

static void test_what_cannot_be_executed_has_a_reason(void)
{
    const char *bodies[] = {" tex.1d.v4.u32.s32 {%r5,%r6,%r7,%r8}, [t, {%r1}];", " add.u32 %r5, %r1;", " bra NOWHERE;",
                            " add.sat.u64 %d4, %d1, %d2;", " mov.u32 %r5, %unknown;", " call missing;",
                            " add.u32 %d4, %r1, %r2;"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char text[2048] = HEAD ".visible .entry k(.param .u64 a)\n{\n .reg .b64 %d<8>; .reg .b32 %r<16>;\n";
        strcat(text, bodies[i]);
        strcat(text, "\n ret;\n}\n");
        struct sg_ptx *program = compile(text);
        EXPECT(program && sg_ptx_entry(program, "k") >= 0);
        EXPECT(sg_ptx_reason(program, sg_ptx_entry(program, "k")) != NULL);
        sg_ptx_release(program);
    }
}

static uint64_t state = 88172645463325252u;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Texts that are cut off or changed at random are compiled, and executed where they still can be. */
static void test_corrupted_texts_do_no_harm(void)
{
    const char *texts[] = {diverging, calling};
    for (int round = 0; round < 3000; round++) {
        char copy[4096];
        const char *source = texts[round % 2];
        size_t bytes = strlen(source);
        memcpy(copy, source, bytes + 1);
        if (round % 3 == 0)
            bytes = next() % bytes;
        for (uint64_t changes = next() % 4; changes && bytes > 60; changes--)
            copy[60 + next() % (bytes - 60)] = " ;{}[]()%.,:<>0123456789abcdrxu@!-"[next() % 35];
        copy[bytes] = 0;
        struct sg_ptx *program = compile(copy);
        EXPECT(program != NULL);
        int entry = sg_ptx_entry(program, "k");
        if (entry >= 0 && !sg_ptx_reason(program, entry) && sg_ptx_variable_count(program) <= 16 && round % 2 == 0)
            run(program, 1, 40);
        sg_ptx_release(program);
    }
}

/* Lists within lists are refused before they exhaust the stack, and many constants do not take long. */
static void test_deep_and_long_texts_are_survived(void)
{
    enum { DEPTH = 300000, CONSTANTS = 60000 };
    static const char *const before[] = {HEAD ".visible .entry k() { .reg .b32 %r<4>; mov.b32 ",
                                         HEAD ".visible .entry k() { .reg .b32 %r<4>; call ", HEAD ".global .b32 x[4] = "};
    static const char *const after[] = {"%r1; ret; }\n", "%r1; ret; }\n", "1;\n.visible .entry k() { ret; }\n"};
    char *text = malloc(CONSTANTS * 20 + DEPTH);
    EXPECT(text != NULL);
    for (int i = 0; i < 3; i++) {
        size_t at = strlen(strcpy(text, before[i]));
        memset(text + at, i == 1 ? '(' : '{', DEPTH);
        strcpy(text + at + DEPTH, after[i]);
        struct sg_ptx *program = compile(text);
        EXPECT(program != NULL);
        const int entry = sg_ptx_entry(program, "k");
        EXPECT(entry < 0 || sg_ptx_reason(program, entry) != NULL);
        sg_ptx_release(program);
    }
    size_t at = strlen(strcpy(text, HEAD ".visible .entry k(.param .u64 a)\n{ .reg .b32 %r<4>; .reg .b64 %d<2>;\n"
                                         "ld.param.u64 %d1, [a]; mov.u32 %r1, 0;\n"));
    for (uint32_t i = 0; i < CONSTANTS; i++)
        at += (size_t)sprintf(text + at, "add.u32 %%r1,%%r1,%u;\n", i % (CONSTANTS / 2));
    strcpy(text + at, "st.global.u32 [%d1], %r1; ret; }\n");
    EXPECT(run_text(text, 1, 1) == SG_PTX_DONE);
    EXPECT(memory[0] == (uint32_t)CONSTANTS / 2 * (CONSTANTS / 2 - 1));
    free(text);
}

int main(void)
{
    test_threads_diverge_and_meet();
    test_functions_are_called_by_each_thread();
    test_faults_end_the_launch();
    test_blocks_that_wait_for_each_other_make_progress();
    test_what_cannot_be_executed_has_a_reason();
    test_corrupted_texts_do_no_harm();
    test_deep_and_long_texts_are_survived();
    return 0;
}

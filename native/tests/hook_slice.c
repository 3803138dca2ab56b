/* Rewriting of PTX: which kernels are eligible, and that no text, however damaged, is read beyond its end or gives a
 * result that is not an extension of it. */
#include "hook/slice/ptx.h"
#include "tests/expect.h"

#include <string.h>

#define HEAD ".version 8.4\n.target sm_80\n.address_size 64\n"
#define BEGIN                                                                                                          \
    ".visible .entry k(.param .u64 a)\n{ .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<9>; .reg .v4 .u32 %v;\n"     \
    "ld.param.u64 %d1, [a];\n"
#define END "\nret; }\n"

static uint64_t state = 88172645463325252u;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* ---- eligibility -------------------------------------------------------------------------------------------------- */

/* The kernel `k` of each text, and why it cannot be launched in parts. */
static const struct {
    const char *text;
    enum ct_ptx_reason reason;
} cases[] = {
    {BEGIN END, CT_PTX_ELIGIBLE},
    {BEGIN "mov.u32 %r1, %ctaid.x; mad.lo.s32 %r2, %ctaid.y, %ntid.x, %tid.x; mov.v4.u32 {%r1, _, %r2, %r3}, %nctaid;" END,
     CT_PTX_ELIGIBLE},
    {BEGIN ".loc 1 2 3, function_name $L__x + 4, inlined_at 1 2 3\n add.u32 %r1, %r1, 1;" END, CT_PTX_ELIGIBLE},
    /* an atomic outside a loop, in a loop that does not depend on it, and within the block */
    {BEGIN "atom.global.inc.u32 %r1, [%d1], 7; setp.eq.u32 %p1, %r1, 3; @%p1 bra B; B:" END, CT_PTX_ELIGIBLE},
    {BEGIN "L: atom.add.u32 %r1, [%d1], 7; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra L;" END,
     CT_PTX_ELIGIBLE},
    {BEGIN "L: ld.volatile.shared.u32 %r1, [%r2]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_ELIGIBLE},
    {BEGIN "L: ld.global.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_ELIGIBLE},
    {BEGIN "L: ld.global.f32 %r1, [%d1]; bar.sync 0; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra L;" END,
     CT_PTX_ELIGIBLE},
    /* waiting for other blocks */
    {BEGIN "L: ld.volatile.global.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.acquire.gpu.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @!%p1 bra E; bra L; E:" END, CT_PTX_WAITS},
    {BEGIN "L: atom.global.cas.b32 %r1, [%d1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.global.u32 %r1, [%d1]; membar.gl; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.global.u32 %r1, [%d1]; bar.sync 0; setp.lt.u32 %p1, %r1, 9; @%p1 ret; bra L;" END, CT_PTX_WAITS},
    /* past the first cache */
    {BEGIN "L: ld.global.cv.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.global.cg.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.global.L1::no_allocate.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.global.nc.L1::no_allocate.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_ELIGIBLE},
    {BEGIN "L: suld.b.1d.b32.cv.trap %r1, [%d1, {%r2}]; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: cp.async.cg.shared.global [%r1], [%d1], 16; cp.async.wait_all; ld.shared.u32 %r2, [%r1]; "
           "setp.lt.u32 %p1, %r2, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: cp.async.cg.shared.global [%r1], [%d1], 16; cp.async.wait_all; ld.shared.u32 %r2, [%r1]; "
           "add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 9; @%p1 bra L;" END, CT_PTX_ELIGIBLE},
    /* through shared memory, another thread's register, a vector, a guard, and a function */
    {BEGIN "L: ld.volatile.u32 %r1, [%d1]; st.shared.u32 [%r5], %r1; ld.shared.u32 %r2, [%r6]; setp.lt.u32 %p1, %r2, 9; "
           "@%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.volatile.u32 %r1, [%d1]; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; setp.lt.u32 %p1, %r2, 9; @%p1 bra L;"
     END, CT_PTX_WAITS},
    {BEGIN "L: ld.volatile.v4.u32 %v, [%d1]; setp.lt.u32 %p1, %v.x, 9; @%p1 bra L;" END, CT_PTX_WAITS},
    {BEGIN "L: ld.volatile.u32 %r1, [%d1]; setp.lt.u32 %p1, %r1, 9; @%p1 mov.u32 %r2, 1; setp.eq.u32 %p2, %r2, 0; "
           "@%p2 bra L;" END, CT_PTX_WAITS},
    {".func (.param .b32 r) f() { .reg .b32 %r1; ld.volatile.u32 %r1, [x]; st.param.b32 [r], %r1; ret; }\n" BEGIN
     "L: { .param .b32 y; call (y), f, (); ld.param.b32 %r1, [y]; } setp.lt.u32 %p1, %r1, 9; @%p1 bra L;" END,
     CT_PTX_WAITS},
    {".func f() { .reg .b32 %r1; .reg .pred %p1; L: ld.volatile.u32 %r1, [x]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L; ret; }\n"
     BEGIN "call f, ();" END, CT_PTX_WAITS},
    {BEGIN "T: .branchtargets L, M; L: ld.volatile.u32 %r1, [%d1]; M: brx.idx %r1, T;" END, CT_PTX_WAITS},
    /* what a part changes, and what is unknown */
    {BEGIN "mov.u32 %r1, %gridid;" END, CT_PTX_GRID_IDENTITY},
    {BEGIN "mov.u32 %r1, %envreg1;" END, CT_PTX_GRID_IDENTITY},
    {BEGIN "mov.u32 %r1, %smid;" END, CT_PTX_GRID_IDENTITY},
    {BEGIN "mov.u32 %r1, %clusterid.x;" END, CT_PTX_CLUSTER},
    {BEGIN "barrier.cluster.arrive;" END, CT_PTX_CLUSTER},
    {".entry k() .reqnctapercluster 2, 1, 1 { ret; }", CT_PTX_CLUSTER},
    {BEGIN "griddepcontrol.wait;" END, CT_PTX_ORDER},
    {BEGIN "mov.u16 %r1, %ctaid.x;" END, CT_PTX_GRID_READ},
    {BEGIN "cvt.u32.u16 %r1, %ctaid.x;" END, CT_PTX_GRID_READ},
    {BEGIN "mov.v2.u32 {%r1, %r2}, %ctaid;" END, CT_PTX_GRID_READ},
    {BEGIN "mov.u32 %r1, %newest;" END, CT_PTX_REGISTER},
    {BEGIN "frobnicate.u32 %r1, %r1;" END, CT_PTX_INSTRUCTION},
    {BEGIN ".global .u32 x;" END, CT_PTX_NOT_UNDERSTOOD},
    {".entry k() .newdirective 4 { ret; }", CT_PTX_NOT_UNDERSTOOD},
    {BEGIN "call (%r1), %d1, (%r1), P;" END, CT_PTX_INDIRECT_CALL},
    {BEGIN "P: .callprototype _ ();" END, CT_PTX_INDIRECT_CALL},
    {".extern .func f();\n" BEGIN "call f, ();" END, CT_PTX_UNKNOWN_FUNCTION},
    {".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 p, .param .b64 s);\n" BEGIN
     "{ .param .b32 y; .param .b64 x; call (y), cudaLaunchDeviceV2, (x, x); }" END, CT_PTX_LAUNCHES},
    {".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);\n" BEGIN
     "{ .param .b32 y; .param .b64 x; call (y), vprintf, (x, x); }" END, CT_PTX_ELIGIBLE},
    {".func f();\n.func g() { call f, (); ret; }\n.func f() { call g, (); ret; }\n" BEGIN "call f, ();" END,
     CT_PTX_RECURSION},
    {".func f() { .reg .b32 %r1; mov.u32 %r1, %ctaid.x; ret; }\n" BEGIN "@%p1 call f, ();" END, CT_PTX_GRID_READ},
    {".func f() { .reg .b32 %r1; mov.u32 %r1, %tid.x; ret; }\n" BEGIN "@%p1 call f, ();" END, CT_PTX_ELIGIBLE},
    {".entry k(.param .align 8 .b8 a[4072]) { ret; }", CT_PTX_PARAMETERS},
    {".entry k(.param .align 8 .b8 a[4064]) { ret; }", CT_PTX_ELIGIBLE},
    {BEGIN END ".section .debug_str { $L: .b8 1,2 }\n", CT_PTX_ELIGIBLE},
    {BEGIN "L: .loc 1 2 3\n add.u32 %r1, %r1, 1;" END ".section .debug_info { .b64 L }\n", CT_PTX_ELIGIBLE},
    {".target sm_80, debug\n" BEGIN END, CT_PTX_DEBUG},
};

static void rewrite(const char *text, size_t bytes, struct ct_ptx_module *module)
{
    char *copy = malloc(bytes ? bytes : 1); /* so that a read beyond the end is detected */
    memcpy(copy, text, bytes);
    EXPECT(ct_ptx_rewrite(copy, bytes, module));
    EXPECT(!module->text || (module->bytes > bytes && memcmp(module->text, copy, bytes) == 0));
    EXPECT(!module->text || strlen(module->text + bytes) == module->bytes - bytes || memchr(copy, 0, bytes));
    free(copy);
}

static void kernels_are_eligible_or_have_a_reason(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[4096];
        struct ct_ptx_module module;
        snprintf(text, sizeof text, HEAD "%s", cases[i].text);
        rewrite(text, strlen(text), &module);
        EXPECT_EQ(module.count, 1);
        if (module.kernels[0].reason != cases[i].reason) {
            fprintf(stderr, "%s\n%s\n", cases[i].text, ct_ptx_reason(module.kernels[0].reason));
            exit(1);
        }
        EXPECT_EQ(module.text != NULL, cases[i].reason == CT_PTX_ELIGIBLE);
        EXPECT(!module.text || strstr(module.text, module.kernels[0].variant));
        ct_ptx_free(&module);
    }
}

/* Returns how often the part of a text behind its original contains the word. */
static unsigned count_added(const struct ct_ptx_module *module, size_t bytes, const char *word)
{
    unsigned count = 0;
    for (const char *at = module->text + bytes; (at = strstr(at, word)); at++)
        count++;
    return count;
}

static void variants_read_the_whole_grid(void)
{
    static const char text[] = HEAD
        ".func inner() { .reg .b32 %r1; mov.u32 %r1, %nctaid.z; ret; }\n"
        ".func outer { call inner, (); ret; }\n.func plain(.param .b32 x) { ret; }\n" BEGIN
        "mov.u32 %r1, %ctaid.x; mov.v4.u32 %v, %ctaid; { .param .b32 x; call plain, (x); } call outer;" END;
    struct ct_ptx_module module;
    rewrite(text, sizeof text - 1, &module);
    EXPECT_EQ(count_added(&module, sizeof text - 1, "%ctaid"), 1); /* the number of the block in its part */
    EXPECT_EQ(count_added(&module, sizeof text - 1, "%nctaid"), 0);
    EXPECT_EQ(count_added(&module, sizeof text - 1, ".func"), 2);
    EXPECT_EQ(count_added(&module, sizeof text - 1, "call plain"), 1);
    EXPECT_EQ(count_added(&module, sizeof text - 1, "call inner"), 0);
    ct_ptx_free(&module);
    rewrite("", 0, &module);
    EXPECT_EQ(module.count, 0);
}

static void a_text_with_reserved_names_is_left_alone(void)
{
    static const char text[] = HEAD ".entry __cotenant_part_0() { ret; }\n";
    struct ct_ptx_module module;
    rewrite(text, sizeof text - 1, &module);
    EXPECT(!module.text && !module.count);
}

/* ---- the parameter of a variant ----------------------------------------------------------------------------------- */

static uint32_t divide(uint32_t number, uint32_t multiplier, uint32_t shift)
{
    return (uint32_t)((uint64_t)number * multiplier >> shift);
}

static void division_is_exact(void)
{
    for (uint64_t i = 0; i < rounds_of(200000, 20000000); i++) {
        const uint32_t width = (uint32_t)(next_random() >> (33 + next_random() % 31)) + 1,
                       height = (uint32_t)(next_random() >> (48 + next_random() % 16)) + 1, grid[3] = {width, height, 1};
        uint32_t number = (uint32_t)(next_random() >> 33);
        if (i % 2) /* next to a multiple, where rounding would show */
            number = (uint32_t)((number / width * (uint64_t)width - i / 2 % 2) & CT_PTX_BLOCKS_MAX);
        const struct ct_ptx_part part = ct_ptx_part(grid, 0);
        EXPECT_EQ(divide(number, part.multiplier_x, part.shift_x), number / width);
        EXPECT_EQ(divide(number, part.multiplier_y, part.shift_y), number / height);
    }
    const uint32_t widest[3] = {CT_PTX_BLOCKS_MAX, 1, 1};
    const struct ct_ptx_part part = ct_ptx_part(widest, 5);
    EXPECT_EQ(divide(CT_PTX_BLOCKS_MAX - 1, part.multiplier_x, part.shift_x), 0);
    EXPECT_EQ(divide(CT_PTX_BLOCKS_MAX, part.multiplier_y, part.shift_y), CT_PTX_BLOCKS_MAX);
    EXPECT_EQ(part.first, 5);
}

/* ---- damaged texts ------------------------------------------------------------------------------------------------ */

/* Replaces, repeats or removes a few bytes or a range. */
static size_t damage(char *text, size_t bytes, size_t capacity)
{
    static const char *const inserted[] = {"{", "}", "(", ")", "[", "]", ";", ",", "@", "\"", "/*", ":", "%ctaid", "%nctaid.x",
                                           ".entry ", ".func ", ".param ", "call ", "bra L;", "<", "\0", ".loc 1 ", "\377"};
    for (uint64_t i = next_random() % 4 + 1; i && bytes > 8; i--) {
        const size_t at = next_random() % bytes, other = next_random() % bytes, length = next_random() % 40;
        const char *word = inserted[next_random() % (sizeof inserted / sizeof inserted[0])];
        const size_t word_bytes = *word ? strlen(word) : 1;
        switch (next_random() % 4) {
        case 0:
            text[at] = (char)next_random();
            break;
        case 1: /* cut out */
            if (at + length < bytes) {
                memmove(text + at, text + at + length, bytes - at - length);
                bytes -= length;
            }
            break;
        case 2: /* copy within */
            if (at + length < bytes && other + length < bytes)
                memmove(text + at, text + other, length);
            break;
        default:
            if (bytes + word_bytes < capacity) {
                memmove(text + at + word_bytes, text + at, bytes - at);
                memcpy(text + at, word, word_bytes);
                bytes += word_bytes;
            }
        }
    }
    return next_random() % 8 ? bytes : next_random() % (bytes + 1); /* sometimes cut off */
}

static void damaged_texts_are_survived(void)
{
    const size_t count = sizeof cases / sizeof cases[0];
    for (uint64_t i = 0; i < rounds_of(20000, 2000000); i++) {
        char text[8192];
        struct ct_ptx_module module, again;
        snprintf(text, sizeof text, HEAD "%s%s", cases[next_random() % count].text, cases[next_random() % count].text);
        const size_t bytes = damage(text, strlen(text), sizeof text);
        rewrite(text, bytes, &module);
        if (module.text) { /* its names are reserved, so it is not rewritten again */
            rewrite(module.text, module.bytes, &again);
            EXPECT(!again.text);
            ct_ptx_free(&again);
        }
        ct_ptx_free(&module);
    }
}

int main(void)
{
    kernels_are_eligible_or_have_a_reason();
    variants_read_the_whole_grid();
    a_text_with_reserved_names_is_left_alone();
    division_is_exact();
    damaged_texts_are_survived();
    return 0;
}

/* wgmma: products of tiles by four warps, of which each computes its own 16 rows. They are complete when they have been
 * executed, so that waiting for their groups has no effect. */
#include "softgpu/ptx/vector.h"

#include <stdio.h>
#include <stdlib.h>

enum { K_MAX = 32, N_MAX = 256, ROWS = 16, WARPS = 4 };
enum { KIND_F16, KIND_BF16, KIND_TF32, KIND_E4M3, KIND_E5M2, KIND_S8, KIND_U8, KINDS };
enum { SUM_F32, SUM_F16, SUM_S32 };
enum { FROM_REGISTERS = 1, TURNED_A = 2, TURNED_B = 4, MINUS_A = 8, MINUS_B = 16, LIMITED = 32 };
static const char *const kinds[KINDS + 1] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", NULL};
static const uint32_t kind_bytes[KINDS] = {2, 2, 4, 1, 1, 1, 1};

/* ---- Matrices in shared memory ----------------------------------------------------------------------------------- */

/* A descriptor: addresses and distances in units of 16 bytes, and the number of bytes within which units are exchanged
 * (0: none, 1: 128, 2: 64, 3: 32). */
struct matrix {
    uint64_t start, leading, stride;
    uint32_t width; /* bytes of a row of 8 that are exchanged: 16, 32, 64 or 128 */
    int is_turned;  /* consecutive elements are of the same column of A, or the same row of B */
    uint32_t bytes; /* of an element */
};

static struct matrix read_descriptor(uint64_t bits, int is_turned, uint32_t bytes)
{
    static const uint32_t widths[4] = {16, 128, 64, 32};
    return (struct matrix){(bits & 0x3fff) << 4, (bits >> 16 & 0x3fff) << 4, (bits >> 32 & 0x3fff) << 4,
                           widths[bits >> 62], is_turned, bytes};
}

/* Return the address of an element. Tiles have 8 rows of `width` bytes; the 16-byte units of a row are exchanged by the
 * number of the row. */
static uint64_t address_of(const struct matrix *m, uint32_t row, uint32_t k)
{
    const uint32_t slow = m->is_turned ? k : row, fast = (m->is_turned ? row : k) * m->bytes;
    const uint32_t inner = fast % m->width, outer = fast / m->width;
    const int is_plain = m->width == 16;
    /* the distance of the next tile along the fast and the slow direction */
    const uint64_t next_fast = is_plain && m->is_turned ? m->stride : m->leading;
    const uint64_t next_slow = is_plain && m->is_turned ? m->leading : m->stride;
    uint64_t at = m->start + (uint64_t)(slow % 8) * m->width + slow / 8 * next_slow + inner + outer * next_fast;
    if (!m->is_turned && !is_plain) /* along k the tile continues within its row */
        at = m->start + (uint64_t)(slow % 8) * m->width + slow / 8 * next_slow + fast;
    return at ^ ((at >> 7 & (m->width / 16 - 1)) << 4);
}

static double value(const unsigned char *at, int kind)
{
    uint32_t bits = 0;
    memcpy(&bits, at, kind_bytes[kind]);
    switch (kind) {
    case KIND_F16:
        return (double)half_float(bits);
    case KIND_BF16:
        return (double)bf16_float(bits);
    case KIND_TF32:
        return (double)bits_float(bits & 0xffffe000);
    case KIND_S8:
        return (double)(int8_t)bits;
    case KIND_U8:
        return (double)bits;
    default:
        return (double)quarter_float(bits, kind == KIND_E5M2);
    }
}

/* ---- Execution --------------------------------------------------------------------------------------------------- */

struct tiles {
    double a[ROWS][K_MAX], b[N_MAX][K_MAX];
};

static uint32_t d_count(const struct ptx_ins *i)
{
    return (uint32_t)i->count * (i->op == SUM_F16 ? 2 : 4);
}

static int read_shared(struct ptx_warp *w, const struct matrix *m, uint32_t row, uint32_t k, int kind, double *to)
{
    const unsigned char *at = ptx_memory_at(w, address_of(m, row, k), m->bytes, SPACE_SHARED, 0, 0);
    if (at)
        *to = value(at, kind);
    return at ? 0 : -1;
}

/* Thread 4 g + q holds, of rows g and g + 8, one word at q of each half of the columns. */
static void read_registers(const struct ptx_warp *w, const struct ptx_ins *i, struct tiles *tiles)
{
    const uint32_t bytes = kind_bytes[i->source], per = 4 / bytes;
    for (uint32_t t = 0; t < WARP; t++)
        for (uint32_t r = 0; r < 4; r++) {
            const unsigned char *at = (const unsigned char *)&((uint32_t *)slot_at(w, i->list[d_count(i) + r]))[t];
            for (uint32_t p = 0; p < per; p++)
                tiles->a[t / 4 + 8 * (r % 2)][t % 4 * per + p + r / 2 * 4 * per] = value(at + p * bytes, i->source);
        }
}

static int read_tiles(struct ptx_warp *w, const struct ptx_ins *i, struct tiles *tiles)
{
    const uint32_t flags = i->flags, depth = 32 / kind_bytes[i->source], after = d_count(i) + (flags & FROM_REGISTERS ? 4 : 1);
    const uint64_t b_bits = ((uint64_t *)slot_at(w, i->list[after]))[0];
    const struct matrix b = read_descriptor(b_bits, (flags & TURNED_B) != 0, kind_bytes[i->result]);
    if (flags & FROM_REGISTERS) {
        read_registers(w, i, tiles);
    } else {
        const uint64_t a_bits = ((uint64_t *)slot_at(w, i->list[d_count(i)]))[0];
        const struct matrix a = read_descriptor(a_bits, (flags & TURNED_A) != 0, kind_bytes[i->source]);
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t k = 0; k < depth; k++)
                if (read_shared(w, &a, w->number % WARPS * ROWS + row, k, i->source, &tiles->a[row][k]) < 0)
                    return -1;
    }
    for (uint32_t n = 0; n < 8u * i->count; n++)
        for (uint32_t k = 0; k < depth; k++)
            if (read_shared(w, &b, n, k, i->result, &tiles->b[n][k]) < 0)
                return -1;
    return 0;
}

static double product(const struct ptx_ins *i, const struct tiles *tiles, uint32_t row, uint32_t n)
{
    double sum = 0;
    for (uint32_t k = 0; k < 32 / kind_bytes[i->source]; k++)
        sum += tiles->a[row][k] * tiles->b[n][k];
    return ((i->flags & MINUS_A) != 0) != ((i->flags & MINUS_B) != 0) ? -sum : sum;
}

/* Register r of thread 4 g + q holds one element, or two halves, of row g or g + 8. */
static void accumulate(struct ptx_warp *w, const struct ptx_ins *i, const struct tiles *tiles)
{
    const uint32_t after = d_count(i) + (i->flags & FROM_REGISTERS ? 5 : 2);
    const uint32_t is_added = *(uint32_t *)slot_at(w, i->list[after]);
    const uint32_t per = i->op == SUM_F16 ? 2 : 1;
    for (uint32_t r = 0; r < d_count(i); r++)
        for (uint32_t t = 0; t < WARP; t++) {
            uint32_t *d = &((uint32_t *)slot_at(w, i->list[r]))[t], out = 0;
            for (uint32_t p = 0; p < per; p++) {
                const uint32_t e = r * per + p, row = t / 4 + 8 * (e / 2 % 2), n = e / 4 * 8 + t % 4 * 2 + e % 2;
                const double old = i->op == SUM_F16   ? (double)half_float(*d >> (16 * p))
                                   : i->op == SUM_S32 ? (double)(int32_t)*d
                                                      : (double)bits_float(*d);
                double sum = product(i, tiles, row, n) + (is_added & ptx_bit[t] ? old : 0);
                if (i->flags & LIMITED)
                    sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
                out |= i->op == SUM_F16   ? float_half((float)sum) << (16 * p)
                       : i->op == SUM_S32 ? (uint32_t)(int64_t)sum
                                          : float_bits(one_nan((float)sum));
            }
            *d = out;
        }
}

static void execute(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    struct tiles *tiles = malloc(sizeof *tiles);
    (void)mask; /* it is executed by whole warps */
    if (!tiles)
        ptx_fail(w, SG_PTX_OUT_OF_MEMORY);
    else if (read_tiles(w, i, tiles) == 0)
        accumulate(w, i, tiles);
    free(tiles);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

/* Take m64nNkK: returns N; 0: another shape. */
static uint32_t take_shape(struct statement *s, uint32_t depth)
{
    for (uint32_t n = 8; n <= N_MAX; n += 8) {
        char name[24];
        snprintf(name, sizeof name, "m64n%uk%u", n, depth);
        if (ptx_take(s, name))
            return n;
    }
    return 0;
}

static int kind_of(const char *name)
{
    for (int k = 0; k < KINDS; k++)
        if (strcmp(kinds[k], name) == 0)
            return k;
    return NONE;
}

static int are_compatible(int a, int b, int sum)
{
    const int is_small = a == KIND_E4M3 || a == KIND_E5M2, is_integer = a >= KIND_S8;
    if (is_integer)
        return b >= KIND_S8 && sum == SUM_S32;
    if (sum == SUM_S32 || (sum == SUM_F16 && !is_small && a != KIND_F16))
        return 0;
    return is_small ? b == KIND_E4M3 || b == KIND_E5M2 : a == b;
}

/* Read a constant of the end of the statement that must be one of two numbers. -1: it is neither. */
static int choice(const struct statement *s, int operand, uint64_t other, int flag)
{
    const struct operand *one = &s->operands[operand];
    if (operand >= s->count || one->kind != OPERAND_NUMBER || (one->number != other && one->number != 1 && one->number != 0))
        return -1;
    return one->number == other ? flag : 0;
}

/* The constants behind scale-d: signs of A and B, then which of them are turned. -1: they are others. */
static int constants(const struct statement *s, int kind, int from_registers)
{
    const int is_half = kind == KIND_F16 || kind == KIND_BF16, first = 4;
    const int expected = kind >= KIND_S8 ? 0 : !is_half ? 2 : from_registers ? 3 : 4;
    int flags[4] = {0};
    if (s->count != first + expected)
        return -1;
    for (int k = 0; k < expected; k++) {
        const int turned = k == 2 && !from_registers ? TURNED_A : TURNED_B;
        flags[k] = k < 2 ? choice(s, first + k, UINT64_MAX, k ? MINUS_B : MINUS_A) : choice(s, first + k, 1, turned);
        if (flags[k] < 0)
            return -1;
    }
    return flags[0] | flags[1] | flags[2] | flags[3];
}

/* Add the registers of a vector, or a single one, to the list. */
static int add_registers(struct parser *parser, struct statement *s, int operand, uint32_t count, const struct type *type,
                         uint32_t **list)
{
    const struct operand *one = &s->operands[operand];
    if ((one->kind == OPERAND_VECTOR ? (uint32_t)one->count : 1) != count)
        return -1;
    for (uint32_t k = 0; k < count; k++) {
        const struct operand *part = one->kind == OPERAND_VECTOR ? &s->members[one->first + (int)k] : one;
        *(*list)++ = operand ? ptx_source(parser, s, part, type) : ptx_destination(parser, part, type);
        if ((*list)[-1] == NO_SLOT)
            return -1;
    }
    return 0;
}

static void decode_product(struct parser *parser, struct statement *s)
{
    const int is_limited = ptx_take(s, "satfinite"), from_registers = s->count > 1 && s->operands[1].kind == OPERAND_VECTOR;
    const int count = s->modifier_count, a = count == 4 ? kind_of(s->modifiers[2]) : NONE;
    const int b = count == 4 ? kind_of(s->modifiers[3]) : NONE;
    const char *named = count == 4 ? s->modifiers[1] : "";
    const int sum = strcmp(named, "f32") == 0 ? SUM_F32 : strcmp(named, "f16") == 0 ? SUM_F16 : SUM_S32;
    const uint32_t n = a == NONE ? 0 : take_shape(s, 32 / kind_bytes[a]);
    const int flags = a == NONE ? -1 : constants(s, a, from_registers);
    if (!n || b == NONE || flags < 0 || (sum == SUM_S32 && strcmp(named, "s32") != 0) || !are_compatible(a, b, sum) ||
        (is_limited && sum != SUM_S32)) {
        ptx_refuse(parser, "has an unsupported wgmma");
        return;
    }
    const struct type *b32 = ptx_named("b32"), *b64 = ptx_named("b64");
    const uint32_t registers = n / (sum == SUM_F16 ? 4 : 2);
    uint32_t *list = ptx_keep(parser->program, (registers + 8) * sizeof *list), *at = list;
    if (!list)
        return;
    if (add_registers(parser, s, 0, registers, b32, &at) < 0 ||
        add_registers(parser, s, 1, from_registers ? 4 : 1, from_registers ? b32 : b64, &at) < 0 ||
        add_registers(parser, s, 2, 1, b64, &at) < 0 || add_registers(parser, s, 3, 1, ptx_named("pred"), &at) < 0) {
        ptx_refuse(parser, "has an unsupported wgmma");
        return;
    }
    const uint32_t all = ptx_constant(parser, UINT32_MAX, 4);
    struct ptx_ins *ins = ptx_emit(parser, s, execute, INS_WARP);
    ins->list = list;
    ins->count = (uint8_t)(n / 8);
    ins->source = (uint8_t)a;
    ins->result = (uint8_t)b;
    ins->op = (uint8_t)sum;
    ins->flags = (uint8_t)(flags | (from_registers ? FROM_REGISTERS : 0) | (is_limited ? LIMITED : 0));
    ins->o[5] = all;
}

int ptx_decode_group(struct parser *parser, struct statement *s)
{
    if (strcmp(s->name, "wgmma") != 0)
        return 0;
    ptx_take(s, "sync");
    ptx_take(s, "aligned");
    if (ptx_take(s, "mma_async"))
        decode_product(parser, s);
    else if (ptx_take(s, "fence") || ptx_take(s, "commit_group") || ptx_take(s, "wait_group"))
        ptx_emit(parser, s, NULL, INS_NOTHING);
    else
        ptx_refuse(parser, "has an unsupported wgmma");
    return 1;
}

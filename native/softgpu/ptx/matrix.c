/* Tensor-core instructions: mma.sync, ldmatrix and stmatrix. */
#include "softgpu/ptx/vector.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- mma.sync ---------------------------------------------------------------------------------------------------- */

enum { ELEMENT_F16, ELEMENT_BF16, ELEMENT_TF32, ELEMENT_F64, ELEMENT_S8, ELEMENT_U8, ELEMENT_S4, ELEMENT_U4, ELEMENT_E4M3,
       ELEMENT_E5M2, ELEMENT_B1, ELEMENTS };
static const char *const elements[ELEMENTS] = {"f16", "bf16", "tf32", "f64", "s8", "u8", "s4", "u4", "e4m3", "e5m2", "b1"};
enum { K_MAX = 256 };

/* A shape with its element type: registers of A, B, C and D, in the order of the instruction. */
static const struct shape {
    const char *name, *element;
    uint16_t k;
    uint8_t m, n, kind, a, b, c;
    int is_wide; /* elements and sums of 64 bits */
} shapes[] = {
    {"m16n8k16", "f16", 16, 16, 8, ELEMENT_F16, 4, 2, 4, 0},   {"m16n8k8", "f16", 8, 16, 8, ELEMENT_F16, 2, 1, 4, 0},
    {"m16n8k16", "bf16", 16, 16, 8, ELEMENT_BF16, 4, 2, 4, 0}, {"m16n8k8", "bf16", 8, 16, 8, ELEMENT_BF16, 2, 1, 4, 0},
    {"m16n8k8", "tf32", 8, 16, 8, ELEMENT_TF32, 4, 2, 4, 0},   {"m16n8k4", "tf32", 4, 16, 8, ELEMENT_TF32, 2, 1, 4, 0},
    {"m8n8k4", "f64", 4, 8, 8, ELEMENT_F64, 1, 1, 2, 1},       {"m8n8k16", "s8", 16, 8, 8, ELEMENT_S8, 1, 1, 2, 0},
    {"m16n8k16", "s8", 16, 16, 8, ELEMENT_S8, 2, 1, 4, 0},     {"m16n8k32", "s8", 32, 16, 8, ELEMENT_S8, 4, 2, 4, 0},
    {"m8n8k16", "u8", 16, 8, 8, ELEMENT_U8, 1, 1, 2, 0},       {"m16n8k16", "u8", 16, 16, 8, ELEMENT_U8, 2, 1, 4, 0},
    {"m16n8k32", "u8", 32, 16, 8, ELEMENT_U8, 4, 2, 4, 0},     {"m8n8k32", "s4", 32, 8, 8, ELEMENT_S4, 1, 1, 2, 0},
    {"m16n8k32", "s4", 32, 16, 8, ELEMENT_S4, 2, 1, 4, 0},     {"m16n8k64", "s4", 64, 16, 8, ELEMENT_S4, 4, 2, 4, 0},
    {"m8n8k32", "u4", 32, 8, 8, ELEMENT_U4, 1, 1, 2, 0},       {"m16n8k32", "u4", 32, 16, 8, ELEMENT_U4, 2, 1, 4, 0},
    {"m16n8k64", "u4", 64, 16, 8, ELEMENT_U4, 4, 2, 4, 0},     {"m16n8k32", "e4m3", 32, 16, 8, ELEMENT_E4M3, 4, 2, 4, 0},
    {"m16n8k32", "e5m2", 32, 16, 8, ELEMENT_E5M2, 4, 2, 4, 0}, {"m16n8k16", "e4m3", 16, 16, 8, ELEMENT_E4M3, 2, 1, 4, 0},
    {"m16n8k16", "e5m2", 16, 16, 8, ELEMENT_E5M2, 2, 1, 4, 0}, {"m16n8k4", "f64", 4, 16, 8, ELEMENT_F64, 2, 1, 4, 1},
    {"m16n8k8", "f64", 8, 16, 8, ELEMENT_F64, 4, 2, 4, 1},     {"m16n8k16", "f64", 16, 16, 8, ELEMENT_F64, 8, 4, 4, 1},
    {"m8n8k128", "b1", 128, 8, 8, ELEMENT_B1, 1, 1, 2, 0},     {"m16n8k128", "b1", 128, 16, 8, ELEMENT_B1, 2, 1, 4, 0},
    {"m16n8k256", "b1", 256, 16, 8, ELEMENT_B1, 4, 2, 4, 0},
};

static double element(uint64_t bits, int kind, uint32_t part)
{
    switch (kind) {
    case ELEMENT_F16:
        return (double)half_float((uint32_t)bits >> (16 * part));
    case ELEMENT_BF16:
        return (double)bf16_float((uint32_t)bits >> (16 * part));
    case ELEMENT_TF32:
        return (double)bits_float((uint32_t)bits & 0xffffe000);
    case ELEMENT_S8:
        return (double)(int8_t)(bits >> (8 * part));
    case ELEMENT_U8:
        return (double)(uint8_t)(bits >> (8 * part));
    case ELEMENT_S4:
        return (double)((int8_t)(bits >> (4 * part) << 4) >> 4);
    case ELEMENT_U4:
        return (double)(bits >> (4 * part) & 15);
    case ELEMENT_B1:
        return (double)(bits >> part & 1);
    case ELEMENT_E4M3: case ELEMENT_E5M2:
        return (double)quarter_float((uint32_t)(bits >> (8 * part)) & 0xff, kind == ELEMENT_E5M2);
    default:
        return bits_double(bits);
    }
}

static uint64_t word(const struct ptx_warp *w, uint32_t slot, uint32_t t, int is_wide)
{
    const unsigned char *at = slot_at(w, slot);
    return is_wide ? ((const uint64_t *)at)[t] : ((const uint32_t *)at)[t];
}

/* Elements per register. Thread t = 4 g + q holds row g (and g + 8) of A, and column g of B; `per` consecutive elements
 * along k start at q * per. Registers of A alternate between the rows, then go on along k. */
static uint32_t per_register(int kind)
{
    switch (kind) {
    case ELEMENT_TF32: case ELEMENT_F64:
        return 1;
    case ELEMENT_F16: case ELEMENT_BF16:
        return 2;
    case ELEMENT_S4: case ELEMENT_U4:
        return 8;
    case ELEMENT_B1:
        return 32;
    default:
        return 4;
    }
}

static int is_integral(int kind)
{
    return (kind >= ELEMENT_S8 && kind <= ELEMENT_U4) || kind == ELEMENT_B1;
}

static void gather(const struct ptx_warp *w, const struct ptx_ins *i, const struct shape *s, double a[16][K_MAX],
                   double b[K_MAX][8])
{
    uint32_t per = per_register(s->kind), rows = s->m / 8;
    for (uint32_t t = 0; t < WARP; t++) {
        uint32_t g = t / 4, q = t % 4;
        for (uint32_t r = 0; r < s->a; r++)
            for (uint32_t p = 0; p < per; p++)
                a[g + 8 * (r % rows)][q * per + p + r / rows * 4 * per] =
                    element(word(w, i->list[s->c + r], t, s->is_wide), s->kind, p);
        for (uint32_t r = 0; r < s->b; r++)
            for (uint32_t p = 0; p < per; p++)
                b[q * per + p + r * 4 * per][g] =
                    element(word(w, i->list[s->c + s->a + r], t, s->is_wide), i->result ? i->result - 1 : s->kind, p);
    }
}

/* Sums of C and D: floats, halves in pairs (op 1), doubles or integers. The products of one element of D are added in
 * double precision and rounded once. */
static void accumulate(struct ptx_warp *w, const struct ptx_ins *i, const struct shape *s, double a[16][K_MAX],
                       double b[K_MAX][8])
{
    int is_half = i->op == 1, is_integer = is_integral(s->kind);
    uint32_t registers = is_half ? 2 : s->c, first_c = s->c + s->a + s->b;
    for (uint32_t t = 0; t < WARP; t++) {
        uint64_t sums[4]; /* read before D is written, whose registers may be those of C in another order */
        for (uint32_t r = 0; r < registers; r++)
            sums[r] = word(w, i->list[first_c + r], t, s->is_wide);
        for (uint32_t r = 0; r < registers; r++) {
            unsigned char *d = slot_at(w, i->list[r]);
            uint64_t c = sums[r], out = 0;
            for (uint32_t p = 0; p < (is_half ? 2u : 1u); p++) {
                uint32_t at = is_half ? r * 2 + p : r, row = t / 4 + 8 * (at / 2), column = t % 4 * 2 + at % 2;
                double sum = is_half      ? (double)half_float((uint32_t)c >> (16 * p))
                             : s->is_wide ? bits_double(c)
                             : is_integer ? (double)(int32_t)c
                                          : (double)bits_float((uint32_t)c);
                for (uint32_t k = 0; k < s->k; k++)
                    sum += i->flags & FLAG_NEGATED ? fabs(a[row][k] - b[k][column]) : a[row][k] * b[k][column];
                if (i->flags & FLAG_SAT)
                    sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
                if (is_half)
                    out |= (uint64_t)float_half((float)sum) << (16 * p);
                else
                    out = s->is_wide   ? double_bits(sum)
                          : is_integer ? (uint64_t)(uint32_t)(int64_t)sum
                                       : float_bits(one_nan((float)sum));
            }
            if (s->is_wide)
                ((uint64_t *)d)[t] = out;
            else
                ((uint32_t *)d)[t] = (uint32_t)out;
        }
    }
}

void ptx_mma(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    double a[16][K_MAX], b[K_MAX][8];
    (void)mask; /* it is executed by whole warps */
    gather(w, i, &shapes[i->source], a, b);
    accumulate(w, i, &shapes[i->source], a, b);
}

static int find_shape(struct statement *s)
{
    static const char *const sizes[] = {"m16n8k16", "m16n8k8", "m16n8k4", "m8n8k4", "m8n8k16", "m8n8k32", "m16n8k32",
                                        "m16n8k64", "m8n8k128", "m16n8k128", "m16n8k256", NULL};
    const char *size = ptx_take_any(s, sizes);
    for (size_t k = 0; size && k < sizeof shapes / sizeof shapes[0]; k++)
        if (strcmp(shapes[k].name, size) == 0 && s->modifier_count == 4 &&
            strcmp(shapes[k].element, s->modifiers[1]) == 0)
            return (int)k;
    return NONE;
}

/* The types are those of D, A, B and C. */
static int check_types(const struct statement *s, const struct shape *shape, int *is_half, int *is_mixed)
{
    const char *d = s->modifiers[0], *a = s->modifiers[1], *b = s->modifiers[2], *c = s->modifiers[3];
    int is_integer = is_integral(shape->kind), of_b = 0;
    const char *sum = shape->is_wide ? "f64" : is_integer ? "s32" : "f32";
    *is_half = (shape->kind == ELEMENT_F16 || shape->kind == ELEMENT_E4M3 || shape->kind == ELEMENT_E5M2) && strcmp(d, "f16") == 0 && strcmp(c, "f16") == 0;
    while (of_b < ELEMENTS && strcmp(elements[of_b], b) != 0)
        of_b++;
    /* A and B may differ in their signs or kinds, which follow each other in pairs from s8 on. */
    if (strcmp(a, b) != 0 && (shape->kind < ELEMENT_S8 || of_b == ELEMENTS || of_b / 2 != shape->kind / 2))
        return -1;
    *is_mixed = strcmp(a, b) != 0 ? of_b + 1 : 0;
    return *is_half || (strcmp(d, sum) == 0 && strcmp(c, sum) == 0) ? 0 : -1;
}

/* ---- m8n8k4 of halves: four products, each by 4 threads of either half of the warp -------------------------------- */

enum { A_IS_TURNED = 1, B_IS_TURNED = 2, C_IS_HALF = 4, D_IS_HALF = 8, QUAD_A = 8, QUAD_B = 10, QUAD_C = 12 };

/* Row and column of element `e` of a sum in thread t. */
static void quad_place(uint32_t t, uint32_t e, int is_half, uint32_t *row, uint32_t *column)
{
    *row = (is_half ? t % 4 : (t & 1) + (e & 2)) + t / 16 * 4;
    *column = is_half ? e : (e & 4) + (t & 2) + (e & 1);
}

static float quad_element(const struct ptx_warp *w, const struct ptx_ins *i, uint32_t first, uint32_t t, uint32_t e, int is_half)
{
    const uint32_t bits = (uint32_t)word(w, i->list[first + (is_half ? e / 2 : e)], t, 0);
    return is_half ? half_float(bits >> (16 * (e % 2))) : bits_float(bits);
}

static void multiply_quads(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    float a[4][8][4], b[4][4][8], sums[4][8][8];
    const int is_c_half = i->flags & C_IS_HALF, is_d_half = i->flags & D_IS_HALF;
    (void)mask;
    for (uint32_t t = 0; t < WARP; t++) {
        const uint32_t quad = t % 16 / 4, one = t % 4, from = t / 16 * 4;
        for (uint32_t e = 0; e < 4; e++) {
            const float x = quad_element(w, i, QUAD_A, t, e, 1), y = quad_element(w, i, QUAD_B, t, e, 1);
            a[quad][from + (i->flags & A_IS_TURNED ? e : one)][i->flags & A_IS_TURNED ? one : e] = x;
            b[quad][i->flags & B_IS_TURNED ? e : one][from + (i->flags & B_IS_TURNED ? one : e)] = y;
        }
        for (uint32_t e = 0, row, column; e < 8; e++) {
            quad_place(t, e, is_c_half, &row, &column);
            sums[quad][row][column] = quad_element(w, i, QUAD_C, t, e, is_c_half);
        }
    }
    for (uint32_t t = 0; t < WARP; t++)
        for (uint32_t e = 0, row, column; e < 8; e++) {
            quad_place(t, e, is_d_half, &row, &column);
            double sum = (double)sums[t % 16 / 4][row][column];
            for (uint32_t k = 0; k < 4; k++)
                sum += (double)a[t % 16 / 4][row][k] * (double)b[t % 16 / 4][k][column];
            uint32_t *d = &((uint32_t *)slot_at(w, i->list[is_d_half ? e / 2 : e]))[t];
            const uint32_t half = float_half((float)sum);
            *d = !is_d_half ? float_bits(one_nan((float)sum)) : e % 2 ? (*d & 0xffff) | half << 16 : half;
        }
}

/* Returns whether the statement is such a product; then it was handled. */
static int decode_quads(struct parser *parser, struct statement *s)
{
    const int count = s->modifier_count;
    if (count < 4 || strcmp(s->modifiers[count - 3], "f16") != 0 || strcmp(s->modifiers[count - 2], "f16") != 0)
        return 0;
    int is_ours = 0;
    for (int k = 0; k < count; k++)
        is_ours |= strcmp(s->modifiers[k], "m8n8k4") == 0;
    if (!is_ours)
        return 0;
    const struct type *d = ptx_named(s->modifiers[count - 4]), *c = ptx_named(s->modifiers[count - 1]), *b32 = ptx_named("b32");
    const int is_d_half = d && d->bytes == 2, is_c_half = c && c->bytes == 2;
    const int layout = count >= 6 && strcmp(s->modifiers[count - 5], "col") == 0 ? B_IS_TURNED : 0;
    const int flags = layout | (count >= 6 && strcmp(s->modifiers[count - 6], "col") == 0 ? A_IS_TURNED : 0) |
                      (is_c_half ? C_IS_HALF : 0) | (is_d_half ? D_IS_HALF : 0);
    const int counts[4] = {is_d_half ? 4 : 8, 2, 2, is_c_half ? 4 : 8}, firsts[4] = {0, QUAD_A, QUAD_B, QUAD_C};
    uint32_t *list = ptx_keep(parser->program, 20 * sizeof *list);
    int is_good = list && s->count == 4 && d && c && d->class == CLASS_FLOAT && c->class == CLASS_FLOAT && d->bytes <= 4 &&
                  c->bytes <= 4 && !d->is_pair && !c->is_pair;
    for (int o = 0; o < 4 && is_good; o++) {
        is_good = s->operands[o].kind == OPERAND_VECTOR && s->operands[o].count == counts[o];
        for (int k = 0; k < counts[o] && is_good; k++) {
            const struct operand *one = &s->members[s->operands[o].first + k];
            list[firsts[o] + k] = o ? ptx_source(parser, s, one, b32) : ptx_destination(parser, one, b32);
            is_good = list[firsts[o] + k] != NO_SLOT;
        }
    }
    if (!is_good) {
        ptx_refuse(parser, "has an unsupported mma");
        return 1;
    }
    const uint32_t all = ptx_constant(parser, UINT32_MAX, 4);
    struct ptx_ins *ins = ptx_emit(parser, s, multiply_quads, INS_WARP);
    ins->list = list;
    ins->flags = (uint8_t)flags;
    ins->o[5] = all;
    return 1;
}

/* movmatrix: thread t holds two elements of row t / 4, from column t % 4 * 2 on. */
static void transpose(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t from[WARP];
    (void)mask;
    memcpy(from, WORDS(1), sizeof from);
    for (uint32_t t = 0; t < WARP; t++) {
        uint32_t row = t / 4, column = t % 4 * 2;
        uint32_t low = from[column * 4 + row / 2] >> (row % 2 * 16), high = from[column * 4 + 4 + row / 2] >> (row % 2 * 16);
        WORDS(0)[t] = (low & 0xffff) | high << 16;
    }
}

static void decode_transposition(struct parser *parser, struct statement *s)
{
    const struct type *b32 = ptx_named("b32");
    if (!ptx_take(s, "sync") || !ptx_take(s, "aligned") || !ptx_take(s, "m8n8") || !ptx_take(s, "trans") ||
        !ptx_take(s, "b16") || !ptx_rest(parser, s) || s->count != 2) {
        ptx_refuse(parser, "has an unsupported movmatrix");
        return;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], b32), a = ptx_source(parser, s, &s->operands[1], b32);
    uint32_t all = ptx_constant(parser, UINT32_MAX, 4);
    struct ptx_ins *ins = ptx_emit(parser, s, transpose, INS_WARP);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->o[5] = all;
}

int ptx_decode_matrix(struct parser *parser, struct statement *s)
{
    int is_half = 0, is_mixed = 0;
    if (strcmp(s->name, "movmatrix") == 0) {
        decode_transposition(parser, s);
        return 1;
    }
    if (strcmp(s->name, "mma") != 0)
        return 0;
    if (decode_quads(parser, s))
        return 1;
    int is_row = ptx_take(s, "row"), is_column = ptx_take(s, "col");
    ptx_take(s, "sync");
    ptx_take(s, "aligned");
    int flags = (ptx_take(s, "satfinite") ? FLAG_SAT : 0) | (ptx_take(s, "xor") ? FLAG_NEGATED : 0);
    int is_and = ptx_take(s, "and"), is_counted = ptx_take(s, "popc");
    int index = find_shape(s), is_bits = index != NONE && shapes[index].kind == ELEMENT_B1;
    if (is_bits != is_counted || is_bits != (is_and || flags & FLAG_NEGATED) ||
        (flags & FLAG_SAT && !(index != NONE && is_integral(shapes[index].kind) && !is_bits)))
        index = NONE;
    if (!is_row || !is_column || index == NONE || s->count != 4 ||
        check_types(s, &shapes[index], &is_half, &is_mixed) < 0) {
        ptx_refuse(parser, "has an unsupported mma");
        return 1;
    }
    const struct shape *shape = &shapes[index];
    const uint32_t counts[4] = {is_half ? 2 : shape->c, shape->a, shape->b, is_half ? 2 : shape->c};
    const struct type *type = ptx_named(shape->is_wide ? "b64" : "b32");
    uint32_t *list = ptx_keep(parser->program, 32 * sizeof *list), at = 0;
    if (!list)
        return 1;
    for (int o = 0; o < 4; o++) {
        const struct operand *operand = &s->operands[o];
        uint32_t have = operand->kind == OPERAND_VECTOR ? (uint32_t)operand->count : 1;
        if (have != counts[o]) {
            ptx_refuse(parser, "has an mma with %u registers in place of %u", have, counts[o]);
            return 1;
        }
        if (o == 1)
            at = shape->c; /* a half accumulator leaves a gap */
        for (uint32_t k = 0; k < have; k++) {
            const struct operand *one = operand->kind == OPERAND_VECTOR ? &s->members[operand->first + (int)k] : operand;
            list[at++] = o ? ptx_source(parser, s, one, type) : ptx_destination(parser, one, type);
        }
    }
    uint32_t all = ptx_constant(parser, UINT32_MAX, 4);
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_mma, INS_WARP);
    ins->list = list;
    ins->source = (uint8_t)index;
    ins->result = (uint8_t)is_mixed;
    ins->op = (uint8_t)is_half;
    ins->flags = (uint8_t)flags;
    ins->o[5] = all;
    return 1;
}

/* ---- ldmatrix, stmatrix: matrices of 8 rows of 16 bytes; thread 8 m + r holds the address of row r of matrix m ----- */

static void *row_at(struct ptx_warp *w, const struct ptx_ins *i, uint32_t thread, int is_write)
{
    uint64_t address = (i->flags & FLAG_WIDE ? LONGS(1)[thread] : WORDS(1)[thread]) + (uint64_t)i->immediate;
    return ptx_memory_at(w, address, 16, i->space, thread, is_write);
}

void ptx_load_matrix(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint16_t rows[4][8][8];
    (void)mask;
    for (uint32_t m = 0; m < i->count; m++)
        for (uint32_t r = 0; r < 8; r++) {
            const void *from = row_at(w, i, m * 8 + r, 0);
            if (!from)
                return;
            memcpy(rows[m][r], from, 16);
        }
    for (uint32_t m = 0; m < i->count; m++)
        for (uint32_t t = 0; t < WARP; t++) {
            uint32_t r = t / 4, c = t % 4 * 2;
            uint32_t low = i->op ? rows[m][c][r] : rows[m][r][c], high = i->op ? rows[m][c + 1][r] : rows[m][r][c + 1];
            ((uint32_t *)slot_at(w, i->list[m]))[t] = low | high << 16;
        }
}

void ptx_store_matrix(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    (void)mask;
    for (uint32_t m = 0; m < i->count; m++)
        for (uint32_t r = 0; r < 8; r++) {
            uint16_t *to = row_at(w, i, m * 8 + r, 1);
            if (!to)
                return;
            for (uint32_t c = 0; c < 8; c++) {
                uint32_t t = i->op ? c * 4 + r / 2 : r * 4 + c / 2, part = i->op ? r % 2 : c % 2;
                to[c] = (uint16_t)(((uint32_t *)slot_at(w, i->list[m]))[t] >> (16 * part));
            }
        }
}

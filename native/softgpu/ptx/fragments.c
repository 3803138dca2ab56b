/* Tensor-core instructions on opaque fragments: wmma.load, wmma.store and wmma.mma. PTX does not say which thread holds
 * which element. Here a fragment of A or B is the matrix in memory order, split among the threads; registers beyond that
 * repeat the first ones. A fragment of C or D has the arrangement of mma.sync: two elements of each part of 8 by 8. */
#include "softgpu/ptx/vector.h"

#include <stdlib.h>

enum { ELEMENT_F16, ELEMENT_BF16, ELEMENT_TF32, ELEMENT_F64, ELEMENT_S8, ELEMENT_U8, ELEMENT_F32, ELEMENT_S32, ELEMENTS };
static const char *const elements[ELEMENTS] = {"f16", "bf16", "tf32", "f64", "s8", "u8", "f32", "s32"};
static const uint8_t element_bytes[ELEMENTS] = {2, 2, 4, 8, 1, 1, 4, 4};

static const struct shape {
    const char *name;
    uint8_t m, n, k;
} shapes[] = {{"m16n16k16", 16, 16, 16}, {"m8n32k16", 8, 32, 16}, {"m32n8k16", 32, 8, 16},
              {"m16n16k8", 16, 16, 8},   {"m8n8k4", 8, 8, 4}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], MAX_ELEMENTS = 512, MAX_REGISTERS = 8 };

enum { MATRIX_A, MATRIX_B, MATRIX_C };

struct fragment { /* of one instruction, for reading and writing its registers */
    uint32_t rows, columns, registers;
    const uint32_t *slots;
    uint8_t kind, matrix;
};

static struct fragment fragment_of(const struct shape *shape, int matrix, int kind, const uint32_t *slots,
                                   uint32_t registers)
{
    return (struct fragment){.rows = matrix == MATRIX_B ? shape->k : shape->m,
                             .columns = matrix == MATRIX_A ? shape->k : shape->n, .registers = registers,
                             .slots = slots, .kind = (uint8_t)kind, .matrix = (uint8_t)matrix};
}

/* The number of elements that a register holds. */
static uint32_t per_register(const struct fragment *f)
{
    return element_bytes[f->kind] < 4 ? 4u / element_bytes[f->kind] : 1;
}

/* Return the element of thread `t` at `index`, as its number in row-major order. */
static uint32_t element_at(const struct fragment *f, uint32_t t, uint32_t index)
{
    uint32_t per_thread = f->rows * f->columns / WARP;
    if (f->matrix != MATRIX_C)
        return t * per_thread + index % per_thread;
    uint32_t tile = index / 2, tiles = f->rows / 8;
    uint32_t row = tile % tiles * 8 + t / 4, column = tile / tiles * 8 + t % 4 * 2 + index % 2;
    return row * f->columns + column;
}

static uint64_t get(const struct ptx_warp *w, const struct fragment *f, uint32_t t, uint32_t index)
{
    uint32_t per = per_register(f), bits = element_bytes[f->kind] * 8u;
    const unsigned char *from = slot_at(w, f->slots[index / per]);
    if (bits == 64)
        return ((const uint64_t *)from)[t];
    uint32_t word = ((const uint32_t *)from)[t];
    return bits == 32 ? word : word >> (bits * (index % per)) & ((1u << bits) - 1);
}

static void put(struct ptx_warp *w, const struct fragment *f, uint32_t t, uint32_t index, uint64_t v)
{
    uint32_t per = per_register(f), bits = element_bytes[f->kind] * 8u, shift = bits * (index % per);
    unsigned char *to = slot_at(w, f->slots[index / per]);
    if (bits == 64) {
        ((uint64_t *)to)[t] = v;
        return;
    }
    uint32_t keep = bits == 32 ? 0 : ~(((1u << bits) - 1) << shift);
    ((uint32_t *)to)[t] = (((uint32_t *)to)[t] & keep) | (uint32_t)v << shift;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------- */

/* A matrix in memory. The address and the distance of rows or columns are those of the first thread; all have the same. */
struct matrix {
    uint64_t base, distance;
    int is_column;
};

static struct matrix matrix_of(const struct ptx_warp *w, const struct ptx_ins *i, const struct fragment *f)
{
    uint32_t first = (uint32_t)__builtin_ctz(w->alive);
    return (struct matrix){
        .base = (i->flags & FLAG_WIDE ? LONGS(1)[first] : WORDS(1)[first]) + (uint64_t)i->immediate,
        .distance = i->o[2] == NO_SLOT ? (i->op ? f->rows : f->columns) : WORDS(2)[first], .is_column = i->op};
}

static uint64_t address_of(const struct matrix *matrix, const struct fragment *f, uint32_t element)
{
    uint64_t row = element / f->columns, column = element % f->columns;
    uint64_t at = matrix->is_column ? column * matrix->distance + row : row * matrix->distance + column;
    return matrix->base + at * element_bytes[f->kind];
}

static void transfer(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    struct fragment f = fragment_of(&shapes[i->source], i->round, i->result, i->list, i->count);
    struct matrix matrix = matrix_of(w, i, &f);
    int is_store = (i->flags & FLAG_NEGATED) != 0;
    (void)mask; /* it is executed by whole warps */
    for (uint32_t t = 0; t < WARP; t++)
        for (uint32_t k = 0; k < f.registers * per_register(&f); k++) {
            uint64_t v = 0;
            uint64_t address = address_of(&matrix, &f, element_at(&f, t, k));
            unsigned char *at = ptx_memory_at(w, address, element_bytes[f.kind], i->space, t, is_store);
            if (!at)
                return;
            if (is_store) {
                v = get(w, &f, t, k);
                memcpy(at, &v, element_bytes[f.kind]);
            } else {
                memcpy(&v, at, element_bytes[f.kind]);
                put(w, &f, t, k, v);
            }
        }
}

/* ---- Products ------------------------------------------------------------------------------------------------------ */

static double value_of(uint64_t bits, int kind)
{
    switch (kind) {
    case ELEMENT_F16:
        return (double)half_float((uint32_t)bits);
    case ELEMENT_BF16:
        return (double)bf16_float((uint32_t)bits);
    case ELEMENT_TF32:
        return (double)bits_float((uint32_t)bits & 0xffffe000);
    case ELEMENT_F32:
        return (double)bits_float((uint32_t)bits);
    case ELEMENT_S8:
        return (double)(int8_t)bits;
    case ELEMENT_U8:
        return (double)(uint8_t)bits;
    case ELEMENT_S32:
        return (double)(int32_t)bits;
    default:
        return bits_double(bits);
    }
}

static uint64_t rounded(double v, int kind, int is_saturating)
{
    if (kind == ELEMENT_F64)
        return double_bits(v);
    if (kind == ELEMENT_F16)
        return float_half((float)v);
    if (kind == ELEMENT_F32)
        return float_bits(one_nan((float)v));
    if (is_saturating)
        v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
    return (uint64_t)(uint32_t)(int64_t)v;
}

static void read_matrix(const struct ptx_warp *w, const struct fragment *f, double *values)
{
    uint32_t count = f->matrix == MATRIX_C ? f->registers * per_register(f) : f->rows * f->columns / WARP;
    for (uint32_t t = 0; t < WARP; t++)
        for (uint32_t k = 0; k < count; k++)
            values[element_at(f, t, k)] = value_of(get(w, f, t, k), f->kind);
}

struct product { /* what an instruction multiplies */
    struct fragment d, a, b, c;
    int is_saturating;
};

static void multiply(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    const struct product *p = (const struct product *)(const void *)i->list;
    double a[MAX_ELEMENTS], b[MAX_ELEMENTS], c[MAX_ELEMENTS];
    (void)mask;
    read_matrix(w, &p->a, a);
    read_matrix(w, &p->b, b);
    read_matrix(w, &p->c, c);
    for (uint32_t t = 0; t < WARP; t++)
        for (uint32_t k = 0; k < p->d.registers * per_register(&p->d); k++) {
            uint32_t element = element_at(&p->d, t, k), row = element / p->d.columns, column = element % p->d.columns;
            double sum = c[element];
            for (uint32_t x = 0; x < p->a.columns; x++)
                sum += a[row * p->a.columns + x] * b[x * p->b.columns + column];
            put(w, &p->d, t, k, rounded(sum, p->d.kind, p->is_saturating));
        }
}

/* ---- Decoding ------------------------------------------------------------------------------------------------------ */

static int take_shape(struct statement *s)
{
    for (int k = 0; k < (int)SHAPES; k++)
        if (ptx_take(s, shapes[k].name))
            return k;
    return NONE;
}

static int take_element(struct statement *s)
{
    for (int k = 0; s->modifier_count && k < ELEMENTS; k++)
        if (strcmp(elements[k], s->modifiers[s->modifier_count - 1]) == 0) {
            s->modifier_count--;
            return k;
        }
    return NONE;
}

/* Whether A and B have such elements in this shape. */
static int is_factor(int shape, int kind)
{
    switch (kind) {
    case ELEMENT_F16: case ELEMENT_BF16: case ELEMENT_S8: case ELEMENT_U8:
        return shapes[shape].k == 16;
    case ELEMENT_TF32:
        return shapes[shape].k == 8;
    default:
        return kind == ELEMENT_F64 && shapes[shape].k == 4;
    }
}

static int is_sum(int shape, int kind)
{
    switch (kind) {
    case ELEMENT_F16: case ELEMENT_S32:
        return shapes[shape].k == 16;
    case ELEMENT_F32:
        return shapes[shape].k >= 8;
    default:
        return kind == ELEMENT_F64 && shapes[shape].k == 4;
    }
}

/* The number of registers of a fragment. A and B of f16 have eight in every shape. */
static uint32_t registers_of(int shape, int matrix, int kind)
{
    struct fragment f = fragment_of(&shapes[shape], matrix, kind, NULL, 0);
    return matrix != MATRIX_C && kind == ELEMENT_F16 ? MAX_REGISTERS : f.rows * f.columns / WARP / per_register(&f);
}

/* Return the slots of a fragment's registers; NULL: they do not fit, and the function is refused. */
static uint32_t *take_registers(struct parser *parser, struct statement *s, const struct operand *operand,
                                uint32_t count, int kind, int is_destination)
{
    const struct type *type = ptx_named(kind == ELEMENT_F64 ? "b64" : "b32");
    uint32_t *list = ptx_keep(parser->program, count * sizeof *list);
    uint32_t have = operand->kind == OPERAND_VECTOR ? (uint32_t)operand->count : 1;
    if (have != count) {
        ptx_refuse(parser, "has a fragment of %u registers in place of %u", have, count);
        return NULL;
    }
    for (uint32_t k = 0; list && k < count; k++) {
        const struct operand *one = operand->kind == OPERAND_VECTOR ? &s->members[operand->first + (int)k] : operand;
        list[k] = is_destination ? ptx_destination(parser, one, type) : ptx_source(parser, s, one, type);
        if (list[k] == NO_SLOT)
            return NULL;
    }
    return list;
}

static void decode_transfer(struct parser *parser, struct statement *s, int is_store)
{
    int matrix = is_store          ? (ptx_take(s, "d") ? MATRIX_C : NONE)
                 : ptx_take(s, "a") ? MATRIX_A
                 : ptx_take(s, "b") ? MATRIX_B
                 : ptx_take(s, "c") ? MATRIX_C
                                    : NONE;
    int is_column = ptx_take(s, "col"), is_row = ptx_take(s, "row"), shape = take_shape(s), kind = take_element(s);
    enum space space = ptx_take_space(s);
    struct ptx_place place;
    int is_known = matrix != NONE && shape != NONE && is_column + is_row == 1 &&
                   (matrix == MATRIX_C ? is_sum(shape, kind) : is_factor(shape, kind));
    if (!is_known || !ptx_rest(parser, s) || s->count < 2 || s->count > 3) {
        ptx_refuse(parser, "has an unsupported wmma.%s", is_store ? "store" : "load");
        return;
    }
    uint32_t count = registers_of(shape, matrix, kind), distance = NO_SLOT;
    uint32_t *list = take_registers(parser, s, &s->operands[is_store], count, kind, !is_store);
    if (!list || ptx_resolve_place(parser, s, &s->operands[!is_store], space, &place) < 0)
        return;
    if (s->count == 3 && (distance = ptx_source(parser, s, &s->operands[2], ptx_named("b32"))) == NO_SLOT)
        return;
    uint32_t all = ptx_constant(parser, UINT32_MAX, 4);
    struct ptx_ins *ins = ptx_emit(parser, s, transfer, INS_WARP);
    ptx_set_place(ins, &place);
    ins->o[2] = distance;
    ins->o[5] = all;
    ins->list = list;
    ins->count = (uint8_t)count;
    ins->source = (uint8_t)shape;
    ins->result = (uint8_t)kind;
    ins->round = (uint8_t)matrix;
    ins->op = (uint8_t)is_column;
    ins->flags |= is_store ? FLAG_NEGATED : 0;
}

/* The types are those of D and C with factors of f16, and otherwise those of D, A, B and C. */
static int take_types(struct statement *s, int shape, int kinds[4])
{
    int is_short = s->modifier_count == 2;
    if (!is_short && s->modifier_count != 4)
        return -1;
    kinds[3] = take_element(s);
    kinds[2] = is_short ? ELEMENT_F16 : take_element(s);
    kinds[1] = is_short ? ELEMENT_F16 : take_element(s);
    kinds[0] = take_element(s);
    if (kinds[1] != kinds[2] || !is_factor(shape, kinds[1]) || !is_sum(shape, kinds[0]) || !is_sum(shape, kinds[3]))
        return -1;
    int is_integer = kinds[1] == ELEMENT_S8 || kinds[1] == ELEMENT_U8;
    for (int k = 0; k < 4; k += 3)
        if ((kinds[k] == ELEMENT_S32) != is_integer || (kinds[k] == ELEMENT_F16 && kinds[1] != ELEMENT_F16))
            return -1;
    return 0;
}

static void decode_product(struct parser *parser, struct statement *s)
{
    int kinds[4], shape = take_shape(s), is_saturating = ptx_take(s, "satfinite");
    ptx_take(s, "rn");
    while (ptx_take(s, "row") || ptx_take(s, "col")) /* fragments do not depend on the order in memory */
        ;
    struct product *product = ptx_keep(parser->program, sizeof *product);
    if (shape == NONE || s->count != 4 || take_types(s, shape, kinds) < 0) {
        ptx_refuse(parser, "has an unsupported wmma.mma");
        return;
    }
    if (!product)
        return;
    static const int matrices[4] = {MATRIX_C, MATRIX_A, MATRIX_B, MATRIX_C};
    struct fragment *const parts[4] = {&product->d, &product->a, &product->b, &product->c};
    for (int k = 0; k < 4; k++) {
        uint32_t count = registers_of(shape, matrices[k], kinds[k]);
        uint32_t *list = take_registers(parser, s, &s->operands[k], count, kinds[k], k == 0);
        if (!list)
            return;
        *parts[k] = fragment_of(&shapes[shape], matrices[k], kinds[k], list, count);
    }
    product->is_saturating = is_saturating;
    uint32_t all = ptx_constant(parser, UINT32_MAX, 4);
    struct ptx_ins *ins = ptx_emit(parser, s, multiply, INS_WARP);
    ins->list = (const uint32_t *)(const void *)product;
    ins->o[5] = all;
}

int ptx_decode_fragments(struct parser *parser, struct statement *s)
{
    if (strcmp(s->name, "wmma") != 0)
        return 0;
    ptx_take(s, "sync");
    ptx_take(s, "aligned");
    if (ptx_take(s, "load"))
        decode_transfer(parser, s, 0);
    else if (ptx_take(s, "store"))
        decode_transfer(parser, s, 1);
    else if (ptx_take(s, "mma"))
        decode_product(parser, s);
    else
        ptx_refuse(parser, "has an unsupported wmma");
    return 1;
}

/* Video instructions on two halves or four bytes: vadd2 to vset4. */
#include "softgpu/ptx/vector.h"

static const char *const operations[] = {"vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "vset", NULL};
enum { VADD, VSUB, VAVRG, VABSDIFF, VMIN, VMAX, VSET };
static const char *const comparisons[] = {"eq", "ne", "lt", "le", "gt", "ge", NULL};
enum { EQ, NE, LT, LE, GT, GE };
enum { SIGNED_A = 1, SIGNED_B = 2, SIGNED_D = 4, SATURATE = 8, ACCUMULATE = 16 };

static int32_t part_of(uint32_t v, uint32_t bits, uint32_t k, int is_signed)
{
    uint32_t part = v >> (bits * k) & ((1u << bits) - 1);
    return is_signed && part >> (bits - 1) ? (int32_t)part - (1 << bits) : (int32_t)part;
}

static int compare(int op, int32_t a, int32_t b)
{
    return op == EQ ? a == b : op == NE ? a != b : op == LT ? a < b : op == LE ? a <= b : op == GT ? a > b : a >= b;
}

static int32_t combine(const struct ptx_ins *i, int32_t a, int32_t b)
{
    switch (i->op) {
    case VADD:
        return a + b;
    case VSUB:
        return a - b;
    case VAVRG:
        return (a + b + (a + b >= 0)) >> 1;
    case VABSDIFF:
        return a > b ? a - b : b - a;
    case VMIN:
        return a < b ? a : b;
    case VMAX:
        return a > b ? a : b;
    default:
        return compare(i->round, a, b);
    }
}

static void execute(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t bits = 32 / i->count;
    int32_t low = i->flags & SIGNED_D ? -(1 << (bits - 1)) : 0;
    int32_t high = i->flags & SIGNED_D ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
    for (int t = 0; t < WARP; t++) {
        uint32_t a = WORDS(1)[t], b = WORDS(2)[t], v = 0, sum = WORDS(3)[t];
        if (!(mask & ptx_bit[t]))
            continue;
        for (uint32_t k = 0; k < i->count; k++) {
            int32_t r = combine(i, part_of(a, bits, k, i->flags & SIGNED_A), part_of(b, bits, k, i->flags & SIGNED_B));
            if (i->flags & SATURATE)
                r = r < low ? low : r > high ? high : r;
            v |= ((uint32_t)r & ((1u << bits) - 1)) << (bits * k);
            sum += (uint32_t)r;
        }
        WORDS(0)[t] = i->flags & ACCUMULATE ? sum : v;
    }
}

/* Return the operation, whose name ends with the number of parts; NONE: another instruction. */
static int find(const char *name, uint32_t *parts)
{
    size_t length = strlen(name);
    for (int op = 0; operations[op]; op++)
        if (length == strlen(operations[op]) + 1 && memcmp(name, operations[op], length - 1) == 0 &&
            (name[length - 1] == '2' || name[length - 1] == '4')) {
            *parts = (uint32_t)(name[length - 1] - '0');
            return op;
        }
    return NONE;
}

static int take_sign(struct statement *s, int bit, int *flags)
{
    const struct type *type = ptx_take_type(s);
    if (!type || type->bytes != 4 || (type->class != CLASS_SIGNED && type->class != CLASS_UNSIGNED))
        return -1;
    *flags |= type->class == CLASS_SIGNED ? bit : 0;
    return 0;
}

int ptx_decode_video(struct parser *parser, struct statement *s)
{
    const struct type *b32 = ptx_named("b32");
    uint32_t parts = 0, slots[4];
    int op = find(s->name, &parts), flags = 0, comparison = 0;
    if (op == NONE)
        return 0;
    flags |= ptx_take(s, "sat") ? SATURATE : 0;
    flags |= ptx_take(s, "add") ? ACCUMULATE : 0;
    const char *named = op == VSET ? ptx_take_any(s, comparisons) : comparisons[0];
    while (named && strcmp(comparisons[comparison], named) != 0)
        comparison++;
    if (!named || take_sign(s, SIGNED_B, &flags) < 0 || take_sign(s, SIGNED_A, &flags) < 0 ||
        (op != VSET && take_sign(s, SIGNED_D, &flags) < 0) || s->count != 4 || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported %.20s", s->name); /* also with selected or reordered parts */
        return 1;
    }
    for (int k = 0; k < 4; k++) {
        slots[k] = k ? ptx_source(parser, s, &s->operands[k], b32) : ptx_destination(parser, &s->operands[0], b32);
        if (slots[k] == NO_SLOT)
            return 1;
    }
    struct ptx_ins *ins = ptx_emit(parser, s, execute, INS_PLAIN);
    memcpy(ins->o, slots, sizeof slots);
    ins->op = (uint8_t)op;
    ins->count = (uint8_t)parts;
    ins->round = (uint8_t)comparison;
    ins->flags = (uint8_t)flags;
    return 1;
}

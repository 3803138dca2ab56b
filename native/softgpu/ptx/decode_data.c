/* Decoding of moves, conversions, comparisons, selections, and arithmetic with a carry or a rounding mode. */
#include "softgpu/ptx/internal.h"

#include <stdio.h>
#include <string.h>

void ptx_rounded(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);

static int is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return 1;
    return 0;
}

/* ---- mov --------------------------------------------------------------------------------------------------------- */

static int decode_pack(struct parser *parser, struct statement *s, const struct type *type)
{
    int is_unpack = s->operands[0].kind == OPERAND_VECTOR;
    const struct operand *vector = &s->operands[is_unpack ? 0 : 1], *scalar = &s->operands[is_unpack ? 1 : 0];
    int count = vector->count;
    if (count < 2 || count > 4 || type->bytes % (uint32_t)count || type->bytes > 8) {
        ptx_refuse(parser, "has an unsupported mov of a vector");
        return 1;
    }
    char name[16];
    snprintf(name, sizeof name, "b%u", type->bytes * 8 / (uint32_t)count);
    const struct type *element = ptx_named(name);
    uint32_t *list = ptx_keep(parser->program, (size_t)count * sizeof *list);
    if (!list)
        return 1;
    for (int i = 0; i < count; i++) {
        const struct operand *one = &s->members[vector->first + i];
        list[i] = is_unpack ? ptx_destination(parser, one, element) : ptx_source(parser, s, one, element);
        if (list[i] == NO_SLOT)
            return 1;
    }
    uint32_t slot = is_unpack ? ptx_source(parser, s, scalar, type) : ptx_destination(parser, scalar, type);
    struct ptx_ins *ins = ptx_emit(parser, s, is_unpack ? ptx_unpack : ptx_pack, INS_PLAIN);
    ins->o[0] = slot;
    ins->list = list;
    ins->count = (uint8_t)count;
    ins->bytes = (uint8_t)element->bytes;
    return 1;
}

static int decode_move(struct parser *parser, struct statement *s)
{
    const struct type *type = s->modifier_count ? ptx_named(s->modifiers[s->modifier_count - 1]) : NULL;
    if (s->count == 2 && type &&
        (s->operands[0].kind == OPERAND_VECTOR || s->operands[1].kind == OPERAND_VECTOR))
        return decode_pack(parser, s, type);
    return 0;
}

/* ---- cvt --------------------------------------------------------------------------------------------------------- */

static uint8_t type_code(const struct type *type)
{
    uint32_t size = type->bytes == 8 ? 3 : type->bytes == 4 ? 2 : type->bytes == 2 ? 1 : 0;
    return (uint8_t)((uint32_t)type->class << 2 | size);
}

static int is_real(const struct type *type)
{
    return type->class == CLASS_FLOAT || type->class == CLASS_BF16;
}

/* Return the key of a handler for frequent conversions; NULL: the general one is needed. */
static const char *fast_conversion(const struct type *to, const struct type *from, uint32_t register_bytes, int round,
                                   int flags)
{
    static const struct {
        const char *to, *from, *key;
    } reals[] = {{"f32", "s32", "real.f32.s32"}, {"f32", "u32", "real.f32.u32"}, {"f64", "f32", "real.f64.f32"},
                 {"f32", "f16", "real.f32.f16"}, {"f16", "f32", "real.f16.f32"}, {"f32", "bf16", "real.f32.bf16"},
                 {"bf16", "f32", "real.bf16.f32"}};
    if (flags || (round && !is_real(from)))
        return NULL;
    if (round)
        return NULL;
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        if (strcmp(to->name, reals[i].to) == 0 && strcmp(from->name, reals[i].from) == 0)
            return reals[i].key;
    if (is_real(to) || is_real(from) || register_bytes != to->bytes)
        return NULL;
    int is_signed = from->class == CLASS_SIGNED;
    if (to->bytes == 8)
        return from->bytes == 4 ? (is_signed ? "widen.s32" : "widen.u32") : from->bytes == 8 ? "mov.b64" : NULL;
    if (to->bytes == 4)
        return from->bytes == 8   ? "narrow.32"
               : from->bytes == 4 ? "mov.b32"
               : from->bytes == 2 ? (is_signed ? "extend.s16" : "narrow.16")
                                  : (is_signed ? "extend.s8" : "narrow.8");
    return to->bytes == 2 && (from->bytes == 4 || from->bytes == 2) ? "narrow.16" : NULL;
}

static void decode_pair_conversion(struct parser *parser, struct statement *s, const struct type *to, int flags)
{
    const struct type *f32 = ptx_named("f32"), *b32 = ptx_named("b32");
    uint32_t d = ptx_destination(parser, &s->operands[0], b32), a = ptx_source(parser, s, &s->operands[1], f32);
    uint32_t b = ptx_source(parser, s, &s->operands[2], f32);
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_convert_pair, INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->o[2] = b;
    ins->flags = (uint8_t)(flags | (to->class == CLASS_BF16 ? FLAG_BF16 : 0));
}

/* Conversions of pairs from and to numbers of eight bits. */
static int decode_quarter(struct parser *parser, struct statement *s)
{
    static const char *const types[] = {"e4m3x2", "e5m2x2", NULL};
    const int is_from = is_one_of(s->modifiers[s->modifier_count - 1], types);
    const char *named = ptx_take_any(s, types);
    int is_saturating = ptx_take(s, "satfinite");
    int flags = ptx_take(s, "relu") ? FLAG_RELU : 0, is_nearest = ptx_take(s, "rn");
    const struct type *other = ptx_take_type(s), *b16 = ptx_named("b16"), *b32 = ptx_named("b32");
    int is_single = other && strcmp(other->name, "f32") == 0, is_half = other && strcmp(other->name, "f16x2") == 0;
    if (!is_nearest || is_saturating == is_from || !(is_half || (is_single && !is_from)) || !ptx_rest(parser, s) ||
        s->count != 2 + is_single) {
        ptx_refuse(parser, "has an unsupported conversion of %s", named);
        return 1;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], is_from ? b32 : b16);
    uint32_t a = ptx_source(parser, s, &s->operands[1], is_from ? b16 : is_single ? other : b32);
    uint32_t b = is_single ? ptx_source(parser, s, &s->operands[2], other) : a;
    if (d == NO_SLOT || a == NO_SLOT || b == NO_SLOT)
        return 1;
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_convert_quarter, INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->o[2] = b;
    ins->op = (uint8_t)(is_from ? 2 : is_half);
    ins->source = named == types[1];
    ins->flags = (uint8_t)flags;
    return 1;
}

static int has_modifier(const struct statement *s, const char *const *names)
{
    for (int i = 0; i < s->modifier_count; i++)
        if (is_one_of(s->modifiers[i], names))
            return 1;
    return 0;
}

static int decode_conversion(struct parser *parser, struct statement *s)
{
    static const char *const quarters[] = {"e4m3x2", "e5m2x2", NULL};
    if (has_modifier(s, quarters))
        return decode_quarter(parser, s);
    static const char *const integer_modes[] = {"rni", "rzi", "rmi", "rpi", NULL};
    static const char *const modes[] = {"rn", "rz", "rm", "rp", "rna", NULL};
    const char *integer_mode = ptx_take_any(s, integer_modes), *mode = ptx_take_any(s, modes);
    int flags = (ptx_take(s, "ftz") ? FLAG_FTZ : 0) | (ptx_take(s, "sat") ? FLAG_SAT : 0);
    flags |= ptx_take(s, "relu") ? FLAG_RELU : 0;
    const struct type *from = ptx_take_type(s), *to = ptx_take_type(s);
    if (!from || !to || !ptx_rest(parser, s) || from->is_pair) {
        ptx_refuse(parser, "has an unsupported conversion");
        return 1;
    }
    int round = 0;
    for (int i = 0; integer_mode && integer_modes[i]; i++)
        if (integer_modes[i] == integer_mode)
            round = i;
    for (int i = 0; mode && modes[i]; i++)
        if (modes[i] == mode)
            round = i;
    int is_tf32 = strcmp(to->name, "tf32") == 0;
    if (s->count == 3 && to->is_pair && round == ROUND_NEAREST && strcmp(from->name, "f32") == 0 &&
        !(flags & FLAG_SAT)) {
        decode_pair_conversion(parser, s, to, flags);
        return 1;
    }
    if (s->count != 2 || to->is_pair || (round == ROUND_AWAY && !is_tf32) || to->bytes > 8 || from->bytes > 8) {
        ptx_refuse(parser, "has an unsupported conversion to %s", to->name);
        return 1;
    }
    if (!integer_mode && !is_real(to) && is_real(from)) {
        ptx_refuse(parser, "has a conversion without rounding");
        return 1;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], to), a = ptx_source(parser, s, &s->operands[1], from);
    if (d == NO_SLOT || a == NO_SLOT)
        return 1;
    uint32_t register_bytes = s->operands[0].type ? s->operands[0].type->bytes : to->bytes;
    const char *fast = integer_mode || is_tf32 ? NULL : fast_conversion(to, from, register_bytes, round, flags);
    struct ptx_ins *ins = ptx_emit(parser, s, fast ? ptx_handler_find(fast, NULL) : ptx_convert, INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->source = type_code(from);
    ins->result = type_code(to);
    ins->round = (uint8_t)round;
    ins->flags = (uint8_t)(flags | (integer_mode ? FLAG_WIDE : 0) | (is_tf32 ? FLAG_BF16 : 0));
    ins->bytes = (uint8_t)register_bytes;
    return 1;
}

/* ---- Comparisons and selections ---------------------------------------------------------------------------------- */

struct comparison {
    const char *cmp;
    int op, is_ftz;
};

static int take_comparison(struct statement *s, struct comparison *c)
{
    static const char *const cmps[] = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu",
                                       "leu", "gtu", "geu", "num", "nan", NULL};
    c->cmp = ptx_take_any(s, cmps);
    c->op = ptx_take(s, "and") ? 1 : ptx_take(s, "or") ? 2 : ptx_take(s, "xor") ? 3 : 0;
    c->is_ftz = ptx_take(s, "ftz");
    return c->cmp != NULL;
}

static uint32_t emit_upper_half(struct parser *parser, uint32_t slot)
{
    uint32_t d = ptx_new_register(parser, 128, 64), sixteen = ptx_constant(parser, 16, 4);
    struct ptx_ins *ins = ptx_emit(parser, NULL, ptx_handler_find("shr.u32", NULL), INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = slot;
    ins->o[2] = sixteen;
    return d;
}

/* Of pairs: `p` gets the result of the lower halves and `q` that of the upper ones. */
static int emit_pair_comparison(struct parser *parser, struct statement *s, const struct comparison *c,
                                const struct type *type, int at, uint32_t p, uint32_t q)
{
    char key[48];
    const struct type *b32 = ptx_named("b32");
    snprintf(key, sizeof key, "setp.%s.%s", c->cmp, type->class == CLASS_BF16 ? "bf16" : "f16");
    ptx_handler run = ptx_handler_find(key, NULL);
    if (!run || c->is_ftz || s->count != at + 2 + (c->op != 0)) {
        ptx_refuse(parser, "contains the unsupported comparison %.60s of pairs", key);
        return -1;
    }
    uint32_t a = ptx_source(parser, s, &s->operands[at], b32), b = ptx_source(parser, s, &s->operands[at + 1], b32);
    uint32_t with = c->op ? ptx_source(parser, s, &s->operands[at + 2], ptx_named("pred")) : 0;
    if (a == NO_SLOT || b == NO_SLOT || with == NO_SLOT)
        return -1;
    uint32_t results[2] = {p, q}, as[2] = {a, emit_upper_half(parser, a)}, bs[2] = {b, emit_upper_half(parser, b)};
    uint32_t other = c->op && p == with ? ptx_new_register(parser, 64, 64) : with;
    if (other != with) { /* the first result would change the predicate that the second one is combined with */
        struct ptx_ins *copy = ptx_emit(parser, NULL, ptx_handler_find("mov.pred", NULL), INS_PLAIN);
        copy->o[0] = other;
        copy->o[1] = with;
    }
    for (int k = 0; k < 2; k++) {
        if (results[k] == NO_SLOT)
            continue;
        struct ptx_ins *ins = ptx_emit(parser, s, run, INS_PLAIN);
        ins->o[0] = results[k];
        ins->o[1] = as[k];
        ins->o[2] = bs[k];
        ins->o[3] = other;
        ins->o[4] = NO_SLOT;
        ins->op = (uint8_t)c->op;
    }
    return 0;
}

/* Emit the comparison of operands `at` and `at + 1`, combined with the one after them. */
static int emit_comparison(struct parser *parser, struct statement *s, const struct comparison *c,
                           const struct type *type, int at, uint32_t p, uint32_t q)
{
    char key[48];
    const struct operand *combined = c->op ? &s->operands[at + 2] : NULL;
    if (type->is_pair)
        return emit_pair_comparison(parser, s, c, type, at, p, q);
    if (c->is_ftz && type->bytes == 2) {
        ptx_refuse(parser, "flushes subnormal numbers of 16 bits in a comparison");
        return -1;
    }
    snprintf(key, sizeof key, "setp.%s.%s%s", c->cmp, c->is_ftz && strcmp(type->name, "f32") == 0 ? "z" : "",
             type->name);
    ptx_handler run = ptx_handler_find(key, NULL);
    if (!run || s->count != at + 2 + (c->op != 0)) {
        ptx_refuse(parser, "contains the unsupported comparison %.60s", key);
        return -1;
    }
    uint32_t a = ptx_source(parser, s, &s->operands[at], type), b = ptx_source(parser, s, &s->operands[at + 1], type);
    uint32_t with = combined ? ptx_source(parser, s, combined, ptx_named("pred")) : 0;
    if (a == NO_SLOT || b == NO_SLOT || with == NO_SLOT)
        return -1;
    struct ptx_ins *ins = ptx_emit(parser, s, run, INS_PLAIN);
    ins->o[0] = p;
    ins->o[1] = a;
    ins->o[2] = b;
    ins->o[3] = with;
    ins->o[4] = q;
    ins->op = (uint8_t)c->op;
    return 0;
}

static int decode_setp(struct parser *parser, struct statement *s)
{
    struct comparison c;
    const struct type *type, *pred = ptx_named("pred");
    if (!take_comparison(s, &c) || !(type = ptx_take_type(s)) || !ptx_rest(parser, s) || s->count < 3) {
        ptx_refuse(parser, "has an unsupported setp");
        return 1;
    }
    uint32_t p = s->operands[0].kind == OPERAND_SINK ? NO_SLOT : ptx_destination(parser, &s->operands[0], pred);
    uint32_t q = NO_SLOT;
    if (s->operands[0].second && s->operands[0].second->kind != OPERAND_SINK)
        q = ptx_destination(parser, s->operands[0].second, pred);
    emit_comparison(parser, s, &c, type, 1, p, q);
    return 1;
}

static void emit_select(struct parser *parser, struct statement *s, uint32_t bytes, const uint32_t *slots)
{
    struct ptx_ins *ins =
        ptx_emit(parser, s, ptx_handler_find(bytes == 8 ? "select.64" : "select.32", NULL), INS_PLAIN);
    memcpy(ins->o, slots, 4 * sizeof *slots);
}

/* Both results of a comparison of pairs, each in its half: 1 as a number, or all bits of the half. */
static void decode_set_pair(struct parser *parser, struct statement *s, const struct comparison *c,
                            const struct type *from, const struct type *to)
{
    uint32_t p = ptx_new_register(parser, 64, 64), q = ptx_new_register(parser, 64, 64);
    if ((is_real(to) && to != from) || (!is_real(to) && to->bytes != 4)) {
        ptx_refuse(parser, "has an unsupported set to %s", to->name);
        return;
    }
    if (emit_comparison(parser, s, c, from, 1, p, q) < 0)
        return;
    uint32_t one = !is_real(to) ? 0xffff : to->class == CLASS_BF16 ? 0x3f80 : 0x3c00;
    uint32_t low = ptx_new_register(parser, 128, 64), high = ptx_new_register(parser, 128, 64);
    uint32_t d = ptx_destination(parser, &s->operands[0], ptx_named("b32")), zero = ptx_constant(parser, 0, 4);
    if (d == NO_SLOT)
        return;
    emit_select(parser, s, 4, (const uint32_t[]){low, ptx_constant(parser, one, 4), zero, p});
    emit_select(parser, s, 4, (const uint32_t[]){high, ptx_constant(parser, one << 16, 4), zero, q});
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find("or.b32", NULL), INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = low;
    ins->o[2] = high;
}

static int decode_set(struct parser *parser, struct statement *s)
{
    struct comparison c;
    const struct type *from = NULL, *to = NULL;
    if (take_comparison(s, &c) && (from = ptx_take_type(s)) && (to = ptx_take_type(s)) && from->is_pair &&
        ptx_rest(parser, s)) {
        decode_set_pair(parser, s, &c, from, to);
        return 1;
    }
    if (!c.cmp || !from || !to || !ptx_rest(parser, s) || to->is_pair || (to->bytes != 4 && !(to->bytes == 2 && is_real(to)))) {
        ptx_refuse(parser, "has an unsupported set to %s", to ? to->name : "its type");
        return 1;
    }
    uint32_t p = ptx_new_register(parser, 64, 64);
    if (emit_comparison(parser, s, &c, from, 1, p, NO_SLOT) < 0)
        return 1;
    uint32_t one = to->class == CLASS_BF16 ? 0x3f80 : !is_real(to) ? UINT32_MAX : to->bytes == 2 ? 0x3c00 : 0x3f800000;
    uint32_t slots[4] = {ptx_destination(parser, &s->operands[0], to), ptx_constant(parser, one, 4),
                         ptx_constant(parser, 0, 4), p};
    emit_select(parser, s, 4, slots);
    return 1;
}

static int decode_selp(struct parser *parser, struct statement *s)
{
    const struct type *type = ptx_take_type(s);
    if (!type || s->count != 4 || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported selp");
        return 1;
    }
    uint32_t slots[4] = {ptx_destination(parser, &s->operands[0], type), ptx_source(parser, s, &s->operands[1], type),
                         ptx_source(parser, s, &s->operands[2], type),
                         ptx_source(parser, s, &s->operands[3], ptx_named("pred"))};
    emit_select(parser, s, type->bytes, slots);
    return 1;
}

/* slct selects by the sign of its last operand. */
static int decode_slct(struct parser *parser, struct statement *s)
{
    int is_ftz = ptx_take(s, "ftz");
    const struct type *sign = ptx_take_type(s), *type = ptx_take_type(s);
    char key[32];
    if (!sign || !type || s->count != 4 || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported slct");
        return 1;
    }
    snprintf(key, sizeof key, "setp.ge.%s%s", is_ftz ? "z" : "", sign->name);
    uint32_t p = ptx_new_register(parser, 64, 64), c = ptx_source(parser, s, &s->operands[3], sign);
    uint32_t slots[4] = {ptx_destination(parser, &s->operands[0], type), ptx_source(parser, s, &s->operands[1], type),
                         ptx_source(parser, s, &s->operands[2], type), p};
    uint32_t zero = ptx_constant(parser, 0, 4);
    struct ptx_ins *ins = ptx_emit(parser, NULL, ptx_handler_find(key, NULL), INS_PLAIN);
    ins->o[0] = p;
    ins->o[1] = c;
    ins->o[2] = zero;
    ins->o[4] = NO_SLOT;
    emit_select(parser, s, type->bytes, slots);
    return 1;
}

static int decode_testp(struct parser *parser, struct statement *s)
{
    static const char *const kinds[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal", NULL};
    const char *kind = ptx_take_any(s, kinds);
    const struct type *type = ptx_take_type(s);
    if (!kind || !type || type->class != CLASS_FLOAT || s->count != 2) {
        ptx_refuse(parser, "has an unsupported testp");
        return 1;
    }
    uint32_t p = ptx_destination(parser, &s->operands[0], ptx_named("pred"));
    uint32_t a = ptx_source(parser, s, &s->operands[1], type);
    struct ptx_ins *ins =
        ptx_emit(parser, s, ptx_handler_find(type->bytes == 8 ? "testp.f64" : "testp.f32", NULL), INS_PLAIN);
    ins->o[0] = p;
    ins->o[1] = a;
    while (strcmp(kinds[ins->op], kind) != 0)
        ins->op++;
    return 1;
}

/* ---- lop3, prmt -------------------------------------------------------------------------------------------------- */

static int decode_table(struct parser *parser, struct statement *s)
{
    static const char *const modes[] = {"b32", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16", NULL};
    int is_lop3 = strcmp(s->name, "lop3") == 0, mode = 0;
    const struct type *b32 = ptx_named("b32");
    uint32_t slots[4];
    for (int i = 1; !is_lop3 && modes[i]; i++)
        if (ptx_take(s, modes[i]))
            mode = i;
    if (!ptx_take(s, "b32") || !ptx_rest(parser, s) || s->count != 4 + is_lop3 ||
        (is_lop3 && s->operands[4].kind != OPERAND_NUMBER)) {
        ptx_refuse(parser, "has an unsupported %.20s", s->name);
        return 1;
    }
    for (int i = 0; i < 4; i++)
        slots[i] = i ? ptx_source(parser, s, &s->operands[i], b32) : ptx_destination(parser, &s->operands[0], b32);
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find(is_lop3 ? "lop3.b32" : "prmt.b32", NULL), INS_PLAIN);
    memcpy(ins->o, slots, sizeof slots);
    ins->immediate = is_lop3 ? (int64_t)s->operands[4].number : 0;
    ins->op = (uint8_t)mode;
    return 1;
}

/* ---- Carry and rounding modes ------------------------------------------------------------------------------------ */

static int decode_carry(struct parser *parser, struct statement *s)
{
    int is_read = s->name[strlen(s->name) - 1] == 'c', is_written = ptx_take(s, "cc");
    int is_sub = s->name[0] == 's', is_mad = s->name[0] == 'm';
    int is_high = is_mad && ptx_take(s, "hi");
    if (is_mad && !is_high)
        ptx_take(s, "lo");
    const struct type *type = ptx_take_type(s);
    if (!type || type->bytes < 4 || is_real(type) || s->count != 3 + is_mad || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported %.20s with a carry", s->name);
        return 1;
    }
    if (parser->carry == NO_SLOT)
        parser->carry = ptx_new_register(parser, 64, 64);
    uint32_t slots[4] = {0};
    for (int i = 0; i < s->count; i++)
        slots[i] = i ? ptx_source(parser, s, &s->operands[i], type) : ptx_destination(parser, &s->operands[0], type);
    const char *key = is_mad ? (type->bytes == 8 ? "multiply_carry.64" : "multiply_carry.32")
                             : (type->bytes == 8 ? "carry.64" : "carry.32");
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find(key, NULL), INS_PLAIN);
    memcpy(ins->o, slots, sizeof slots);
    ins->o[4] = parser->carry;
    ins->op = (uint8_t)(is_read | is_written << 1 | is_sub << 2);
    ins->flags = (uint8_t)((is_high ? FLAG_WIDE : 0) | (type->class == CLASS_SIGNED ? FLAG_SIGNED : 0));
    return 1;
}

static const char *const directed[] = {"rz", "rm", "rp", NULL};

static int decode_rounded(struct parser *parser, struct statement *s)
{
    static const char *const ops[] = {"add", "sub", "mul", "fma", "div", "rcp", "sqrt", NULL};
    static const int sources[] = {2, 2, 2, 3, 2, 1, 1};
    const char *mode = ptx_take_any(s, directed);
    int flags = (ptx_take(s, "ftz") ? FLAG_FTZ : 0) | (ptx_take(s, "sat") ? FLAG_SAT : 0), op = 0;
    const struct type *type = ptx_take_type(s);
    while (ops[op] && strcmp(ops[op], s->name) != 0)
        op++;
    if (!ops[op] || !type || type->class != CLASS_FLOAT || type->bytes < 4 || type->is_pair ||
        s->count != 1 + sources[op] || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported rounding mode of %.20s", s->name);
        return 1;
    }
    uint32_t slots[4] = {0};
    for (int i = 0; i < s->count; i++)
        slots[i] = i ? ptx_source(parser, s, &s->operands[i], type) : ptx_destination(parser, &s->operands[0], type);
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_rounded, INS_PLAIN);
    memcpy(ins->o, slots, sizeof slots);
    ins->op = (uint8_t)op;
    ins->bytes = (uint8_t)type->bytes;
    ins->flags = (uint8_t)flags;
    ins->round = mode[1] == 'z' ? ROUND_ZERO : mode[1] == 'm' ? ROUND_DOWN : ROUND_UP;
    return 1;
}

int ptx_decode_data(struct parser *parser, struct statement *s)
{
    static const struct {
        const char *name;
        int (*decode)(struct parser *, struct statement *);
    } table[] = {{"mov", decode_move},   {"cvt", decode_conversion}, {"setp", decode_setp}, {"set", decode_set},
                 {"selp", decode_selp},  {"slct", decode_slct},      {"testp", decode_testp}, {"lop3", decode_table},
                 {"prmt", decode_table}, {"addc", decode_carry},     {"subc", decode_carry}, {"madc", decode_carry}};
    static const char *const carrying[] = {"cc", NULL};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(s->name, table[i].name) == 0)
            return table[i].decode(parser, s);
    if (has_modifier(s, carrying))
        return decode_carry(parser, s);
    if (has_modifier(s, directed))
        return decode_rounded(parser, s);
    return 0;
}

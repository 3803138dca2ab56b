/* Decoding of moves, comparisons, selections, and arithmetic with a carry or a rounding mode. */
#include "softgpu/ptx/internal.h"

#include <stdio.h>
#include <string.h>

void ptx_rounded(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);

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

static void emit_move(struct parser *parser, struct statement *s, uint32_t to, uint32_t from, const char *key)
{
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find(key, NULL), INS_PLAIN);
    ins->o[0] = to;
    ins->o[1] = from;
}

/* mov.v4.u32 of a special register such as %tid to a vector. */
static int decode_vector_register(struct parser *parser, struct statement *s, const struct type *type)
{
    const struct operand *to = &s->operands[0], *from = &s->operands[1];
    if ((to->kind != OPERAND_VECTOR && to->kind != OPERAND_REGISTER) || to->count != 4 || from->kind != OPERAND_LABEL) {
        ptx_refuse(parser, "has an unsupported mov of a vector");
        return 1;
    }
    for (int i = 0; i < 4; i++) {
        char name[32];
        int length = snprintf(name, sizeof name, "%.*s.%c", (int)(from->bytes < 24 ? from->bytes : 24), from->text, "xyzw"[i]);
        struct operand part = {.kind = OPERAND_LABEL, .text = name, .bytes = (size_t)length};
        uint32_t source = ptx_source(parser, s, &part, type);
        uint32_t slot = to->kind == OPERAND_VECTOR ? ptx_destination(parser, &s->members[to->first + i], type)
                                                   : ptx_destination(parser, to, type) + (uint32_t)i * WARP * 4;
        if (source == NO_SLOT || slot == NO_SLOT)
            return 1;
        emit_move(parser, s, slot, source, "mov.b32");
    }
    return 1;
}

/* Numbers of 128 bits are two registers of 64 bits, the lower one first. */
static int decode_wide_move(struct parser *parser, struct statement *s)
{
    const struct type *b64 = ptx_named("b64");
    uint32_t slots[2][2];
    for (int o = 0; o < 2; o++) {
        const struct operand *one = &s->operands[o];
        int is_pair = one->kind == OPERAND_VECTOR && one->count == 2;
        if (!is_pair && (one->kind != OPERAND_REGISTER || one->type->bytes != 16)) {
            ptx_refuse(parser, "has an unsupported mov of 128 bits");
            return 1;
        }
        for (int k = 0; k < 2; k++) {
            const struct operand *part = is_pair ? &s->members[one->first + k] : NULL;
            slots[o][k] = !part ? one->slot + (uint32_t)k * WARP * 8
                          : o   ? ptx_source(parser, s, part, b64)
                                : ptx_destination(parser, part, b64);
            if (slots[o][k] == NO_SLOT)
                return 1;
        }
    }
    uint32_t kept = ptx_new_register(parser, WARP * 8, 64); /* the first move may change what the second one reads */
    emit_move(parser, s, kept, slots[1][1], "mov.b64");
    emit_move(parser, s, slots[0][0], slots[1][0], "mov.b64");
    emit_move(parser, s, slots[0][1], kept, "mov.b64");
    return 1;
}

static int decode_move(struct parser *parser, struct statement *s)
{
    const struct type *type = s->modifier_count ? ptx_named(s->modifiers[s->modifier_count - 1]) : NULL;
    if (s->count == 2 && type && type->bytes == 4 && ptx_take(s, "v4"))
        return decode_vector_register(parser, s, type);
    if (s->count == 2 && type && type->bytes == 16)
        return decode_wide_move(parser, s);
    if (s->count == 2 && type &&
        (s->operands[0].kind == OPERAND_VECTOR || s->operands[1].kind == OPERAND_VECTOR))
        return decode_pack(parser, s, type);
    return 0;
}

static int has_modifier(const struct statement *s, const char *const *names)
{
    for (int i = 0; i < s->modifier_count; i++)
        if (ptx_is_one_of(s->modifiers[i], names))
            return 1;
    return 0;
}

static int is_real(const struct type *type)
{
    return type->class == CLASS_FLOAT || type->class == CLASS_BF16;
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
    snprintf(key, sizeof key, "setp.%s.%s", c->cmp, type->class == CLASS_BF16 ? "bf16" : c->is_ftz ? "zf16" : "f16");
    ptx_handler run = ptx_handler_find(key, NULL);
    if (!run || s->count != at + 2 + (c->op != 0)) {
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
    int is_flushed = c->is_ftz && type->class == CLASS_FLOAT && type->bytes <= 4;
    snprintf(key, sizeof key, "setp.%s.%s%s", c->cmp, is_flushed ? "z" : "", type->name);
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
    if (!c.cmp || !from || !to || !ptx_rest(parser, s) || to->is_pair ||
        (to->bytes != 4 && !(to->bytes == 2 && (is_real(to) || is_real(from))))) {
        ptx_refuse(parser, "has an unsupported set to %s", to ? to->name : "its type");
        return 1;
    }
    uint32_t p = ptx_new_register(parser, 64, 64);
    if (emit_comparison(parser, s, &c, from, 1, p, NO_SLOT) < 0)
        return 1;
    uint32_t one = to->class == CLASS_BF16 ? 0x3f80 : !is_real(to) ? (to->bytes == 2 ? 0xffff : UINT32_MAX) : to->bytes == 2 ? 0x3c00 : 0x3f800000;
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

/* The predicate of lop3: whether the result is not zero, combined with the last operand. */
static void emit_test(struct parser *parser, struct statement *s, uint32_t slot, int combined)
{
    const struct type *pred = ptx_named("pred");
    const struct operand *second = s->operands[0].second;
    uint32_t p = second ? ptx_destination(parser, second, pred) : NO_SLOT;
    uint32_t with = ptx_source(parser, s, &s->operands[5], pred), zero = ptx_constant(parser, 0, 4);
    if (p == NO_SLOT || with == NO_SLOT) {
        ptx_refuse(parser, "has an unsupported lop3");
        return;
    }
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find("setp.ne.u32", NULL), INS_PLAIN);
    ins->o[0] = p;
    ins->o[1] = slot;
    ins->o[2] = zero;
    ins->o[3] = with;
    ins->o[4] = NO_SLOT;
    ins->op = (uint8_t)combined;
}

static int decode_table(struct parser *parser, struct statement *s)
{
    static const char *const modes[] = {"b32", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16", NULL};
    int is_lop3 = strcmp(s->name, "lop3") == 0, mode = 0;
    const struct type *b32 = ptx_named("b32");
    uint32_t slots[4];
    for (int i = 1; !is_lop3 && modes[i]; i++)
        if (ptx_take(s, modes[i]))
            mode = i;
    const int combined = !is_lop3 ? 0 : ptx_take(s, "and") ? 1 : ptx_take(s, "or") ? 2 : 0;
    if (!ptx_take(s, "b32") || !ptx_rest(parser, s) || s->count != 4 + is_lop3 + (combined != 0) ||
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
    if (combined)
        emit_test(parser, s, slots[0], combined);
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
    } table[] = {{"mov", decode_move},   {"cvt", ptx_decode_conversion}, {"setp", decode_setp}, {"set", decode_set},
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

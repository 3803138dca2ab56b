/* Decoding of conversions. */
#include "softgpu/ptx/internal.h"

#include <string.h>

int ptx_is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return 1;
    return 0;
}

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

static void decode_pair_conversion(struct parser *parser, struct statement *s, const struct type *to, int round,
                                   int flags)
{
    const struct type *f32 = ptx_named("f32"), *b32 = ptx_named("b32");
    uint32_t d = ptx_destination(parser, &s->operands[0], b32), a = ptx_source(parser, s, &s->operands[1], f32);
    uint32_t b = ptx_source(parser, s, &s->operands[2], f32);
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_convert_pair, INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->o[2] = b;
    ins->round = (uint8_t)round;
    ins->result = type_code(ptx_named(to->class == CLASS_BF16 ? "bf16" : "f16"));
    ins->flags = (uint8_t)(flags | (to->class == CLASS_BF16 ? FLAG_BF16 : 0));
}

/* Conversions of pairs from and to numbers of eight bits. */
static int decode_quarter(struct parser *parser, struct statement *s)
{
    static const char *const types[] = {"e4m3x2", "e5m2x2", NULL};
    const int is_from = ptx_is_one_of(s->modifiers[s->modifier_count - 1], types);
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

/* cvt.pack.sat: two numbers of 16 bits, or two smaller ones in front of the lower bits of a third operand. */
static int decode_packed(struct parser *parser, struct statement *s)
{
    static const char *const types[] = {"u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16", NULL};
    const struct type *b32 = ptx_named("b32");
    uint32_t slots[4] = {0};
    int has_third = ptx_take(s, "b32"), is_saturating = ptx_take(s, "sat"), is_from = ptx_take(s, "s32");
    const char *to = ptx_take_any(s, types);
    int bits = !to ? 0 : strlen(to) == 3 ? 16 : to[1] - '0';
    if (!to || !is_saturating || !is_from || has_third != (bits < 16) || s->count != 3 + has_third ||
        !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported conversion");
        return 1;
    }
    for (int k = 0; k < s->count; k++) {
        slots[k] = k ? ptx_source(parser, s, &s->operands[k], b32) : ptx_destination(parser, &s->operands[0], b32);
        if (slots[k] == NO_SLOT)
            return 1;
    }
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_convert_packed, INS_PLAIN);
    memcpy(ins->o, slots, sizeof slots);
    ins->count = (uint8_t)bits;
    ins->flags = *to == 's' ? FLAG_SIGNED : 0;
    return 1;
}

static int has_modifier(const struct statement *s, const char *const *names)
{
    for (int i = 0; i < s->modifier_count; i++)
        if (ptx_is_one_of(s->modifiers[i], names))
            return 1;
    return 0;
}

int ptx_decode_conversion(struct parser *parser, struct statement *s)
{
    static const char *const quarters[] = {"e4m3x2", "e5m2x2", NULL};
    if (has_modifier(s, quarters))
        return decode_quarter(parser, s);
    if (ptx_take(s, "pack"))
        return decode_packed(parser, s);
    static const char *const integer_modes[] = {"rni", "rzi", "rmi", "rpi", NULL};
    static const char *const modes[] = {"rn", "rz", "rm", "rp", "rna", NULL};
    const char *integer_mode = ptx_take_any(s, integer_modes), *mode = ptx_take_any(s, modes);
    int flags = (ptx_take(s, "ftz") ? FLAG_FTZ : 0) | (ptx_take(s, "sat") ? FLAG_SAT : 0);
    flags |= (ptx_take(s, "relu") ? FLAG_RELU : 0) | (ptx_take(s, "satfinite") ? FLAG_FINITE : 0);
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
    const int can_limit = strcmp(from->name, "f32") == 0 && (to->class == CLASS_BF16 || is_tf32 || to->bytes == 2 || to->is_pair);
    if ((flags & FLAG_FINITE && !can_limit) || (flags & FLAG_FINITE && !is_real(to))) {
        ptx_refuse(parser, "has an unsupported conversion to %s", to->name);
        return 1;
    }
    if (s->count == 3 && to->is_pair && (round == ROUND_NEAREST || round == ROUND_ZERO) &&
        strcmp(from->name, "f32") == 0 && !(flags & FLAG_SAT)) {
        decode_pair_conversion(parser, s, to, round, flags);
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

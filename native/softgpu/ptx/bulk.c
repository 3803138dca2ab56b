/* Bulk copies, reductions and fills: cp.async.bulk, cp.reduce.async.bulk and st.bulk. They are complete when they have
 * been executed, so that waiting for their groups has no effect. */
#include "softgpu/ptx/vector.h"

enum { UNIT = 16, PLACE_WORDS = 4, TO = 0, FROM = 1, BARRIER = 2 };
enum { HAS_BARRIER = 1, IS_REDUCTION = 2, IS_FILL = 4, HAS_BLOCKS = 8 };

/* ---- Execution --------------------------------------------------------------------------------------------------- */

static uint64_t address_of(const struct ptx_warp *w, const struct ptx_ins *i, int place, uint32_t t)
{
    const uint32_t *words = &i->list[place * PLACE_WORDS];
    const unsigned char *at = slot_at(w, words[0]);
    const uint64_t base = words[1] ? ((const uint64_t *)at)[t] : ((const uint32_t *)at)[t];
    return base + (words[2] | (uint64_t)words[3] << 32);
}

/* The space of each place. */
static enum space space_of(const struct ptx_ins *i, int place)
{
    return (enum space)i->list[3 * PLACE_WORDS + place];
}

static void combine(const struct ptx_ins *i, unsigned char *to, const unsigned char *from)
{
    for (uint32_t k = 0; k < UNIT; k += i->bytes) {
        uint64_t old = 0, value = 0;
        memcpy(&old, to + k, i->bytes);
        memcpy(&value, from + k, i->bytes);
        old = ptx_atomic_value(i, old, value);
        memcpy(to + k, &old, i->bytes);
    }
}

/* Copy to one block; -1: a fault was set. */
static int copy(struct ptx_warp *w, const struct ptx_ins *i, uint32_t t, uint64_t to, uint64_t barrier)
{
    const uint64_t bytes = WORDS(3)[t], from = i->flags & IS_FILL ? 0 : address_of(w, i, FROM, t);
    static const unsigned char zeros[UNIT];
    const uint32_t step = i->flags & IS_FILL ? 8 : UNIT;
    if (bytes % step) {
        ptx_fail(w, SG_PTX_MISALIGNED_ADDRESS);
        return -1;
    }
    for (uint64_t at = 0; at < bytes; at += step) {
        unsigned char *target = ptx_memory_at(w, to + at, step, space_of(i, TO), t, 1);
        const unsigned char *source = i->flags & IS_FILL ? zeros : ptx_memory_at(w, from + at, step, space_of(i, FROM), t, 0);
        if (!target || !source)
            return -1;
        if (i->flags & IS_REDUCTION)
            combine(i, target, source);
        else
            memmove(target, source, step);
    }
    return i->flags & HAS_BARRIER ? ptx_barrier_complete(w, barrier, t, (uint32_t)bytes) : 0;
}

static void execute(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    const uint64_t offset_mask = (UINT64_C(1) << RANK_SHIFT) - 1;
    for (uint32_t t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        const uint64_t to = address_of(w, i, TO, t), barrier = i->flags & HAS_BARRIER ? address_of(w, i, BARRIER, t) : 0;
        if (!(i->flags & HAS_BLOCKS)) {
            if (copy(w, i, t, to, barrier) < 0)
                return;
            continue;
        }
        for (uint32_t rank = 0; rank < CLUSTER_MAX; rank++) { /* at the same place in every block of the mask */
            const uint64_t block = (uint64_t)(rank + 1) << RANK_SHIFT;
            if (WORDS(2)[t] >> rank & 1 &&
                copy(w, i, t, (to & (offset_mask | WINDOW_MASK)) | block, (barrier & (offset_mask | WINDOW_MASK)) | block) < 0)
                return;
        }
    }
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

/* Take the first memory that is named. */
static enum space take_first_space(struct statement *s)
{
    for (int k = 0; k < s->modifier_count; k++) {
        const char *name = s->modifiers[k];
        const int is_shared = strcmp(name, "shared::cta") == 0 || strcmp(name, "shared::cluster") == 0;
        if ((is_shared || strcmp(name, "global") == 0) && ptx_take(s, name))
            return is_shared ? SPACE_SHARED : SPACE_GLOBAL;
    }
    return SPACE_GENERIC;
}

static int add_place(struct parser *parser, struct statement *s, int operand, enum space space, uint32_t *list, int place)
{
    struct ptx_place found;
    if (operand >= s->count || ptx_resolve_place(parser, s, &s->operands[operand], space, &found) < 0)
        return -1;
    uint32_t *words = &list[place * PLACE_WORDS];
    words[0] = found.slot;
    words[1] = (uint32_t)found.is_wide;
    words[2] = (uint32_t)(uint64_t)found.offset;
    words[3] = (uint32_t)((uint64_t)found.offset >> 32);
    list[3 * PLACE_WORDS + place] = (uint32_t)found.space;
    return 0;
}

static void refuse(struct parser *parser, const struct statement *s)
{
    ptx_refuse(parser, "has an unsupported bulk copy: %.20s", s->name);
}

static void emit(struct parser *parser, struct statement *s, uint32_t *list, int flags, uint32_t bytes, uint32_t blocks,
                 const struct ptx_ins *reduction)
{
    struct ptx_ins *ins = ptx_emit(parser, s, execute, INS_MEMORY);
    ins->list = list;
    ins->o[2] = blocks;
    ins->o[3] = bytes;
    ins->flags = (uint8_t)flags;
    ins->op = reduction->op;
    ins->bytes = reduction->bytes;
    ins->source = reduction->source;
    ins->count = 1;
}

static int take_reduction(struct statement *s, struct ptx_ins *reduction)
{
    static const char *const ops[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor", NULL};
    ptx_take(s, "noftz");
    const char *op = ptx_take_any(s, ops);
    const struct type *type = ptx_take_type(s);
    if (!op || !type || type->bytes < 2 || type->bytes > 8 || type->is_pair ||
        ((type->class == CLASS_FLOAT || type->class == CLASS_BF16) && strcmp(op, "add") != 0 && type->bytes != 2))
        return -1;
    while (strcmp(ops[reduction->op], op) != 0)
        reduction->op++;
    reduction->bytes = (uint8_t)type->bytes;
    reduction->source = (uint8_t)type->class;
    return 0;
}

/* [to], [from], bytes, [barrier], blocks, policy; what is absent depends on the modifiers. */
static void decode_copy(struct parser *parser, struct statement *s)
{
    struct ptx_ins reduction = {.op = 0};
    const int is_cached = ptx_take(s, "L2::cache_hint"), has_barrier = ptx_take(s, "mbarrier::complete_tx::bytes");
    const int has_group = ptx_take(s, "bulk_group"), has_blocks = ptx_take(s, "multicast::cluster");
    const enum space to = take_first_space(s), from = take_first_space(s);
    const int is_reduction = ptx_take(s, "reduce"), count = 3 + has_barrier + has_blocks + is_cached;
    uint32_t *list = ptx_keep(parser->program, (3 * PLACE_WORDS + 3) * sizeof *list), blocks = 0;
    ptx_take(s, "relaxed");
    if (to == SPACE_GENERIC || from == SPACE_GENERIC || has_barrier == has_group || (has_blocks && !has_barrier) ||
        s->count != count || (is_reduction && take_reduction(s, &reduction) < 0) || s->modifier_count || !list) {
        refuse(parser, s);
        return;
    }
    if (add_place(parser, s, 0, to, list, TO) < 0 || add_place(parser, s, 1, from, list, FROM) < 0 ||
        (has_barrier && add_place(parser, s, 3, SPACE_SHARED, list, BARRIER) < 0))
        return;
    const uint32_t bytes = ptx_source(parser, s, &s->operands[2], ptx_named("b32"));
    if (has_blocks)
        blocks = ptx_source(parser, s, &s->operands[4], ptx_named("b16"));
    if (bytes != NO_SLOT && blocks != NO_SLOT)
        emit(parser, s, list,
             (has_barrier ? HAS_BARRIER : 0) | (is_reduction ? IS_REDUCTION : 0) | (has_blocks ? HAS_BLOCKS : 0), bytes,
             blocks, &reduction);
}

void ptx_decode_bulk(struct parser *parser, struct statement *s)
{
    ptx_take(s, "async");
    ptx_take(s, "bulk");
    if (ptx_take(s, "commit_group") || ptx_take(s, "prefetch")) {
        ptx_emit(parser, s, NULL, INS_NOTHING);
    } else if (ptx_take(s, "wait_group")) {
        ptx_take(s, "read");
        if (ptx_rest(parser, s))
            ptx_emit(parser, s, NULL, INS_NOTHING);
    } else {
        decode_copy(parser, s);
    }
}

/* st.bulk writes zeros. */
void ptx_decode_fill(struct parser *parser, struct statement *s)
{
    const struct ptx_ins none = {.op = 0};
    ptx_take(s, "bulk");
    ptx_take(s, "weak");
    const int is_shared = ptx_take(s, "shared::cta");
    uint32_t *list = ptx_keep(parser->program, (3 * PLACE_WORDS + 3) * sizeof *list);
    if (!ptx_rest(parser, s) || s->count != 3 || s->operands[2].kind != OPERAND_NUMBER || s->operands[2].number || !list) {
        refuse(parser, s);
        return;
    }
    if (add_place(parser, s, 0, is_shared ? SPACE_SHARED : SPACE_GENERIC, list, TO) < 0)
        return;
    uint32_t bytes = ptx_source(parser, s, &s->operands[1], ptx_named("b64"));
    if (bytes == NO_SLOT)
        return;
    uint32_t narrow = ptx_new_register(parser, WARP * 4, 64);
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find("narrow.32", NULL), INS_PLAIN);
    ins->o[0] = narrow;
    ins->o[1] = bytes;
    emit(parser, s, list, IS_FILL, narrow, 0, &none);
}

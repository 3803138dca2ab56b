/* Decoding of memory accesses, atomics and address conversions. */
#include "softgpu/ptx/internal.h"

#include <string.h>

static const char *const hints[] = {
    "weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "cta", "cluster", "gpu", "sys", "ca", "cg",
    "cs", "lu", "cv", "wb", "wt", "nc", "unified", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
    "L1::evict_last", "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B", "L2::evict_normal", "L2::evict_first",
    "L2::evict_last", "L2::evict_unchanged", "sc", NULL};

void ptx_take_hints(struct statement *s)
{
    while (ptx_take_any(s, hints))
        ;
}

enum space ptx_take_space(struct statement *s)
{
    static const struct {
        const char *name;
        enum space space;
    } names[] = {{"global", SPACE_GLOBAL}, {"const", SPACE_CONST},        {"shared", SPACE_SHARED},
                 {"local", SPACE_LOCAL},   {"param", SPACE_PARAM},        {"shared::cta", SPACE_SHARED}, {"shared::cluster", SPACE_SHARED},
                 {"param::entry", SPACE_PARAM}, {"param::func", SPACE_PARAM}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ptx_take(s, names[i].name))
            return names[i].space;
    return SPACE_GENERIC;
}

/* Resolve an address operand: a register, a symbol or a number, and a constant. */
int ptx_resolve_place(struct parser *parser, struct statement *s, const struct operand *operand, enum space space,
                      struct ptx_place *place)
{
    const struct operand *base = &s->members[operand->first];
    *place = (struct ptx_place){.space = space, .is_wide = 1, .offset = operand->addend};
    if (operand->kind != OPERAND_ADDRESS) {
        ptx_refuse(parser, "has an access without an address");
        return -1;
    }
    if (space == SPACE_PARAM && !ptx_current(parser)->is_entry)
        place->space = SPACE_AREA;
    if (base->kind == OPERAND_NUMBER) {
        place->slot = ptx_constant(parser, base->number, 8);
    } else if (base->kind == OPERAND_REGISTER) {
        if (base->type->class == CLASS_PREDICATE || base->type->bytes < 4) {
            ptx_refuse(parser, "has an address that is no number");
            return -1;
        }
        place->slot = base->slot;
        place->is_wide = base->type->bytes == 8;
    } else if (base->kind == OPERAND_SYMBOL && (base->symbol->kind == SYMBOL_AREA || base->symbol->kind == SYMBOL_PARAM)) {
        place->space = base->symbol->kind == SYMBOL_AREA ? SPACE_AREA : SPACE_PARAM;
        place->slot = ptx_constant(parser, 0, 8);
        place->offset += base->symbol->slot;
    } else {
        place->slot = ptx_source(parser, s, base, ptx_named("u64"));
        if (space == SPACE_GENERIC && base->kind == OPERAND_SYMBOL && base->symbol->kind == SYMBOL_LOCAL)
            place->space = SPACE_LOCAL;
        else if (space == SPACE_GENERIC && base->kind == OPERAND_SYMBOL && base->symbol->kind == SYMBOL_VARIABLE &&
                 parser->program->variables[base->symbol->index].space == SPACE_SHARED)
            place->space = SPACE_SHARED;
    }
    return place->slot == NO_SLOT ? -1 : 0;
}

static int take_vector(struct statement *s)
{
    return ptx_take(s, "v2") ? 2 : ptx_take(s, "v4") ? 4 : ptx_take(s, "v8") ? 8 : 1;
}

void ptx_set_place(struct ptx_ins *ins, const struct ptx_place *place)
{
    ins->o[1] = place->slot;
    ins->immediate = place->offset;
    ins->space = (uint8_t)place->space;
    ins->flags |= place->is_wide ? FLAG_WIDE : 0;
}

/* Describe a register of 128 bits as a vector of two of 64 bits. */
static int split_wide(struct statement *s, const struct operand *operand, struct operand *vector)
{
    if (operand->kind != OPERAND_REGISTER || operand->type->bytes != 16 || s->member_count + 2 > MAX_MEMBERS)
        return -1;
    *vector = (struct operand){.kind = OPERAND_VECTOR, .first = s->member_count, .count = 2};
    for (uint32_t k = 0; k < 2; k++)
        s->members[s->member_count++] = (struct operand){.kind = OPERAND_REGISTER, .type = ptx_named("b64"),
                                                         .slot = operand->slot + k * WARP * 8, .count = 1};
    return 0;
}

static void decode_access(struct parser *parser, struct statement *s, int is_store)
{
    ptx_take_hints(s);
    int is_cached = ptx_take(s, "L2::cache_hint");
    enum space space = ptx_take_space(s);
    int count = take_vector(s);
    const struct type *type = ptx_take_type(s);
    struct ptx_place place;
    const struct operand *data = &s->operands[is_store ? 1 : 0];
    struct operand wide;
    if (!type || type->class == CLASS_PREDICATE || s->count != 2 + is_cached || !ptx_rest(parser, s) ||
        (type->bytes > 8 && (count > 1 || split_wide(s, data, &wide) < 0))) {
        ptx_refuse(parser, "has an unsupported %.20s", s->name);
        return;
    }
    if (type->bytes > 8) {
        type = ptx_named("b64");
        data = &wide;
        count = 2;
    }
    uint32_t *list = ptx_keep(parser->program, (size_t)count * sizeof *list);
    if (!list || ptx_resolve_place(parser, s, &s->operands[is_store ? 0 : 1], space, &place) < 0)
        return;
    if ((data->kind == OPERAND_VECTOR ? data->count : 1) != count) {
        ptx_refuse(parser, "has a vector access of another size");
        return;
    }
    uint32_t register_bytes = type->bytes;
    for (int i = 0; i < count; i++) {
        const struct operand *one = data->kind == OPERAND_VECTOR ? &s->members[data->first + i] : data;
        /* The register may be wider than the memory. */
        const struct type *slot_type = one->kind == OPERAND_REGISTER && one->type->bytes > type->bytes ? one->type : type;
        list[i] = is_store ? ptx_source(parser, s, one, slot_type) : ptx_destination(parser, one, slot_type);
        if (list[i] == NO_SLOT)
            return;
        register_bytes = slot_type->bytes;
    }
    struct ptx_ins *ins = ptx_emit(parser, s, is_store ? ptx_store : ptx_load, INS_MEMORY);
    ptx_set_place(ins, &place);
    ins->o[0] = list[0];
    ins->list = list;
    ins->count = (uint8_t)count;
    ins->bytes = (uint8_t)type->bytes;
    ins->result = (uint8_t)register_bytes;
    ins->flags |= type->class == CLASS_SIGNED ? FLAG_SIGNED : 0;
}

/* ---- Atomics ----------------------------------------------------------------------------------------------------- */

static const char *const atomic_ops[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas", NULL};

/* The type may stand before the operation or before a modifier: atom.global.v4.f32.add. */
static const struct type *take_atomic_type(struct statement *s)
{
    for (int i = s->modifier_count; i > 0; i--) {
        const struct type *type = ptx_named(s->modifiers[i - 1]);
        if (type && ptx_take(s, type->name))
            return type;
    }
    return NULL;
}

/* Every element is an atomic operation of its own; the address is that of the whole vector. */
static void decode_vector_atomic(struct parser *parser, struct statement *s, const struct type *type, const char *op,
                                 int count, enum space space)
{
    int is_reduction = strcmp(s->name, "red") == 0;
    const struct operand *address = &s->operands[is_reduction ? 0 : 1], *from = address + 1, *to = &s->operands[0];
    uint32_t *list = ptx_keep(parser->program, 2 * (size_t)count * sizeof *list);
    struct ptx_place place;
    int is_float = type->class == CLASS_FLOAT || type->class == CLASS_BF16, is_small = type->bytes == 2 || type->is_pair;
    if (!is_float || from->kind != OPERAND_VECTOR || from->count != count || type->bytes * (uint32_t)count > 16 ||
        (!is_reduction && (to->kind != OPERAND_VECTOR || to->count != count)) ||
        !(strcmp(op, "add") == 0 || (is_small && (strcmp(op, "min") == 0 || strcmp(op, "max") == 0)))) {
        ptx_refuse(parser, "has an unsupported %.20s of a vector", s->name);
        return;
    }
    if (!list || ptx_resolve_place(parser, s, address, space, &place) < 0)
        return;
    for (int k = 0; k < count; k++) {
        list[k] = ptx_source(parser, s, &s->members[from->first + k], type);
        list[count + k] = is_reduction ? 0 : ptx_destination(parser, &s->members[to->first + k], type);
        if (list[k] == NO_SLOT || list[count + k] == NO_SLOT)
            return;
    }
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_atomic_vector, INS_MEMORY);
    ptx_set_place(ins, &place);
    ins->o[0] = is_reduction ? NO_SLOT : 0;
    ins->list = list;
    ins->bytes = (uint8_t)type->bytes;
    ins->source = (uint8_t)type->class;
    ins->count = (uint8_t)(type->is_pair ? 2 : 1);
    ins->result = (uint8_t)count;
    while (strcmp(atomic_ops[ins->op], op) != 0)
        ins->op++;
}

/* Exchange and compare-and-swap of 128 bits. */
static void decode_wide_atomic(struct parser *parser, struct statement *s, enum space space, int is_compare)
{
    uint32_t *list = ptx_keep(parser->program, 3 * sizeof *list);
    struct ptx_place place;
    if (!list || ptx_resolve_place(parser, s, &s->operands[1], space, &place) < 0)
        return;
    for (int k = 0; k < 2 + is_compare; k++) {
        const struct operand *one = &s->operands[k ? k + 1 : 0];
        int is_register = one->kind == OPERAND_REGISTER && one->type->bytes == 16;
        if (!is_register && !(k == 0 && one->kind == OPERAND_SINK)) {
            ptx_refuse(parser, "has an unsupported atom");
            return;
        }
        list[k] = is_register ? one->slot : ptx_new_register(parser, WARP * 16, 64);
    }
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_atomic_wide, INS_MEMORY);
    ptx_set_place(ins, &place);
    ins->list = list;
    ins->op = (uint8_t)is_compare;
}

static void decode_atomic(struct parser *parser, struct statement *s)
{
    const char *const *const ops = atomic_ops;
    int is_reduction = strcmp(s->name, "red") == 0, at = 0;
    ptx_take_hints(s);
    int is_cached = ptx_take(s, "L2::cache_hint");
    ptx_take(s, "noftz");
    enum space space = ptx_take_space(s);
    const char *op = ptx_take_any(s, ops);
    int count = take_vector(s);
    const struct type *type = take_atomic_type(s);
    int is_compare = op && strcmp(op, "cas") == 0;
    struct ptx_place place;
    int is_wide = type && type->bytes == 16 && op && (is_compare || strcmp(op, "exch") == 0) && !is_reduction && count == 1;
    if (!op || !type || (type->bytes > 8 && !is_wide) || type->bytes < 2 || !ptx_rest(parser, s) ||
        s->count != 3 - is_reduction + is_compare + is_cached) {
        ptx_refuse(parser, "has an unsupported %.20s", s->name);
        return;
    }
    if (is_wide) {
        decode_wide_atomic(parser, s, space, is_compare);
        return;
    }
    int is_float = type->class == CLASS_FLOAT || type->class == CLASS_BF16;
    int is_word = strcmp(op, "exch") == 0 || is_compare;
    if (is_float && strcmp(op, "add") != 0 && !((type->bytes == 2 || type->is_pair) && (op[1] == 'i' || op[1] == 'a'))) {
        ptx_refuse(parser, "has an unsupported atomic of %s", type->name);
        return;
    }
    if (count > 1) {
        decode_vector_atomic(parser, s, type, op, count, space);
        return;
    }
    uint32_t d = is_reduction ? NO_SLOT : ptx_destination(parser, &s->operands[at++], type);
    if (ptx_resolve_place(parser, s, &s->operands[at++], space, &place) < 0)
        return;
    uint32_t b = ptx_source(parser, s, &s->operands[at++], type);
    uint32_t c = is_compare ? ptx_source(parser, s, &s->operands[at], type) : 0;
    if ((!is_reduction && d == NO_SLOT) || b == NO_SLOT || c == NO_SLOT)
        return;
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_atomic, INS_MEMORY);
    ptx_set_place(ins, &place);
    ins->o[0] = d;
    ins->o[2] = b;
    ins->o[3] = c;
    ins->bytes = (uint8_t)type->bytes;
    ins->source = (uint8_t)(is_word ? CLASS_BITS : type->class);
    ins->count = (uint8_t)(type->is_pair ? 2 : 1);
    while (strcmp(ops[ins->op], op) != 0)
        ins->op++;
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static void decode_convert_address(struct parser *parser, struct statement *s)
{
    int is_to = ptx_take(s, "to");
    enum space space = ptx_take_space(s);
    const struct type *type = ptx_take_type(s);
    if (!type || s->count != 2 || space == SPACE_GENERIC || !ptx_rest(parser, s) ||
        (space == SPACE_PARAM && !ptx_current(parser)->is_entry)) {
        ptx_refuse(parser, "has an unsupported cvta");
        return;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], type), a = ptx_source(parser, s, &s->operands[1], type);
    if (d == NO_SLOT || a == NO_SLOT)
        return;
    int is_none = space == SPACE_GLOBAL || space == SPACE_CONST;
    if (type->bytes != 8) {
        ptx_refuse(parser, "has addresses of 32 bits");
        return;
    }
    struct ptx_ins *ins = ptx_emit(parser, s, is_none ? ptx_handler_find("mov.b64", NULL) : ptx_address_convert, INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->space = (uint8_t)space;
    ins->op = (uint8_t)is_to;
}

static void decode_is_space(struct parser *parser, struct statement *s)
{
    int is_cluster = s->modifier_count && strcmp(s->modifiers[0], "shared::cluster") == 0;
    enum space space = ptx_take_space(s);
    if (s->count != 2 || space == SPACE_GENERIC || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported isspacep");
        return;
    }
    uint32_t p = ptx_destination(parser, &s->operands[0], ptx_named("pred"));
    uint32_t a = ptx_source(parser, s, &s->operands[1], ptx_named("u64"));
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_is_space, INS_PLAIN);
    ins->o[0] = p;
    ins->o[1] = a;
    ins->op = (uint8_t)is_cluster;
    ins->space = (uint8_t)space;
}

/* The bytes to copy: none if the predicate says that the source is ignored. */
static uint32_t valid_unless(struct parser *parser, struct statement *s, const struct operand *predicate, uint32_t bytes)
{
    uint32_t p = ptx_source(parser, s, predicate, ptx_named("pred")), slot = ptx_new_register(parser, WARP * 4, 64);
    uint32_t none = ptx_constant(parser, 0, 4), all = ptx_constant(parser, bytes, 4);
    if (p == NO_SLOT)
        return NO_SLOT;
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find("select.32", NULL), INS_PLAIN);
    ins->o[0] = slot;
    ins->o[1] = none;
    ins->o[2] = all;
    ins->o[3] = p;
    return slot;
}

/* cp.async copies at once, so that waiting for it has no effect. */
static void decode_copy_async(struct parser *parser, struct statement *s)
{
    struct ptx_place to, from;
    for (int k = 0; k < s->modifier_count; k++)
        if (strcmp(s->modifiers[k], "bulk") == 0) {
            ptx_decode_bulk(parser, s);
            return;
        }
    if (!ptx_take(s, "async")) {
        ptx_refuse(parser, "has an unsupported cp");
        return;
    }
    if (ptx_take(s, "mbarrier")) {
        ptx_decode_copy_arrival(parser, s);
        return;
    }
    if (ptx_take(s, "commit_group") || ptx_take(s, "wait_group") || ptx_take(s, "wait_all")) {
        if (ptx_rest(parser, s))
            ptx_emit(parser, s, NULL, INS_NOTHING);
        return;
    }
    ptx_take_hints(s);
    int is_cached = ptx_take(s, "L2::cache_hint");
    int is_shared = ptx_take(s, "shared") || ptx_take(s, "shared::cta"), is_global = ptx_take(s, "global");
    if (!is_shared || !is_global || !ptx_rest(parser, s) || s->count < 3 + is_cached ||
        s->count > 4 + is_cached || s->operands[2].kind != OPERAND_NUMBER || s->operands[2].number > 16) {
        ptx_refuse(parser, "has an unsupported cp.async");
        return;
    }
    if (ptx_resolve_place(parser, s, &s->operands[0], SPACE_SHARED, &to) < 0 ||
        ptx_resolve_place(parser, s, &s->operands[1], SPACE_GLOBAL, &from) < 0)
        return;
    uint32_t bytes = (uint32_t)s->operands[2].number;
    const struct operand *last = s->count == 4 + is_cached ? &s->operands[3] : NULL;
    const int is_ignored = last && last->kind == OPERAND_REGISTER && last->type->class == CLASS_PREDICATE;
    uint32_t valid = !last ? ptx_constant(parser, bytes, 4) : is_ignored ? valid_unless(parser, s, last, bytes)
                                                                         : ptx_source(parser, s, last, ptx_named("b32"));
    uint32_t *list = ptx_keep(parser->program, 2 * sizeof *list);
    if (!list || valid == NO_SLOT)
        return;
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_copy_async, INS_MEMORY);
    ptx_set_place(ins, &to);
    ins->o[2] = from.slot;
    ins->o[3] = valid;
    ins->source = (uint8_t)from.is_wide;
    ins->bytes = (uint8_t)bytes;
    list[0] = (uint32_t)(uint64_t)from.offset;
    list[1] = (uint32_t)((uint64_t)from.offset >> 32);
    ins->list = list;
}

/* ---- Matrices in shared memory ----------------------------------------------------------------------------------- */

static void decode_matrix_access(struct parser *parser, struct statement *s, int is_store)
{
    int is_transposed = ptx_take(s, "trans"), count = ptx_take(s, "x1") ? 1 : ptx_take(s, "x2") ? 2 : ptx_take(s, "x4") ? 4 : 0;
    int is_square = ptx_take(s, "m8n8");
    ptx_take(s, "sync");
    ptx_take(s, "aligned");
    enum space space = ptx_take_space(s);
    struct ptx_place place;
    const struct operand *data = &s->operands[is_store ? 1 : 0];
    if (!ptx_take(s, "b16") || !is_square || !count || !ptx_rest(parser, s) || s->count != 2 ||
        (data->kind == OPERAND_VECTOR ? data->count : 1) != count) {
        ptx_refuse(parser, "has an unsupported %.20s", s->name);
        return;
    }
    uint32_t *list = ptx_keep(parser->program, (size_t)count * sizeof *list);
    if (!list || ptx_resolve_place(parser, s, &s->operands[is_store ? 0 : 1], space, &place) < 0)
        return;
    for (int i = 0; i < count; i++) {
        const struct operand *one = data->kind == OPERAND_VECTOR ? &s->members[data->first + i] : data;
        const struct type *b32 = ptx_named("b32");
        list[i] = is_store ? ptx_source(parser, s, one, b32) : ptx_destination(parser, one, b32);
    }
    uint32_t all = ptx_constant(parser, UINT32_MAX, 4);
    struct ptx_ins *ins = ptx_emit(parser, s, is_store ? ptx_store_matrix : ptx_load_matrix, INS_WARP);
    ptx_set_place(ins, &place);
    ins->list = list;
    ins->count = (uint8_t)count;
    ins->op = (uint8_t)is_transposed;
    ins->o[5] = all;
}

/* A cache policy has no effect; its value is only passed on to accesses with a cache hint. */
static void decode_policy(struct parser *parser, struct statement *s)
{
    const struct type *b64 = ptx_named("b64");
    uint32_t d = s->count ? ptx_destination(parser, &s->operands[0], b64) : NO_SLOT;
    if (d == NO_SLOT) {
        ptx_refuse(parser, "has an invalid createpolicy");
        return;
    }
    struct ptx_ins *ins = ptx_emit(parser, s, ptx_handler_find("mov.b64", NULL), INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = ptx_constant(parser, 0, 8);
}

int ptx_decode_memory(struct parser *parser, struct statement *s)
{
    if (strcmp(s->name, "st") == 0 && s->modifier_count && strcmp(s->modifiers[0], "bulk") == 0)
        ptx_decode_fill(parser, s);
    else if (strcmp(s->name, "ld") == 0 || strcmp(s->name, "ldu") == 0 || strcmp(s->name, "st") == 0)
        decode_access(parser, s, s->name[0] == 's');
    else if (strcmp(s->name, "atom") == 0 || strcmp(s->name, "red") == 0)
        decode_atomic(parser, s);
    else if (strcmp(s->name, "cvta") == 0)
        decode_convert_address(parser, s);
    else if (strcmp(s->name, "isspacep") == 0)
        decode_is_space(parser, s);
    else if (strcmp(s->name, "cp") == 0)
        decode_copy_async(parser, s);
    else if (strcmp(s->name, "ldmatrix") == 0 || strcmp(s->name, "stmatrix") == 0)
        decode_matrix_access(parser, s, s->name[0] == 's');
    else if (strcmp(s->name, "mbarrier") == 0)
        ptx_decode_mbarrier(parser, s);
    else if (strcmp(s->name, "createpolicy") == 0)
        decode_policy(parser, s);
    else
        return 0;
    return 1;
}

/* Decoding: from parsed statements to instructions with handlers. */
#include "softgpu/ptx/internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONSTANTS = 1 << 28 };

const uint32_t ptx_bit[WARP] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

/* ---- The table of handlers --------------------------------------------------------------------------------------- */

enum { BUCKETS = 4096 };
static const struct handler_entry *handlers;
static uint16_t buckets[BUCKETS]; /* index plus one; collisions go to the next bucket */
static pthread_once_t handlers_once = PTHREAD_ONCE_INIT;

static uint32_t hash(const char *key)
{
    uint32_t h = 2166136261u;
    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * 16777619u;
    return h % BUCKETS;
}

static void choose_handlers(void)
{
    size_t count;
    handlers = ptx_handlers_generic(&count);
#ifdef PTX_HAS_WIDE
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("f16c"))
        handlers = ptx_handlers_wide(&count);
#endif
    for (size_t i = 0; i < count; i++) {
        uint32_t at = hash(handlers[i].key);
        while (buckets[at])
            at = (at + 1) % BUCKETS;
        buckets[at] = (uint16_t)(i + 1);
    }
}

ptx_handler ptx_handler_find(const char *key, const char **shape)
{
    pthread_once(&handlers_once, choose_handlers);
    for (uint32_t at = hash(key); buckets[at]; at = (at + 1) % BUCKETS) {
        const struct handler_entry *entry = &handlers[buckets[at] - 1];
        if (strcmp(entry->key, key) != 0)
            continue;
        if (shape)
            *shape = entry->shape;
        return entry->run;
    }
    return NULL;
}

/* ---- Modifiers --------------------------------------------------------------------------------------------------- */

static void remove_modifier(struct statement *s, int index)
{
    for (int i = index; i + 1 < s->modifier_count; i++)
        s->modifiers[i] = s->modifiers[i + 1];
    s->modifier_count--;
}

int ptx_take(struct statement *s, const char *modifier)
{
    for (int i = 0; i < s->modifier_count; i++)
        if (strcmp(s->modifiers[i], modifier) == 0) {
            remove_modifier(s, i);
            return 1;
        }
    return 0;
}

const char *ptx_take_any(struct statement *s, const char *const *names)
{
    for (; *names; names++)
        if (ptx_take(s, *names))
            return *names;
    return NULL;
}

const struct type *ptx_take_type(struct statement *s)
{
    const struct type *type = s->modifier_count ? ptx_named(s->modifiers[s->modifier_count - 1]) : NULL;
    if (type)
        s->modifier_count--;
    return type;
}

int ptx_rest(struct parser *parser, struct statement *s)
{
    if (!s->modifier_count)
        return 1;
    ptx_refuse(parser, "does not support the modifier .%.60s of %.60s", s->modifiers[0], s->name);
    return 0;
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

struct ptx_ins *ptx_emit(struct parser *parser, const struct statement *statement, ptx_handler run, enum ins_kind kind)
{
    static struct ptx_ins lost;
    struct ptx_function *function = ptx_current(parser);
    struct ptx_ins *larger = ptx_grow(function->code, &function->count, &function->capacity, sizeof *larger);
    if (!larger) {
        parser->program->is_lost = 1;
        return &lost;
    }
    function->code = larger;
    struct ptx_ins *ins = &larger[function->count - 1];
    ins->run = run;
    ins->kind = (uint8_t)kind;
    ins->guard = statement ? statement->guard : NO_SLOT;
    ins->is_negated = statement && statement->is_negated;
    return ins;
}

/* Return the bucket of a constant of the current function, which has its offset plus one, or 0. NULL: out of memory,
 * or the table is full; the constant is then stored once more. */
static uint32_t *find_constant(struct parser *parser, uint64_t bits, uint32_t size, const uint64_t *pattern)
{
    struct sg_ptx *program = parser->program;
    if (2 * parser->known_count >= parser->known_capacity) {
        const size_t larger = parser->known_capacity ? 2 * parser->known_capacity : 256;
        free(parser->known);
        parser->known = calloc(larger, sizeof *parser->known);
        parser->known_capacity = parser->known ? larger : 0;
        parser->known_count = 0; /* constants so far are forgotten, and stored again if they are used again */
        if (!parser->known)
            return NULL;
    }
    size_t at = (size_t)((bits + size) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (parser->known_capacity - 1);
    for (; parser->known[at]; at = (at + 1) & (parser->known_capacity - 1)) {
        const uint32_t offset = parser->known[at] - 1;
        if (offset + size <= program->constant_bytes && memcmp(program->constants + offset, pattern, size) == 0)
            break;
    }
    return &parser->known[at];
}

uint32_t ptx_constant(struct parser *parser, uint64_t bits, uint32_t bytes)
{
    struct sg_ptx *program = parser->program;
    uint32_t size = bytes == 8 ? 256 : bytes ? 128 : 64;
    uint64_t pattern[WARP] = {0};
    for (int t = 0; t < WARP; t++) {
        if (bytes == 8)
            pattern[t] = bits;
        else if (bytes)
            ((uint32_t *)pattern)[t] = (uint32_t)bits;
    }
    if (!bytes)
        ((uint32_t *)pattern)[0] = (uint32_t)bits;
    uint32_t *known = find_constant(parser, bits, size, pattern);
    if (known && *known)
        return (*known - 1) | (uint32_t)BASE_CONSTANTS << SLOT_SHIFT;
    if (program->constant_bytes + 256 > program->constant_capacity) {
        uint32_t more = program->constant_capacity ? program->constant_capacity * 2 : 16384;
        unsigned char *larger = more > MAX_CONSTANTS ? NULL : aligned_alloc(64, more);
        if (!larger) {
            program->is_lost = 1;
            return (uint32_t)BASE_CONSTANTS << SLOT_SHIFT;
        }
        if (program->constant_bytes)
            memcpy(larger, program->constants, program->constant_bytes);
        free(program->constants);
        program->constants = larger;
        program->constant_capacity = more;
    }
    uint32_t slot = program->constant_bytes;
    memcpy(program->constants + slot, pattern, size);
    program->constant_bytes += size;
    if (known) {
        *known = slot + 1;
        parser->known_count++;
    }
    return slot | (uint32_t)BASE_CONSTANTS << SLOT_SHIFT;
}

uint32_t ptx_address_slot(struct parser *parser, int variable, int64_t addend)
{
    struct sg_ptx *program = parser->program;
    for (size_t i = 0; i < program->address_count; i++)
        if (program->addresses[i].variable == variable && program->addresses[i].addend == addend)
            return program->addresses[i].slot;
    struct ptx_address *larger = realloc(program->addresses, (program->address_count + 1) * sizeof *larger);
    if (!larger) {
        program->is_lost = 1;
        return 0;
    }
    program->addresses = larger;
    uint32_t slot = program->address_bytes | (uint32_t)BASE_ADDRESSES << SLOT_SHIFT;
    larger[program->address_count++] = (struct ptx_address){variable, addend, slot};
    program->address_bytes += 256;
    return slot;
}

static const struct {
    const char *name;
    enum special special;
} specials[] = {
    {"%tid.x", SPECIAL_TID_X}, {"%tid.y", SPECIAL_TID_Y}, {"%tid.z", SPECIAL_TID_Z}, {"%ntid.x", SPECIAL_NTID_X},
    {"%ntid.y", SPECIAL_NTID_Y}, {"%ntid.z", SPECIAL_NTID_Z}, {"%ctaid.x", SPECIAL_CTAID_X},
    {"%ctaid.y", SPECIAL_CTAID_Y}, {"%ctaid.z", SPECIAL_CTAID_Z}, {"%nctaid.x", SPECIAL_NCTAID_X},
    {"%nctaid.y", SPECIAL_NCTAID_Y}, {"%nctaid.z", SPECIAL_NCTAID_Z}, {"%laneid", SPECIAL_LANEID},
    {"%warpid", SPECIAL_WARPID}, {"%nwarpid", SPECIAL_NWARPID}, {"%smid", SPECIAL_SMID}, {"%nsmid", SPECIAL_NSMID},
    {"%gridid", SPECIAL_GRIDID}, {"%lanemask_eq", SPECIAL_MASK_EQ}, {"%lanemask_le", SPECIAL_MASK_LE},
    {"%lanemask_lt", SPECIAL_MASK_LT}, {"%lanemask_ge", SPECIAL_MASK_GE}, {"%lanemask_gt", SPECIAL_MASK_GT},
    {"%total_smem_size", SPECIAL_TOTAL_SHARED}, {"%dynamic_smem_size", SPECIAL_DYNAMIC_SHARED},
    {"%clock", SPECIAL_CLOCK}, {"%clock_hi", SPECIAL_CLOCK_HI}, {"%clock64", SPECIAL_CLOCK64},
    {"%globaltimer", SPECIAL_TIMER}, {"%globaltimer_lo", SPECIAL_TIMER_LO}, {"%globaltimer_hi", SPECIAL_TIMER_HI},
    {"%tid.w", SPECIAL_ZERO}, {"%ntid.w", SPECIAL_ZERO}, {"%ctaid.w", SPECIAL_ZERO}, {"%nctaid.w", SPECIAL_ZERO},
    {"%aggr_smem_size", SPECIAL_TOTAL_SHARED}, {"%is_explicit_cluster", SPECIAL_IS_CLUSTER},
    {"%cluster_ctarank", SPECIAL_CLUSTER_RANK}, {"%cluster_nctarank", SPECIAL_CLUSTER_BLOCKS},
    {"%cluster_ctaid.x", SPECIAL_IN_CLUSTER_X}, {"%cluster_ctaid.y", SPECIAL_IN_CLUSTER_Y},
    {"%cluster_ctaid.z", SPECIAL_IN_CLUSTER_Z}, {"%cluster_nctaid.x", SPECIAL_CLUSTER_SIZE_X},
    {"%cluster_nctaid.y", SPECIAL_CLUSTER_SIZE_Y}, {"%cluster_nctaid.z", SPECIAL_CLUSTER_SIZE_Z},
    {"%clusterid.x", SPECIAL_CLUSTER_X}, {"%clusterid.y", SPECIAL_CLUSTER_Y}, {"%clusterid.z", SPECIAL_CLUSTER_Z},
    {"%nclusterid.x", SPECIAL_CLUSTERS_X}, {"%nclusterid.y", SPECIAL_CLUSTERS_Y}, {"%nclusterid.z", SPECIAL_CLUSTERS_Z},
    {"%clusterid.w", SPECIAL_ZERO}, {"%nclusterid.w", SPECIAL_ZERO}, {"%cluster_ctaid.w", SPECIAL_ZERO},
    {"%cluster_nctaid.w", SPECIAL_ZERO},
    {"%reserved_smem_offset_begin", SPECIAL_ZERO}, {"%reserved_smem_offset_end", SPECIAL_ZERO},
};

static enum special find_special(const struct operand *operand)
{
    if (operand->bytes > 7 && memcmp(operand->text, "%envreg", 7) == 0) {
        int is_single = operand->bytes == 8;
        return is_single && operand->text[7] == '1'   ? SPECIAL_WORKSPACE_HI
               : is_single && operand->text[7] == '2' ? SPECIAL_WORKSPACE_LO
                                                      : SPECIAL_ZERO;
    }
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        if (strlen(specials[i].name) == operand->bytes && memcmp(specials[i].name, operand->text, operand->bytes) == 0)
            return specials[i].special;
    return SPECIAL_NONE;
}

/* A special register is a register that is set when its frame begins; clocks are read when they are used. */
static uint32_t special_slot(struct parser *parser, enum special special, int is_wide)
{
    struct ptx_function *function = ptx_current(parser);
    if (special >= SPECIAL_CLOCK) {
        uint32_t slot = ptx_new_register(parser, 256, 64);
        struct ptx_ins *ins = ptx_emit(parser, NULL, ptx_read_clock, INS_PLAIN);
        ins->o[0] = slot;
        ins->op = (uint8_t)special;
        ins->flags = is_wide ? FLAG_WIDE : 0;
        return slot;
    }
    for (size_t i = 0; i < function->special_count; i++)
        if (function->specials[i].special == special && function->specials[i].is_wide == is_wide)
            return function->specials[i].slot;
    struct special_use *larger = realloc(function->specials, (function->special_count + 1) * sizeof *larger);
    if (!larger) {
        parser->program->is_lost = 1;
        return 0;
    }
    function->specials = larger;
    uint32_t slot = ptx_new_register(parser, is_wide ? 256 : 128, 64);
    larger[function->special_count++] = (struct special_use){special, slot, is_wide};
    return slot;
}

static uint64_t number_bits(const struct operand *operand, const struct type *type)
{
    double wide = 0;
    float narrow;
    uint32_t low = (uint32_t)operand->number;
    uint64_t bits = 0;
    if (!operand->is_float) {
        if (type->class == CLASS_FLOAT && type->bytes == 8)
            wide = (double)(int64_t)operand->number;
        else if (type->class == CLASS_FLOAT && type->bytes == 4 && !type->is_pair)
            wide = (double)(int64_t)operand->number;
        else
            return type->bytes == 8 ? operand->number : type->bytes == 2 ? low & 0xffff : type->bytes == 1 ? low & 0xff : low;
    } else if (operand->is_float == 2) {
        if (type->bytes == 4)
            return low;
        memcpy(&narrow, &low, 4);
        wide = (double)narrow;
    } else {
        memcpy(&wide, &operand->number, 8);
    }
    narrow = (float)wide;
    memcpy(&bits, type->bytes == 8 ? (void *)&wide : (void *)&narrow, type->bytes == 8 ? 8 : 4);
    return bits;
}

static uint32_t symbol_value(struct parser *parser, const struct operand *operand, const struct type *type)
{
    const struct symbol *symbol = operand->symbol;
    uint32_t bytes = type->bytes == 8 ? 8 : 4;
    switch (symbol->kind) {
    case SYMBOL_VARIABLE: {
        uint32_t slot = ptx_address_slot(parser, symbol->index, operand->addend);
        if (bytes == 8)
            return slot;
        uint32_t narrow = ptx_new_register(parser, 128, 64);
        struct ptx_ins *ins = ptx_emit(parser, NULL, ptx_handler_find("narrow.32", NULL), INS_PLAIN);
        ins->o[0] = narrow;
        ins->o[1] = slot;
        return narrow;
    }
    case SYMBOL_FUNCTION:
        ptx_current(parser)->mark = 1;
        return ptx_constant(parser, WINDOW_FUNCTION | (uint64_t)symbol->index, bytes);
    case SYMBOL_LOCAL: {
        uint32_t slot = ptx_new_register(parser, 256, 64);
        struct ptx_ins *ins = ptx_emit(parser, NULL, ptx_frame_address, INS_PLAIN);
        ins->o[0] = slot;
        ins->immediate = symbol->slot + operand->addend;
        ins->flags = bytes == 8 ? FLAG_WIDE : 0;
        return slot;
    }
    case SYMBOL_PARAM:
        return ptx_constant(parser, symbol->slot + (uint64_t)operand->addend, bytes);
    default:
        ptx_refuse(parser, "takes the address of %.*s", (int)operand->bytes, operand->text);
        return NO_SLOT;
    }
}

static int fits(const struct type *have, const struct type *want)
{
    if ((have->class == CLASS_PREDICATE) != (want->class == CLASS_PREDICATE))
        return 0;
    return have->bytes <= 4 ? want->bytes <= 4 : have->bytes == want->bytes;
}

uint32_t ptx_source(struct parser *parser, struct statement *s, const struct operand *operand, const struct type *type)
{
    enum special special;
    switch (operand->kind) {
    case OPERAND_REGISTER:
        if (!fits(operand->type, type))
            break;
        if (operand->is_negated) {
            uint32_t slot = ptx_new_register(parser, 64, 64);
            struct ptx_ins *ins = ptx_emit(parser, NULL, ptx_handler_find("not.pred", NULL), INS_PLAIN);
            ins->o[0] = slot;
            ins->o[1] = operand->slot;
            return slot;
        }
        return operand->slot;
    case OPERAND_NUMBER:
        if (type->class == CLASS_PREDICATE)
            return ptx_constant(parser, operand->number ? UINT32_MAX : 0, 0);
        return ptx_constant(parser, number_bits(operand, type), type->bytes == 8 ? 8 : 4);
    case OPERAND_SYMBOL:
        return symbol_value(parser, operand, type);
    case OPERAND_LABEL:
        if (operand->bytes == 7 && memcmp(operand->text, "WARP_SZ", 7) == 0)
            return ptx_constant(parser, WARP, type->bytes == 8 ? 8 : 4);
        special = find_special(operand);
        if (special != SPECIAL_NONE)
            return special_slot(parser, special, type->bytes == 8);
        ptx_refuse(parser, "uses the unknown name %.*s", (int)operand->bytes, operand->text);
        return NO_SLOT;
    default:
        break;
    }
    ptx_refuse(parser, "has an operand of %.60s that does not fit", s->name);
    return NO_SLOT;
}

uint32_t ptx_destination(struct parser *parser, const struct operand *operand, const struct type *type)
{
    if (operand->kind == OPERAND_SINK)
        return ptx_new_register(parser, 256, 64);
    if (operand->kind == OPERAND_REGISTER && fits(operand->type, type))
        return operand->slot;
    ptx_refuse(parser, "has a destination that does not fit");
    return NO_SLOT;
}

/* ---- Statements whose name and modifiers identify their handler -------------------------------------------------- */

static const char *letter_type(char letter)
{
    switch (letter) {
    case 'h':
        return "b16";
    case 'l':
        return "b64";
    case 'f':
        return "f32";
    case 'd':
        return "f64";
    case 'p':
        return "pred";
    default:
        return "b32";
    }
}

static void make_key(const struct statement *s, char *key, size_t bytes)
{
    size_t used = (size_t)snprintf(key, bytes, "%s", s->name);
    for (int i = 0; i < s->modifier_count && used < bytes; i++)
        used += (size_t)snprintf(key + used, bytes - used, ".%s", s->modifiers[i]);
}

static void decode_plain(struct parser *parser, struct statement *s)
{
    char key[200];
    const char *shape;
    uint32_t slots[6] = {0};
    make_key(s, key, sizeof key);
    ptx_handler run = ptx_handler_find(key, &shape);
    if (!run || !*shape) {
        ptx_refuse(parser, "contains the unsupported instruction %.100s", key);
        return;
    }
    if ((int)strlen(shape) != s->count) {
        ptx_refuse(parser, "has %d operands for %.60s", s->count, key);
        return;
    }
    for (int i = 0; shape[i]; i++) {
        const struct type *type = ptx_named(letter_type(shape[i]));
        slots[i] = i ? ptx_source(parser, s, &s->operands[i], type) : ptx_destination(parser, &s->operands[0], type);
        if (slots[i] == NO_SLOT)
            return;
    }
    memcpy(ptx_emit(parser, s, run, INS_PLAIN)->o, slots, sizeof slots);
}

/* Return whether the last modifier is the only type: those of a conversion stay where they are. */
static int is_one_type(const struct statement *s)
{
    return s->modifier_count < 2 || !ptx_named(s->modifiers[s->modifier_count - 2]);
}

/* Remove modifiers that do not change the result here: rounding to nearest is the default, and approximate functions
 * are computed more accurately than they must be. Flushing and saturation come last before the type. */
static void normalize(struct statement *s)
{
    static const char *const names[] = {"add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "sin", "cos",
                                        "lg2", "ex2", "tanh", NULL};
    static const char *const last[] = {"ftz", "sat", NULL};
    const char *named = s->modifier_count ? s->modifiers[s->modifier_count - 1] : "";
    const struct type *type = ptx_named(named);
    int is_order = strcmp(s->name, "min") == 0 || strcmp(s->name, "max") == 0;
    if (strcmp(named, "f32x2") != 0 && (!type || (type->class != CLASS_FLOAT && type->class != CLASS_BF16)))
        return;
    for (int i = 0; names[i]; i++)
        if (strcmp(s->name, names[i]) == 0) {
            ptx_take(s, "rn");
            ptx_take(s, "approx");
            ptx_take(s, "full");
        }
    if (strcmp(s->name, "mad") == 0)
        strcpy(s->name, "fma");
    if (is_order && s->count == 4)
        strcat(s->name, "3");
    for (int i = 0; last[i] && is_one_type(s); i++)
        if (ptx_take(s, last[i])) {
            s->modifiers[s->modifier_count - 1] = last[i];
            s->modifiers[s->modifier_count++] = named;
        }
}

void ptx_decode(struct parser *parser, struct statement *s)
{
    if (ptx_current(parser)->reason) /* nothing of the function will be executed */
        return;
    if (ptx_decode_cluster(parser, s) || ptx_decode_control(parser, s) || ptx_decode_memory(parser, s) ||
        ptx_decode_matrix(parser, s) || ptx_decode_group(parser, s) || ptx_decode_fragments(parser, s) ||
        ptx_decode_video(parser, s))
        return;
    normalize(s);
    if (!ptx_decode_data(parser, s))
        decode_plain(parser, s);
}

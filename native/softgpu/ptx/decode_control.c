/* Decoding of branches, calls, barriers and communication within a warp. */
#include "softgpu/ptx/internal.h"

#include <stdlib.h>
#include <string.h>

static void refer(struct parser *parser, const struct operand *label)
{
    struct reference *larger = ptx_grow(parser->references, &parser->reference_count, &parser->reference_capacity,
                                        sizeof *larger);
    if (!larger) {
        parser->program->is_lost = 1;
        return;
    }
    parser->references = larger;
    larger[parser->reference_count - 1] =
        (struct reference){label->text, label->bytes, parser->scope, ptx_current(parser)->count - 1, NULL};
}

static void decode_branch(struct parser *parser, struct statement *s)
{
    if (s->count != 1 || s->operands[0].kind != OPERAND_LABEL) {
        ptx_refuse(parser, "has a branch without a label");
        return;
    }
    ptx_emit(parser, s, NULL, INS_BRANCH);
    refer(parser, &s->operands[0]);
}

static void decode_branch_index(struct parser *parser, struct statement *s)
{
    const struct symbol *targets = s->count == 2 ? s->operands[1].symbol : NULL;
    if (!ptx_take(s, "idx") || !targets || targets->kind != SYMBOL_TARGETS) {
        ptx_refuse(parser, "has an indexed branch without a list of labels");
        return;
    }
    uint32_t index = ptx_source(parser, s, &s->operands[0], ptx_named("u32"));
    struct ptx_ins *ins = ptx_emit(parser, s, NULL, INS_BRANCH_INDEX);
    ins->o[0] = index;
    ins->list = targets->targets;
    ins->target = targets->target_count;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static int system_function(const char *name)
{
    static const struct {
        const char *name;
        enum system_call call;
    } known[] = {{"vprintf", SYSTEM_PRINTF}, {"malloc", SYSTEM_MALLOC}, {"free", SYSTEM_FREE},
                 {"__assertfail", SYSTEM_ASSERT},
                 {"__cuda_syscall_CGS_get_intrinsic_handle", SYSTEM_GRID_HANDLE},
                 {"__cuda_syscall_CGS_sync", SYSTEM_GRID_SYNC}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].call;
    return SYSTEM_NONE;
}

static int add_callee(struct parser *parser, int index)
{
    struct ptx_function *function = ptx_current(parser);
    int *larger = realloc(function->callees, (function->callee_count + 1) * sizeof *larger);
    if (!larger) {
        parser->program->is_lost = 1;
        return -1;
    }
    function->callees = larger;
    larger[function->callee_count++] = index;
    return 0;
}

/* Record one argument or result: memory of the area, a register, or a constant. */
static int call_value(struct parser *parser, struct statement *s, const struct operand *one, struct ptx_call *call,
                      uint32_t at, uint32_t *slot)
{
    if (one->kind == OPERAND_SYMBOL && one->symbol->kind == SYMBOL_AREA) {
        call->is_area[at] = 1;
        call->bytes[at] = one->symbol->size;
        *slot = one->symbol->slot;
        return 0;
    }
    const struct type *type = one->kind == OPERAND_REGISTER ? one->type : ptx_named("b32");
    *slot = ptx_source(parser, s, one, type);
    call->bytes[at] = type->class == CLASS_PREDICATE ? 0 : type->bytes;
    return *slot == NO_SLOT ? -1 : 0;
}

static void decode_call(struct parser *parser, struct statement *s)
{
    int at = 0;
    ptx_take(s, "uni");
    const struct operand *results = at < s->count && s->operands[at].kind == OPERAND_LIST ? &s->operands[at++] : NULL;
    const struct operand *callee = at < s->count ? &s->operands[at++] : NULL;
    const struct operand *arguments = at < s->count && s->operands[at].kind == OPERAND_LIST ? &s->operands[at++] : NULL;
    struct sg_ptx *program = parser->program;
    uint32_t in = arguments ? (uint32_t)arguments->count : 0, out = results ? (uint32_t)results->count : 0;
    struct ptx_call *call = ptx_keep(program, sizeof *call);
    uint32_t *slots = ptx_keep(program, (in + out) * 2 * sizeof *slots);
    uint8_t *is_area = ptx_keep(program, in + out);
    if (!call || !slots || !is_area)
        return;
    *call = (struct ptx_call){.function = NONE, .arguments = slots, .results = slots + in, .is_area = is_area,
                              .bytes = slots + in + out, .argument_count = in, .result_count = out};
    uint32_t target = 0;
    if (callee && callee->kind == OPERAND_SYMBOL && callee->symbol->kind == SYMBOL_FUNCTION) {
        call->function = callee->symbol->index;
        if (!program->functions[call->function].is_defined)
            call->system = system_function(program->functions[call->function].name);
        if (!call->system && add_callee(parser, call->function) < 0)
            return;
    } else if (callee && callee->kind == OPERAND_REGISTER) {
        target = ptx_source(parser, s, callee, ptx_named("u64"));
    } else {
        ptx_refuse(parser, "calls an unknown function");
        return;
    }
    for (uint32_t i = 0; i < in; i++)
        if (call_value(parser, s, &s->members[arguments->first + (int)i], call, i, &call->arguments[i]) < 0)
            return;
    for (uint32_t i = 0; i < out; i++)
        if (call_value(parser, s, &s->members[results->first + (int)i], call, in + i, &call->results[i]) < 0)
            return;
    if (ptx_rest(parser, s)) {
        struct ptx_ins *ins = ptx_emit(parser, s, NULL, INS_CALL);
        ins->call = call;
        ins->o[0] = target;
    }
}

/* ---- Barriers ---------------------------------------------------------------------------------------------------- */

static void decode_barrier(struct parser *parser, struct statement *s)
{
    static const char *const kinds[] = {"sync", "arrive", "red", NULL};
    static const char *const ops[] = {"popc", "and", "or", NULL};
    const struct type *b32 = ptx_named("b32"), *pred = ptx_named("pred");
    if (ptx_take(s, "warp")) {
        uint32_t members = s->count == 1 && ptx_take(s, "sync") ? ptx_source(parser, s, &s->operands[0], b32) : NO_SLOT;
        if (members == NO_SLOT)
            ptx_refuse(parser, "has an invalid barrier of a warp");
        ptx_emit(parser, s, NULL, INS_WARP_WAIT)->o[5] = members;
        return;
    }
    if (ptx_take(s, "cluster")) {
        ptx_decode_cluster_barrier(parser, s);
        return;
    }
    ptx_take(s, "cta");
    ptx_take(s, "aligned");
    const char *kind = ptx_take_any(s, kinds), *op = kind && *kind == 'r' ? ptx_take_any(s, ops) : NULL;
    int is_red = op != NULL, at = 0;
    const struct type *type = is_red ? ptx_take_type(s) : NULL;
    uint32_t result = NO_SLOT, value = 0, id, count = NO_SLOT;
    if (!kind || (*kind == 'r' && (!is_red || !type)) || !ptx_rest(parser, s) || s->count < 1 + 2 * is_red) {
        ptx_refuse(parser, "has an invalid barrier");
        return;
    }
    if (is_red)
        result = ptx_destination(parser, &s->operands[at++], type);
    id = ptx_source(parser, s, &s->operands[at++], b32);
    if (s->count - at > is_red)
        count = ptx_source(parser, s, &s->operands[at++], b32);
    if (is_red)
        value = ptx_source(parser, s, &s->operands[at], pred);
    struct ptx_ins *ins = ptx_emit(parser, s, NULL, INS_BARRIER);
    ins->o[0] = id;
    ins->o[1] = count;
    ins->o[2] = result;
    ins->o[3] = value;
    ins->op = (uint8_t)(is_red ? (*op == 'p' ? 2 : *op == 'a' ? 3 : 4) : *kind == 'a');
}

/* ---- Communication within a warp --------------------------------------------------------------------------------- */

static struct ptx_ins *emit_warp(struct parser *parser, struct statement *s, ptx_handler run, int members)
{
    uint32_t slot = members < 0 ? NO_SLOT : ptx_source(parser, s, &s->operands[members], ptx_named("b32"));
    struct ptx_ins *ins = ptx_emit(parser, s, run, INS_WARP);
    ins->o[5] = slot;
    return ins;
}

static void decode_shuffle(struct parser *parser, struct statement *s)
{
    static const char *const modes[] = {"up", "down", "bfly", "idx", NULL};
    const struct type *b32 = ptx_named("b32"), *pred = ptx_named("pred");
    int is_sync = ptx_take(s, "sync"), at = 0;
    const char *mode = ptx_take_any(s, modes);
    if (!mode || s->count != 4 + is_sync || !ptx_take(s, "b32")) {
        ptx_refuse(parser, "has an invalid shuffle");
        return;
    }
    uint32_t d = ptx_destination(parser, &s->operands[at], b32), p = NO_SLOT, slots[3];
    if (s->operands[at].second)
        p = ptx_destination(parser, s->operands[at].second, pred);
    for (int i = 0; i < 3; i++)
        slots[i] = ptx_source(parser, s, &s->operands[1 + i], b32);
    struct ptx_ins *ins = emit_warp(parser, s, ptx_shuffle, is_sync ? 4 : -1);
    ins->o[0] = d;
    memcpy(&ins->o[1], slots, sizeof slots);
    ins->o[4] = p;
    while (strcmp(modes[ins->op], mode) != 0)
        ins->op++;
}

static void decode_vote(struct parser *parser, struct statement *s)
{
    static const char *const modes[] = {"all", "any", "uni", "ballot", NULL};
    int is_sync = ptx_take(s, "sync");
    const char *mode = ptx_take_any(s, modes);
    const struct type *type = ptx_take_type(s), *pred = ptx_named("pred");
    if (!mode || !type || s->count != 2 + is_sync) {
        ptx_refuse(parser, "has an invalid vote");
        return;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], type), a = ptx_source(parser, s, &s->operands[1], pred);
    struct ptx_ins *ins = emit_warp(parser, s, ptx_vote, is_sync ? 2 : -1);
    ins->o[0] = d;
    ins->o[1] = a;
    while (strcmp(modes[ins->op], mode) != 0)
        ins->op++;
}

static void decode_match(struct parser *parser, struct statement *s)
{
    int is_all = ptx_take(s, "all"), is_any = ptx_take(s, "any");
    ptx_take(s, "sync");
    const struct type *type = ptx_take_type(s);
    if ((!is_all && !is_any) || !type || s->count != 3) {
        ptx_refuse(parser, "has an invalid match");
        return;
    }
    uint32_t p = NO_SLOT, d = ptx_destination(parser, &s->operands[0], ptx_named("b32"));
    if (s->operands[0].second)
        p = ptx_destination(parser, s->operands[0].second, ptx_named("pred"));
    uint32_t a = ptx_source(parser, s, &s->operands[1], type);
    struct ptx_ins *ins = emit_warp(parser, s, ptx_match, 2);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->o[4] = p;
    ins->op = (uint8_t)is_all;
    ins->bytes = (uint8_t)type->bytes;
}

static void decode_redux(struct parser *parser, struct statement *s)
{
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor", NULL};
    ptx_take(s, "sync");
    const char *op = ptx_take_any(s, ops);
    const int is_abs = ptx_take(s, "abs"), is_nan = ptx_take(s, "NaN");
    const struct type *type = ptx_take_type(s);
    const int is_real = type && type->class == CLASS_FLOAT, is_order = op && op[0] == 'm';
    if (!op || !type || type->bytes != 4 || type->is_pair || (is_real && !is_order) || (!is_real && (is_abs || is_nan)) ||
        type->class == CLASS_BF16 || s->count != 3 || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported redux");
        return;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], type), a = ptx_source(parser, s, &s->operands[1], type);
    struct ptx_ins *ins = emit_warp(parser, s, is_real ? ptx_reduce_real : ptx_reduce, 2);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->flags = type->class == CLASS_SIGNED ? FLAG_SIGNED : 0;
    ins->round = (uint8_t)(is_abs | is_nan << 1);
    while (strcmp(ops[ins->op], op) != 0)
        ins->op++;
}

static void decode_elect(struct parser *parser, struct statement *s)
{
    uint32_t p = s->count == 2 && s->operands[0].second
                     ? ptx_destination(parser, s->operands[0].second, ptx_named("pred"))
                     : NO_SLOT;
    if (!ptx_take(s, "sync") || p == NO_SLOT) {
        ptx_refuse(parser, "has an invalid elect");
        return;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], ptx_named("b32"));
    struct ptx_ins *ins = emit_warp(parser, s, ptx_elect, 1);
    ins->o[0] = d;
    ins->o[4] = p;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static const char *const without_effect[] = {"membar", "fence", "nanosleep", "prefetch", "prefetchu", "discard",
                                             "applypriority", "griddepcontrol", "setmaxnreg", "pmevent", "brkpt", NULL};

int ptx_decode_control(struct parser *parser, struct statement *s)
{
    static const struct {
        const char *name;
        void (*decode)(struct parser *, struct statement *);
    } table[] = {{"bra", decode_branch},     {"brx", decode_branch_index}, {"call", decode_call},
                 {"bar", decode_barrier},    {"barrier", decode_barrier},  {"shfl", decode_shuffle},
                 {"vote", decode_vote},      {"match", decode_match},      {"redux", decode_redux},
                 {"elect", decode_elect}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(s->name, table[i].name) == 0) {
            table[i].decode(parser, s);
            return 1;
        }
    for (int i = 0; without_effect[i]; i++)
        if (strcmp(s->name, without_effect[i]) == 0) {
            ptx_emit(parser, s, NULL, INS_NOTHING); /* it counts as an instruction of an endless loop */
            return 1;
        }
    if (strcmp(s->name, "ret") == 0) {
        ptx_emit(parser, s, NULL, ptx_current(parser)->is_entry ? INS_EXIT : INS_RETURN);
    } else if (strcmp(s->name, "exit") == 0) {
        ptx_emit(parser, s, NULL, INS_EXIT);
    } else if (strcmp(s->name, "trap") == 0) {
        ptx_emit(parser, s, NULL, INS_TRAP);
    } else if (strcmp(s->name, "activemask") == 0 && s->count == 1) {
        uint32_t d = ptx_destination(parser, &s->operands[0], ptx_named("b32"));
        ptx_emit(parser, s, ptx_active_mask, INS_PLAIN)->o[0] = d;
    } else {
        return 0;
    }
    return 1;
}

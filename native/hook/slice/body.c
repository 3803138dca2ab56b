/* The instructions of a function, and whether each gives the same result in a part of the grid. */
#include "hook/slice/internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const opcodes[] = {
    "add",       "sub",       "mul",      "mad",       "mul24",    "mad24",    "sad",      "div",       "rem",
    "abs",       "neg",       "min",      "max",       "popc",     "clz",      "bfind",    "fns",       "brev",
    "bfe",       "bfi",       "bmsk",     "szext",     "dp4a",     "dp2a",     "addc",     "subc",      "madc",
    "testp",     "copysign",  "fma",      "rcp",       "sqrt",     "rsqrt",    "sin",      "cos",       "lg2",
    "ex2",       "tanh",      "set",      "setp",      "selp",     "slct",     "and",      "or",        "xor",
    "not",       "cnot",      "lop3",     "shl",       "shr",      "shf",      "mov",      "shfl",      "prmt",
    "ld",        "ldu",       "st",       "prefetch",  "prefetchu", "isspacep", "cvta",    "cvt",       "createpolicy",
    "discard",   "applypriority", "tex",  "tld4",      "txq",      "istypep",  "suld",     "sust",      "sured",
    "suq",       "bra",       "brx",      "call",      "ret",      "exit",     "bar",      "barrier",   "membar",
    "fence",     "atom",      "red",      "vote",      "match",    "activemask", "redux",  "elect",     "cp",
    "mbarrier",  "wmma",      "mma",      "ldmatrix",  "stmatrix", "movmatrix", "wgmma",   "setmaxnreg", "brkpt",
    "nanosleep", "pmevent",   "trap",     "alloca",    "stacksave", "stackrestore",
    "vadd2",     "vadd4",     "vsub2",    "vsub4",     "vavrg2",   "vavrg4",   "vabsdiff2", "vabsdiff4", "vmin2",
    "vmin4",     "vmax2",     "vmax4",    "vset2",     "vset4"};

/* Registers whose values do not depend on the grid that a block belongs to. */
static const char *const specials[] = {
    "%tid",         "%ntid",        "%laneid",      "%warpid",      "%nwarpid",         "%lanemask_eq",
    "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt", "%clock",           "%clock_hi",
    "%clock64",     "%globaltimer", "%globaltimer_lo", "%globaltimer_hi", "%dynamic_smem_size", "%total_smem_size",
    "%aggr_smem_size"};

/* Functions of the device's runtime that do not start other work. */
static const char *const system_functions[] = {"vprintf", "malloc", "free", "__assertfail"};

static uint32_t first_bytes(const struct token *token)
{
    const char *dot = memchr(token->text + 1, '.', token->bytes - 1);
    return token->bytes > 1 && dot ? (uint32_t)(dot - token->text) : token->bytes;
}

/* Returns whether the part of the word before its first dot is in the list. */
static int is_listed(const struct ptx *ptx, uint32_t token, const char *const *list, size_t count)
{
    const struct token *one = &ptx->tokens[token];
    const uint32_t bytes = one->bytes ? first_bytes(one) : 0;
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i]) == bytes && memcmp(list[i], one->text, bytes) == 0)
            return 1;
    return 0;
}
#define IS_LISTED(ptx, token, list) is_listed(ptx, token, list, sizeof(list) / sizeof(list)[0])

int ct_ptx_grid_read(const struct ptx *ptx, uint32_t token)
{
    static const char *const names[] = {"%ctaid", "%nctaid"}, *const letters[] = {"xyzw", "rgba"};
    const struct token *one = &ptx->tokens[token];
    for (int i = 0; i < 2; i++) {
        const size_t length = strlen(names[i]);
        if (one->bytes < length || memcmp(one->text, names[i], length) != 0)
            continue;
        if (one->bytes == length)
            return CT_PTX_VECTOR + 4 * i;
        for (int k = 0; k < 2 && one->bytes == length + 2 && one->text[length] == '.'; k++)
            for (int c = 0; c < 4; c++)
                if (one->text[length + 1] == letters[k][c])
                    return 4 * i + c;
    }
    return -1;
}

/* ---- registers ---------------------------------------------------------------------------------------------------- */

enum { FIRST_BUCKETS = 64 };

/* Returns the bucket of a name, which is empty if no register has it. */
static uint32_t *find_bucket(const struct ptx *ptx, const char *name, uint32_t bytes)
{
    size_t at = ct_ptx_hash(name, bytes) & (ptx->bucket_count - 1);
    for (;; at = (at + 1) & (ptx->bucket_count - 1)) {
        const struct token *one = &ptx->tokens[ptx->registers[at]];
        if (!ptx->registers[at] || (one->bytes == bytes && memcmp(one->text, name, bytes) == 0))
            return &ptx->registers[at];
    }
}

/* Makes room for one more register, so that at most half of the buckets are used. */
static int grow_buckets(struct ptx *ptx)
{
    uint32_t *const old = ptx->registers;
    const size_t old_count = ptx->bucket_count;
    if (2 * (ptx->register_count + 1) <= old_count)
        return 1;
    ptx->bucket_count = old_count ? 2 * old_count : FIRST_BUCKETS;
    ptx->registers = calloc(ptx->bucket_count, sizeof *ptx->registers);
    for (size_t i = 0; i < old_count && ptx->registers; i++)
        if (old[i])
            *find_bucket(ptx, ptx->tokens[old[i]].text, ptx->tokens[old[i]].bytes) = old[i];
    free(old);
    ptx->is_lost |= !ptx->registers;
    return ptx->registers != NULL;
}

static int add_register(struct ptx *ptx, uint32_t token)
{
    if (ct_ptx_is(ptx, token + 1, "<")) {
        uint32_t *range = ct_ptx_add(ptx, &ptx->ranges, &ptx->range_count, &ptx->range_capacity, sizeof *range);
        if (range)
            *range = token;
        return range != NULL;
    }
    if (!grow_buckets(ptx))
        return 0;
    uint32_t *bucket = find_bucket(ptx, ptx->tokens[token].text, ptx->tokens[token].bytes);
    ptx->register_count += !*bucket;
    *bucket = token;
    return 1;
}

static void forget_registers(struct ptx *ptx)
{
    free(ptx->registers);
    ptx->registers = NULL;
    ptx->range_count = ptx->register_count = ptx->bucket_count = 0;
}

/* Reads .reg .b32 %a<4>, %b; */
static int read_registers(struct ptx *ptx, uint32_t *at)
{
    for (; !ct_ptx_is(ptx, *at, ";"); ++*at) {
        const struct token *token = &ptx->tokens[*at];
        if (token->kind == TOKEN_END || ct_ptx_is(ptx, *at, "}"))
            return 0;
        if (token->kind == TOKEN_WORD && *token->text != '.' && !add_register(ptx, *at))
            return 0;
    }
    return 1;
}

/* Returns whether the word is a declared register, a member of a declared range, or an element of a vector. */
static int is_register(const struct ptx *ptx, uint32_t token)
{
    const struct token *one = &ptx->tokens[token];
    const uint32_t bytes = first_bytes(one);
    if (ptx->registers && *find_bucket(ptx, one->text, bytes))
        return 1;
    for (size_t i = 0; i < ptx->range_count; i++) {
        const struct token *name = &ptx->tokens[ptx->ranges[i]];
        int is_member = name->bytes < bytes && bytes - name->bytes <= 9 &&
                        memcmp(name->text, one->text, name->bytes) == 0;
        for (uint32_t c = name->bytes; c < bytes && is_member; c++)
            is_member = one->text[c] >= '0' && one->text[c] <= '9';
        if (is_member)
            return 1;
    }
    return 0;
}

/* ---- instructions ------------------------------------------------------------------------------------------------- */

/* The special registers are 32 bits wide; a variant reads them from a register of this width. */
static int is_32_bits_wide(const struct ptx *ptx, uint32_t opcode)
{
    const struct token *one = &ptx->tokens[opcode];
    const char *suffix = one->text + one->bytes - (one->bytes >= 4 ? 4 : 0);
    return one->bytes >= 4 && (memcmp(suffix, ".u32", 4) == 0 || memcmp(suffix, ".s32", 4) == 0 ||
                               memcmp(suffix, ".b32", 4) == 0);
}

/* Returns whether the instruction is mov.v4.u32 of a whole vector into four registers or another vector. */
static int is_vector_read(const struct ptx *ptx, const struct ins *ins)
{
    uint32_t at = ins->opcode + 1;
    if (!ct_ptx_is(ptx, ins->opcode, "mov.v4.u32") && !ct_ptx_is(ptx, ins->opcode, "mov.v4.b32") &&
        !ct_ptx_is(ptx, ins->opcode, "mov.v4.s32"))
        return 0;
    if (ct_ptx_is(ptx, at, "{")) {
        for (int i = 0; i < 4; i++)
            if (ptx->tokens[at + 1 + 2 * (uint32_t)i].kind != TOKEN_WORD ||
                !ct_ptx_is(ptx, at + 2 + 2 * (uint32_t)i, i < 3 ? "," : "}"))
                return 0;
        at += 9;
    } else if (ptx->tokens[at].kind == TOKEN_WORD) {
        at++;
    } else {
        return 0;
    }
    return ct_ptx_is(ptx, at, ",") && ct_ptx_grid_read(ptx, at + 1) >= CT_PTX_VECTOR && at + 2 == ins->end;
}

static enum ct_ptx_reason check_word(struct ptx *ptx, struct function *function, const struct ins *ins, uint32_t at)
{
    const struct token *one = &ptx->tokens[at];
    if (one->kind != TOKEN_WORD || *one->text != '%')
        return CT_PTX_ELIGIBLE;
    const int grid_read = ct_ptx_grid_read(ptx, at);
    if (grid_read >= 0) {
        function->reads_grid |= grid_read < CT_PTX_VECTOR ? 1u << grid_read : CT_PTX_WHOLE_GRID;
        const int is_known = grid_read < CT_PTX_VECTOR ? is_32_bits_wide(ptx, ins->opcode) : is_vector_read(ptx, ins);
        return is_known ? CT_PTX_ELIGIBLE : CT_PTX_GRID_READ;
    }
    if (is_register(ptx, at) || IS_LISTED(ptx, at, specials) || ct_ptx_begins(ptx, at, "%reserved_smem_offset"))
        return CT_PTX_ELIGIBLE;
    if (ct_ptx_has(ptx, at, "cluster"))
        return CT_PTX_CLUSTER;
    if (ct_ptx_is(ptx, at, "%gridid") || ct_ptx_is(ptx, at, "%smid") || ct_ptx_is(ptx, at, "%nsmid") ||
        ct_ptx_begins(ptx, at, "%envreg"))
        return CT_PTX_GRID_IDENTITY;
    return CT_PTX_REGISTER;
}

/* Reads call (results), name, (arguments); the lists are optional. */
static enum ct_ptx_reason read_call(struct ptx *ptx, struct function *function, const struct ins *ins)
{
    uint32_t at = ins->opcode + 1;
    struct call read = {.first = ins->first};
    if (ct_ptx_is(ptx, at, "(")) {
        at = ct_ptx_skip_group(ptx, at);
        if (!ct_ptx_is(ptx, at++, ","))
            return CT_PTX_NOT_UNDERSTOOD;
    }
    read.name = read.add = at;
    if (ptx->tokens[at].kind != TOKEN_WORD)
        return CT_PTX_NOT_UNDERSTOOD;
    const int callee = ct_ptx_function(ptx, at++);
    if (ct_ptx_is(ptx, at, ",") && ct_ptx_is(ptx, at + 1, "(")) {
        read.has_list = 1;
        read.has_arguments = !ct_ptx_is(ptx, at + 2, ")");
        at = ct_ptx_skip_group(ptx, at + 1);
        read.add = at - 1;
    }
    if (callee < 0 || at != ins->end)
        return CT_PTX_INDIRECT_CALL;
    if (!ptx->functions[callee].body) {
        if (IS_LISTED(ptx, read.name, system_functions))
            return CT_PTX_ELIGIBLE;
        return ct_ptx_begins(ptx, read.name, "cuda") ? CT_PTX_LAUNCHES : CT_PTX_UNKNOWN_FUNCTION;
    }
    if (function->is_read)
        return CT_PTX_ELIGIBLE;
    read.callee = (uint32_t)callee;
    struct call *call = ct_ptx_add(ptx, &ptx->calls, &ptx->call_count, &ptx->call_capacity, sizeof *call);
    if (!call)
        return CT_PTX_TOO_LARGE;
    *call = read;
    function->call_count++;
    return CT_PTX_ELIGIBLE;
}

static int is_opcode(const struct ptx *ptx, uint32_t token, const char *name)
{
    const struct token *one = &ptx->tokens[token];
    return strlen(name) == first_bytes(one) && memcmp(name, one->text, first_bytes(one)) == 0;
}

static enum ct_ptx_reason check_instruction(struct ptx *ptx, struct function *function, const struct ins *ins)
{
    if (is_opcode(ptx, ins->opcode, "griddepcontrol"))
        return CT_PTX_ORDER;
    for (uint32_t at = ins->first; at < ins->end; at++)
        if (ct_ptx_has(ptx, at, "cluster"))
            return CT_PTX_CLUSTER;
    if (!IS_LISTED(ptx, ins->opcode, opcodes))
        return CT_PTX_INSTRUCTION;
    if (is_opcode(ptx, ins->opcode, "membar") || is_opcode(ptx, ins->opcode, "fence") ||
        is_opcode(ptx, ins->opcode, "nanosleep"))
        function->has_fence = 1;
    for (uint32_t at = ins->first; at < ins->end; at++) {
        const enum ct_ptx_reason reason = check_word(ptx, function, ins, at);
        if (reason != CT_PTX_ELIGIBLE)
            return reason;
    }
    return is_opcode(ptx, ins->opcode, "call") ? read_call(ptx, function, ins) : CT_PTX_ELIGIBLE;
}

/* Reads a guard, an opcode and operands. */
static enum ct_ptx_reason read_instruction(struct ptx *ptx, struct function *function, uint32_t *at)
{
    struct ins read = {.first = *at, .line = (uint32_t)(ptx->ins_count + ptx->label_count)};
    if (ct_ptx_is(ptx, *at, "@")) {
        *at += ct_ptx_is(ptx, *at + 1, "!") ? 2 : 1;
        read.guard = (*at)++;
        if (ptx->tokens[read.guard].kind != TOKEN_WORD)
            return CT_PTX_NOT_UNDERSTOOD;
    }
    read.opcode = *at;
    if (ptx->tokens[*at].kind != TOKEN_WORD || *ptx->tokens[*at].text == '.')
        return CT_PTX_NOT_UNDERSTOOD;
    while (!ct_ptx_is(ptx, *at, ";")) {
        if (*at >= function->body_end)
            return CT_PTX_NOT_UNDERSTOOD;
        ++*at;
    }
    read.end = (*at)++;
    struct ins *ins = ct_ptx_add(ptx, &ptx->ins, &ptx->ins_count, &ptx->ins_capacity, sizeof *ins);
    if (!ins)
        return CT_PTX_TOO_LARGE;
    *ins = read;
    return check_instruction(ptx, function, ins);
}

/* Returns the token behind .loc 1 10 3 and, optionally, ", function_name $name + 4, inlined_at 1 8 2". */
static uint32_t skip_location(const struct ptx *ptx, uint32_t at)
{
    for (at++; ptx->tokens[at].kind == TOKEN_NUMBER;)
        at++;
    while (ct_ptx_is(ptx, at, ",")) {
        at++;
        while (ptx->tokens[at].kind == TOKEN_NUMBER || ct_ptx_is(ptx, at, "+") || ct_ptx_is(ptx, at, "function_name") ||
               ct_ptx_is(ptx, at, "inlined_at") || (at && ct_ptx_is(ptx, at - 1, "function_name")))
            at++;
    }
    return at;
}

/* Reads a directive within a body; `at` becomes the token behind it. */
static enum ct_ptx_reason read_local(struct ptx *ptx, const struct function *function, uint32_t *at)
{
    if (ct_ptx_is(ptx, *at, ".loc")) {
        *at = skip_location(ptx, *at);
        return CT_PTX_ELIGIBLE;
    }
    if (ct_ptx_is(ptx, *at, ".callprototype") || ct_ptx_is(ptx, *at, ".calltargets"))
        return CT_PTX_INDIRECT_CALL;
    if (ct_ptx_is(ptx, *at, ".reg")) {
        if (!read_registers(ptx, at))
            return CT_PTX_NOT_UNDERSTOOD;
    } else if (!ct_ptx_is(ptx, *at, ".local") && !ct_ptx_is(ptx, *at, ".shared") && !ct_ptx_is(ptx, *at, ".param") &&
               !ct_ptx_is(ptx, *at, ".pragma") && !ct_ptx_is(ptx, *at, ".branchtargets")) {
        return CT_PTX_NOT_UNDERSTOOD;
    }
    while (*at < function->body_end && !ct_ptx_is(ptx, *at, ";"))
        ++*at;
    return ct_ptx_is(ptx, (*at)++, ";") ? CT_PTX_ELIGIBLE : CT_PTX_NOT_UNDERSTOOD;
}

enum ct_ptx_reason ct_ptx_read_body(struct ptx *ptx, struct function *function)
{
    enum ct_ptx_reason reason = CT_PTX_ELIGIBLE;
    uint32_t at = function->body + 1;
    ptx->ins_count = ptx->label_count = 0;
    forget_registers(ptx);
    if (!function->is_read)
        function->first_call = (uint32_t)ptx->call_count;
    while (at < function->body_end && reason == CT_PTX_ELIGIBLE) {
        const struct token *token = &ptx->tokens[at];
        if (ct_ptx_is(ptx, at, "{") || ct_ptx_is(ptx, at, "}") || ct_ptx_is(ptx, at, ";")) {
            at++;
        } else if (token->kind == TOKEN_WORD && *token->text == '.') {
            reason = read_local(ptx, function, &at);
        } else if (token->kind == TOKEN_WORD && ct_ptx_is(ptx, at + 1, ":")) {
            struct label *label = ct_ptx_add(ptx, &ptx->labels, &ptx->label_count, &ptx->label_capacity, sizeof *label);
            if (!label)
                return CT_PTX_TOO_LARGE;
            *label = (struct label){at, (uint32_t)(ptx->ins_count + ptx->label_count)};
            at += 2;
        } else {
            reason = read_instruction(ptx, function, &at);
        }
    }
    function->is_read = 1;
    return reason;
}

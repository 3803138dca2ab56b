/* The functions of a PTX text: directives outside functions, parameters, and where the bodies are. */
#include "hook/slice/internal.h"

static uint32_t skip_statement(const struct ptx *ptx, uint32_t at)
{
    while (ptx->tokens[at].kind != TOKEN_END && !ct_ptx_is(ptx, at, ";"))
        at++;
    return at + (ptx->tokens[at].kind != TOKEN_END);
}

uint32_t ct_ptx_skip_group(const struct ptx *ptx, uint32_t at)
{
    int depth = 0;
    do {
        const struct token *token = &ptx->tokens[at];
        if (token->kind == TOKEN_END)
            return at;
        if (token->kind == TOKEN_OTHER) {
            depth += *token->text == '{' || *token->text == '(' || *token->text == '[';
            depth -= *token->text == '}' || *token->text == ')' || *token->text == ']';
        }
        at++;
    } while (depth > 0);
    return at;
}

int ct_ptx_function(const struct ptx *ptx, uint32_t name)
{
    for (size_t i = 0; i < ptx->function_count; i++)
        if (ct_ptx_same(ptx, ptx->functions[i].name, name))
            return (int)i;
    return -1;
}

/* ---- parameters --------------------------------------------------------------------------------------------------- */

/* Returns the bytes of a type; 0: it is none. */
static uint32_t type_bytes(const struct ptx *ptx, uint32_t at)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2},   {".f16", 2},
                 {".b32", 4}, {".u32", 4}, {".s32", 4}, {".f32", 4}, {".bf16", 2}, {".f16x2", 4}, {".bf16x2", 4},
                 {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}, {".b128", 16}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (ct_ptx_is(ptx, at, types[i].name))
            return types[i].bytes;
    return 0;
}

/* Reads one parameter up to the comma or parenthesis behind it: .param .align 8 .b8 name[16], or
 * .param .u64 .ptr .global .align 4 name. Returns 0 if it is of another form. */
static int read_parameter(const struct ptx *ptx, struct function *function, uint32_t *at)
{
    uint64_t bytes = 0, alignment = 0, elements = 1;
    int is_pointer = 0, is_valid = ct_ptx_is(ptx, *at, ".param"), names = 0;
    for (; is_valid && !ct_ptx_is(ptx, *at, ",") && !ct_ptx_is(ptx, *at, ")"); ++*at) {
        const struct token *token = &ptx->tokens[*at];
        if (token->kind == TOKEN_END) {
            return 0;
        } else if (type_bytes(ptx, *at)) {
            bytes = type_bytes(ptx, *at);
        } else if (ct_ptx_is(ptx, *at, ".ptr")) {
            is_pointer = 1;
        } else if (ct_ptx_is(ptx, *at, ".align")) {
            const uint64_t stated = ct_ptx_number(ptx, ++*at, &is_valid);
            is_valid = is_valid && stated && stated <= 256;
            alignment = is_pointer ? alignment : stated; /* otherwise it is the alignment of the target */
        } else if (ct_ptx_is(ptx, *at, "[")) {
            elements = ct_ptx_number(ptx, ++*at, &is_valid);
            is_valid = is_valid && elements && elements <= 32768 && ct_ptx_is(ptx, ++*at, "]");
        } else if (token->kind == TOKEN_WORD && *token->text != '.') {
            names++;
        } else if (!ct_ptx_is(ptx, *at, ".param") && !is_pointer) {
            is_valid = 0;
        }
    }
    if (!is_valid || !bytes || names != 1)
        return 0;
    if (!alignment)
        alignment = bytes;
    const uint64_t offset = (function->parameter_bytes + alignment - 1) / alignment * alignment;
    function->parameter_bytes = (uint32_t)(offset + bytes * elements);
    function->parameter_count++;
    return function->parameter_bytes <= 1 << 20;
}

static int read_parameters(const struct ptx *ptx, struct function *function)
{
    uint32_t at = function->list + 1;
    if (ct_ptx_is(ptx, at, ")"))
        return 1;
    for (;; at++) {
        if (!read_parameter(ptx, function, &at))
            return 0;
        if (ct_ptx_is(ptx, at, ")"))
            return at == function->list_end;
    }
}

/* ---- functions ---------------------------------------------------------------------------------------------------- */

/* Reads the directives between the parameters and the body; `at` becomes the brace or semicolon. */
static int read_limits(const struct ptx *ptx, struct function *function, uint32_t *at)
{
    static const char *const with_numbers[] = {".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg"};
    while (!ct_ptx_is(ptx, *at, "{") && !ct_ptx_is(ptx, *at, ";")) {
        int is_known = ct_ptx_is(ptx, *at, ".noreturn");
        for (size_t i = 0; i < sizeof with_numbers / sizeof with_numbers[0]; i++)
            is_known |= ct_ptx_is(ptx, *at, with_numbers[i]);
        if (ptx->tokens[*at].kind == TOKEN_END)
            return 0;
        if (ct_ptx_is(ptx, *at, ".pragma")) {
            *at = skip_statement(ptx, *at);
            continue;
        }
        if (ptx->tokens[*at].kind == TOKEN_WORD && !is_known)
            function->reason = ct_ptx_has(ptx, *at, "cluster") ? CT_PTX_CLUSTER : CT_PTX_NOT_UNDERSTOOD;
        ++*at;
    }
    return 1;
}

/* Reads a function from behind .entry or .func. */
static int read_function(struct ptx *ptx, int is_entry, uint32_t *at)
{
    struct function read = {.is_entry = is_entry};
    if (!is_entry && ct_ptx_is(ptx, *at, "(")) {
        read.results = *at;
        *at = ct_ptx_skip_group(ptx, *at);
        read.results_end = *at - 1;
    }
    if (ptx->tokens[*at].kind != TOKEN_WORD || *ptx->tokens[*at].text == '.')
        return 0;
    read.name = (*at)++;
    if (ct_ptx_is(ptx, *at, "(")) {
        read.list = *at;
        *at = ct_ptx_skip_group(ptx, *at);
        read.list_end = *at - 1;
        if (!read_parameters(ptx, &read))
            read.reason = CT_PTX_NOT_UNDERSTOOD;
    }
    if (!read_limits(ptx, &read, at))
        return 0;
    if (ct_ptx_is(ptx, *at, "{")) {
        read.body = *at;
        *at = ct_ptx_skip_group(ptx, *at);
        read.body_end = *at - 1;
        if (!ct_ptx_is(ptx, read.body_end, "}"))
            return 0;
    } else {
        ++*at;
    }
    const int known = ct_ptx_function(ptx, read.name);
    if (known >= 0 && ptx->functions[known].body)
        return !read.body; /* declared again */
    struct function *function = known >= 0 ? &ptx->functions[known]
                                           : ct_ptx_add(ptx, &ptx->functions, &ptx->function_count,
                                                        &ptx->function_capacity, sizeof *function);
    if (!function)
        return 0;
    *function = read;
    return 1;
}

/* ---- the whole text ----------------------------------------------------------------------------------------------- */

/* Skips words, numbers and strings separated by commas: the operands of a directive without semicolon. */
static uint32_t skip_list(const struct ptx *ptx, uint32_t at)
{
    for (;; at += 2) {
        const uint32_t kind = ptx->tokens[at].kind;
        if (kind != TOKEN_WORD && kind != TOKEN_NUMBER && kind != TOKEN_STRING)
            return at;
        if (!ct_ptx_is(ptx, at + 1, ","))
            return at + 1;
    }
}

/* Reads a directive that is not a function. Returns 0 if it is unknown. */
static int read_directive(struct ptx *ptx, uint32_t *at)
{
    static const char *const variables[] = {".global", ".const", ".shared", ".tex", ".pragma", ".alias"};
    if (ct_ptx_is(ptx, *at, ";")) {
        ++*at;
        return 1;
    }
    if (ct_ptx_is(ptx, *at, ".version") || ct_ptx_is(ptx, *at, ".target") || ct_ptx_is(ptx, *at, ".address_size")) {
        const uint32_t end = skip_list(ptx, *at + 1);
        for (uint32_t word = *at; word < end; word++)
            ptx->has_debug |= ct_ptx_is(ptx, word, "debug");
        *at = end;
        return 1;
    }
    if (ct_ptx_is(ptx, *at, ".file")) { /* a number, a name, and maybe two numbers */
        *at = skip_list(ptx, *at + 2);
        return 1;
    }
    if (ct_ptx_is(ptx, *at, ".section")) {
        uint32_t name = *at + 1;
        while (ptx->tokens[name].kind == TOKEN_WORD)
            name++;
        *at = ct_ptx_skip_group(ptx, name);
        return 1;
    }
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        if (ct_ptx_is(ptx, *at, variables[i])) {
            *at = skip_statement(ptx, *at);
            return 1;
        }
    return 0;
}

int ct_ptx_parse(struct ptx *ptx)
{
    uint32_t at = 0;
    if (!ct_ptx_is(ptx, 0, ".version"))
        return 0;
    while (ptx->tokens[at].kind != TOKEN_END && !ptx->is_lost) {
        if (ct_ptx_is(ptx, at, ".extern") || ct_ptx_is(ptx, at, ".visible") || ct_ptx_is(ptx, at, ".weak") ||
            ct_ptx_is(ptx, at, ".common")) {
            at++;
            continue;
        }
        const int is_entry = ct_ptx_is(ptx, at, ".entry");
        if (is_entry || ct_ptx_is(ptx, at, ".func")) {
            at++;
            if (!read_function(ptx, is_entry, &at))
                return 0;
        } else if (!read_directive(ptx, &at)) {
            return 0;
        }
    }
    return !ptx->is_lost;
}

/* Parsing of a PTX text: directives and functions. */
#include "softgpu/ptx/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAM_BYTES = 32764, MAX_REGISTER_BYTES = 1 << 26 };

void *ptx_keep(struct sg_ptx *program, size_t bytes)
{
    void **larger = realloc(program->blocks, (program->block_count + 1) * sizeof *larger);
    void *block = larger ? calloc(1, bytes ? bytes : 1) : NULL;
    if (larger)
        program->blocks = larger;
    if (block)
        program->blocks[program->block_count++] = block;
    else
        program->is_lost = 1;
    return block;
}

char *ptx_copy_text(struct sg_ptx *program, const char *text, size_t bytes)
{
    char *copy = ptx_keep(program, bytes + 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void *ptx_grow(void *array, size_t *count, size_t *capacity, size_t element_bytes)
{
    if (*count == *capacity) {
        size_t more = *capacity ? *capacity * 2 : 16;
        void *larger = realloc(array, more * element_bytes);
        if (!larger)
            return NULL;
        array = larger;
        *capacity = more;
    }
    memset((char *)array + *count * element_bytes, 0, element_bytes);
    ++*count;
    return array;
}

struct ptx_function *ptx_current(struct parser *parser)
{
    return &parser->program->functions[parser->function];
}

void ptx_refuse(struct parser *parser, const char *format, ...)
{
    char text[SG_PTX_REASON_BYTES];
    va_list arguments;
    if (parser->function == NONE || ptx_current(parser)->reason)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ptx_current(parser)->reason = ptx_copy_text(parser->program, text, strlen(text));
}

struct symbol *ptx_add_symbol(struct parser *parser, const struct token *name, enum symbol_kind kind)
{
    struct symbol *larger =
        ptx_grow(parser->symbols, &parser->symbol_count, &parser->symbol_capacity, sizeof *larger);
    if (!larger) {
        parser->program->is_lost = 1;
        return NULL;
    }
    parser->symbols = larger;
    struct symbol *symbol = &larger[parser->symbol_count - 1];
    *symbol = (struct symbol){.name = name->text, .bytes = name->bytes, .kind = kind};
    return symbol;
}

/* Whether the name is a member of the range: its prefix and a number below the count. */
static int is_member(const struct symbol *symbol, const char *name, size_t bytes, uint32_t *index)
{
    uint64_t number = 0;
    if (bytes <= symbol->bytes || bytes - symbol->bytes > 9 || memcmp(name, symbol->name, symbol->bytes) != 0)
        return 0;
    if (name[symbol->bytes] == '0' && bytes - symbol->bytes > 1)
        return 0;
    for (size_t i = symbol->bytes; i < bytes; i++) {
        if (name[i] < '0' || name[i] > '9')
            return 0;
        number = number * 10 + (uint64_t)(name[i] - '0');
    }
    *index = (uint32_t)number;
    return number < symbol->count;
}

/* The latest declaration comes first, so that inner scopes hide outer ones. */
const struct symbol *ptx_find_symbol(const struct parser *parser, const char *name, size_t bytes, uint32_t *index)
{
    *index = 0;
    for (size_t i = parser->symbol_count; i > 0; i--) {
        const struct symbol *symbol = &parser->symbols[i - 1];
        if (symbol->count ? is_member(symbol, name, bytes, index)
                          : symbol->bytes == bytes && memcmp(symbol->name, name, bytes) == 0)
            return symbol;
    }
    return NULL;
}

uint32_t ptx_new_register(struct parser *parser, uint32_t bytes, uint32_t alignment)
{
    struct ptx_function *function = ptx_current(parser);
    uint32_t slot = (function->register_bytes + alignment - 1) / alignment * alignment;
    if (slot > MAX_REGISTER_BYTES - bytes) {
        ptx_refuse(parser, "too many registers");
        return 0;
    }
    function->register_bytes = slot + bytes;
    return slot;
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static int find_function(const struct sg_ptx *program, int unit, const struct token *name)
{
    for (size_t i = program->function_count; i > 0; i--) {
        const struct ptx_function *one = &program->functions[i - 1];
        if (one->unit == unit && strlen(one->name) == name->bytes && memcmp(one->name, name->text, name->bytes) == 0)
            return (int)(i - 1);
    }
    return NONE;
}

static int add_function(struct parser *parser, const struct token *name)
{
    struct sg_ptx *program = parser->program;
    struct ptx_function *larger = ptx_grow(program->functions, &program->function_count, &program->function_capacity,
                                           sizeof *larger);
    if (!larger) {
        program->is_lost = 1;
        return NONE;
    }
    program->functions = larger;
    struct ptx_function *function = &larger[program->function_count - 1];
    function->name = ptx_copy_text(program, name->text, name->bytes);
    function->unit = parser->unit;
    function->link = NONE;
    function->max_threads = 1024;
    return function->name ? (int)(program->function_count - 1) : NONE;
}

struct parameter {
    struct token name;
    const struct type *type;
    uint64_t bytes, alignment;
    int is_register;
};

static int parse_parameter(struct parser *parser, struct parameter *p)
{
    struct lexer *l = &parser->lexer;
    int is_pointer = 0, is_good = 1;
    uint64_t elements = 1;
    *p = (struct parameter){.alignment = 0};
    for (; l->token.kind != TOKEN_END && !ptx_is(l, ",") && !ptx_is(l, ")"); ) {
        const struct type *type =
            l->token.bytes > 1 && *l->token.text == '.' ? ptx_type(l->token.text + 1, l->token.bytes - 1) : NULL;
        if (type) {
            p->type = type;
        } else if (ptx_is(l, ".reg")) {
            p->is_register = 1;
        } else if (ptx_is(l, ".ptr")) {
            is_pointer = 1;
        } else if (ptx_is(l, ".align")) {
            ptx_next(l);
            int64_t alignment = ptx_integer(l, &is_good);
            if (!is_good || alignment < 1 || alignment > 256)
                return -1;
            if (!is_pointer) /* otherwise it is the alignment of the target */
                p->alignment = (uint64_t)alignment;
            continue;
        } else if (ptx_is(l, "[")) {
            ptx_next(l);
            int64_t count = ptx_is(l, "]") ? 0 : ptx_integer(l, &is_good);
            if (!is_good || count < 0 || count > MAX_PARAM_BYTES)
                return -1;
            elements *= (uint64_t)count;
            if (elements > MAX_PARAM_BYTES)
                return -1;
            if (!ptx_is(l, "]"))
                return -1;
        } else if (l->token.kind == TOKEN_WORD && *l->token.text != '.') {
            p->name = l->token;
        }
        ptx_next(l);
    }
    if (!p->type || !p->name.bytes)
        return -1;
    p->bytes = (p->type->bytes ? p->type->bytes : 1) * elements;
    if (!p->alignment)
        p->alignment = p->type->bytes ? p->type->bytes : 1;
    return p->bytes <= MAX_PARAM_BYTES ? 0 : -1;
}

/* Parse a list in parentheses. Parameters of an entry are in the launch's buffer, those of a function in its area. */
static int parse_parameters(struct parser *parser, int is_result)
{
    struct lexer *l = &parser->lexer;
    struct sg_ptx *program = parser->program;
    struct ptx_param list[256];
    uint32_t count = 0;
    if (!ptx_accept(l, "("))
        return -1;
    while (!ptx_is(l, ")")) {
        struct ptx_function *function = ptx_current(parser);
        struct parameter p;
        if (count == 256 || parse_parameter(parser, &p) < 0)
            return -1;
        uint32_t *end = function->is_entry ? &function->param_bytes : &function->area_bytes;
        struct ptx_param *made = &list[count++];
        uint32_t alignment = (uint32_t)p.alignment;
        *made = (struct ptx_param){.bytes = (uint32_t)p.bytes, .slot = NO_SLOT};
        struct symbol *symbol = ptx_add_symbol(parser, &p.name, function->is_entry ? SYMBOL_PARAM : SYMBOL_AREA);
        if (!symbol)
            return -1;
        symbol->type = p.type;
        if (p.is_register) {
            made->is_predicate = p.type->class == CLASS_PREDICATE;
            made->is_wide = p.type->bytes == 8;
            made->slot = ptx_new_register(parser, made->is_predicate ? 64 : made->is_wide ? 256 : 128, 64);
            symbol->kind = SYMBOL_REGISTER;
            symbol->slot = made->slot;
        } else {
            made->offset = (*end + alignment - 1) / alignment * alignment;
            *end = made->offset + made->bytes;
            symbol->slot = made->offset;
            symbol->size = made->bytes;
        }
        if (!ptx_accept(l, ",") && !ptx_is(l, ")"))
            return -1;
    }
    ptx_next(l);
    struct ptx_param *copy = ptx_keep(program, count * sizeof *copy);
    if (!copy)
        return -1;
    memcpy(copy, list, count * sizeof *copy);
    struct ptx_function *function = ptx_current(parser);
    if (is_result) {
        function->results = copy;
        function->result_count = count;
    } else {
        function->params = copy;
        function->param_count = count;
    }
    return 0;
}

static void begin_function(struct parser *parser, int index, int is_entry)
{
    struct ptx_function *function = &parser->program->functions[index];
    parser->function = index;
    parser->label_count = parser->reference_count = 0;
    parser->scope_count = 0;
    parser->scope = 0;
    parser->carry = NO_SLOT;
    if (parser->known)
        memset(parser->known, 0, parser->known_capacity * sizeof *parser->known);
    parser->known_count = 0;
    function->is_entry = is_entry;
    function->register_bytes = function->area_bytes = function->param_bytes = 0;
}

/* Directives between the parameters and the body. */
static void parse_limits(struct parser *parser)
{
    struct lexer *l = &parser->lexer;
    while (l->token.kind != TOKEN_END && !ptx_is(l, "{") && !ptx_is(l, ";")) {
        uint32_t *cluster = ptx_current(parser)->cluster;
        if (!ptx_accept(l, ".reqnctapercluster")) {
            ptx_next(l);
            continue;
        }
        for (int k = 0, is_good = 1; k < 3 && is_good && (!k || ptx_accept(l, ",")); k++) {
            const int64_t blocks = ptx_integer(l, &is_good);
            cluster[k] = is_good && blocks > 0 && blocks <= CLUSTER_MAX ? (uint32_t)blocks : CLUSTER_MAX + 1;
        }
        cluster[1] += !cluster[1];
        cluster[2] += !cluster[2];
    }
}

static int parse_function(struct parser *parser, int is_entry, int is_visible, int is_weak)
{
    struct lexer *l = &parser->lexer;
    size_t symbols = parser->symbol_count;
    struct lexer results = *l;
    int has_results = !is_entry && ptx_is(l, "(");
    if (has_results) {
        while (l->token.kind != TOKEN_END && !ptx_is(l, ")"))
            ptx_next(l);
        ptx_next(l);
    }
    if (l->token.kind != TOKEN_WORD)
        return -1;
    struct token name = l->token;
    int index = find_function(parser->program, parser->unit, &name);
    int is_new = index == NONE;
    if (is_new)
        index = add_function(parser, &name);
    if (index == NONE)
        return -1;
    if (parser->program->functions[index].is_defined)
        return -1;
    begin_function(parser, index, is_entry);
    ptx_current(parser)->is_visible |= is_visible;
    ptx_current(parser)->is_weak |= is_weak;
    if (is_new) {
        struct symbol *symbol = ptx_add_symbol(parser, &name, SYMBOL_FUNCTION);
        if (!symbol)
            return -1;
        symbol->index = index;
        symbols++;
    }
    ptx_next(l);
    if (has_results) {
        struct lexer after = *l;
        *l = results;
        if (parse_parameters(parser, 1) < 0)
            return -1;
        *l = after;
    }
    if (ptx_is(l, "(") && parse_parameters(parser, 0) < 0)
        return -1;
    parse_limits(parser);
    int result = 0;
    if (ptx_is(l, "{")) {
        ptx_current(parser)->is_defined = 1;
        result = ptx_parse_body(parser);
    } else {
        ptx_accept(l, ";");
    }
    parser->function = NONE;
    parser->symbol_count = symbols;
    return result;
}

/* ---- The whole text ---------------------------------------------------------------------------------------------- */

static void skip_section(struct lexer *l)
{
    int depth = 0;
    while (l->token.kind != TOKEN_END) {
        depth += ptx_is(l, "{");
        depth -= ptx_is(l, "}");
        ptx_next(l);
        if (!depth)
            return;
    }
}

static int parse_directive(struct parser *parser)
{
    struct lexer *l = &parser->lexer;
    int is_extern = 0, is_visible = 0, is_weak = 0;
    for (;;) {
        if (ptx_accept(l, ".extern"))
            is_extern = 1;
        else if (ptx_accept(l, ".visible"))
            is_visible = 1;
        else if (ptx_accept(l, ".weak") || ptx_accept(l, ".common"))
            is_visible = is_weak = 1;
        else
            break;
    }
    if (ptx_accept(l, ".entry"))
        return parse_function(parser, 1, 1, is_weak);
    if (ptx_accept(l, ".func"))
        return parse_function(parser, 0, is_visible || is_extern, is_weak);
    static const struct {
        const char *name;
        enum space space;
    } spaces[] = {{".global", SPACE_GLOBAL}, {".const", SPACE_CONST}, {".shared", SPACE_SHARED}};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
        if (ptx_accept(l, spaces[i].name))
            return ptx_variable_declaration(parser, spaces[i].space, is_extern, is_visible || is_extern, is_weak);
    if (ptx_is(l, ".section")) {
        while (l->token.kind != TOKEN_END && !ptx_is(l, "{"))
            ptx_next(l);
        skip_section(l);
        return 0;
    }
    if (ptx_is(l, ".file") || ptx_is(l, ".loc") || ptx_is(l, ".target") || ptx_is(l, ".version") ||
        ptx_is(l, ".address_size")) {
        const char *newline = memchr(l->token.text, '\n', (size_t)(l->end - l->token.text));
        l->at = newline ? newline : l->end;
        ptx_next(l);
        return 0;
    }
    if (ptx_is(l, ";")) {
        ptx_next(l);
        return 0;
    }
    if (l->token.kind == TOKEN_WORD && *l->token.text == '.') { /* .pragma, .alias, .tex: no code depends on them */
        ptx_next(l);
        ptx_skip_statement(l);
        return 0;
    }
    return -1;
}

/* Names outside functions are visible in the whole text after their declaration. */
int ptx_parse(struct sg_ptx *program, int unit, const char *text, size_t bytes)
{
    struct parser parser = {.program = program, .unit = unit, .function = NONE};
    parser.lexer = (struct lexer){.at = text, .end = text + bytes};
    ptx_next(&parser.lexer);
    int result = ptx_is(&parser.lexer, ".version") ? 0 : -1;
    while (result == 0 && parser.lexer.token.kind != TOKEN_END && !program->is_lost)
        result = parse_directive(&parser);
    free(parser.known);
    free(parser.symbols);
    free(parser.labels);
    free(parser.references);
    free(parser.scopes);
    return result;
}

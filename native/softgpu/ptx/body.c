/* Parsing of a function's body: declarations, labels, scopes and statements. */
#include "softgpu/ptx/internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LOCAL = 1 << 24, MAX_NAME = 150 };

static int enter_scope(struct parser *parser)
{
    uint32_t *larger = ptx_grow(parser->scopes, &parser->scope_count, &parser->scope_capacity, sizeof *larger);
    if (!larger)
        return -1;
    parser->scopes = larger;
    larger[parser->scope_count - 1] = parser->scope;
    parser->scope = (uint32_t)(parser->scope_count - 1);
    return 0;
}

/* Parse .reg .b32 %r<10>, a; up to the semicolon. */
static int parse_registers(struct parser *parser)
{
    struct lexer *l = &parser->lexer;
    const struct type *type = NULL;
    uint32_t vector = 1;
    int is_good = 1;
    while (l->token.kind == TOKEN_WORD && *l->token.text == '.') {
        if (ptx_is(l, ".v2") || ptx_is(l, ".v4"))
            vector = (uint32_t)(l->token.text[2] - '0');
        else
            type = ptx_type(l->token.text + 1, l->token.bytes - 1);
        ptx_next(l);
    }
    if (!type)
        return -1;
    do {
        struct token name = l->token;
        int64_t count = 0;
        if (name.kind != TOKEN_WORD)
            return -1;
        ptx_next(l);
        if (ptx_accept(l, "<")) {
            count = ptx_integer(l, &is_good);
            if (!is_good || count < 1 || count > 1 << 20 || !ptx_accept(l, ">"))
                return -1;
        }
        uint32_t stride = type->class == CLASS_PREDICATE ? 4 : type->bytes <= 4 ? 128 : type->bytes / 8 * 256;
        uint32_t total = (count ? (uint32_t)count : 1) * vector;
        if (total > (1u << 26) / stride)
            return -1;
        uint32_t slot = ptx_new_register(parser, stride * total, 64);
        struct symbol *symbol = ptx_add_symbol(parser, &name, SYMBOL_REGISTER);
        if (!symbol)
            return -1;
        symbol->count = (uint32_t)count;
        symbol->type = type;
        symbol->slot = slot;
        symbol->stride = stride * vector;
        symbol->vector = vector;
    } while (ptx_accept(l, ","));
    return ptx_accept(l, ";") ? 0 : -1;
}

/* Parse a declaration of local memory or of the parameters of a call. */
static int parse_memory(struct parser *parser, enum symbol_kind kind)
{
    struct lexer *l = &parser->lexer;
    struct ptx_function *function = ptx_current(parser);
    uint64_t alignment = 0, vector = 1;
    const struct type *type = NULL;
    int is_good = 1;
    while (l->token.kind == TOKEN_WORD && *l->token.text == '.') {
        if (ptx_accept(l, ".align")) {
            int64_t value = ptx_integer(l, &is_good);
            if (!is_good || value < 1 || value > 4096)
                return -1;
            alignment = (uint64_t)value;
            continue;
        }
        if (ptx_is(l, ".v2") || ptx_is(l, ".v4"))
            vector = (uint64_t)(l->token.text[2] - '0');
        else
            type = ptx_type(l->token.text + 1, l->token.bytes - 1);
        ptx_next(l);
    }
    if (!type)
        return -1;
    do {
        struct token name = l->token;
        uint64_t bytes = vector * (type->bytes ? type->bytes : 1);
        uint64_t natural = alignment ? alignment : bytes;
        if (name.kind != TOKEN_WORD)
            return -1;
        ptx_next(l);
        while (ptx_accept(l, "[")) {
            int64_t count = ptx_is(l, "]") ? 0 : ptx_integer(l, &is_good);
            if (!is_good || count < 0 || (uint64_t)count > MAX_LOCAL || bytes > MAX_LOCAL || !ptx_accept(l, "]"))
                return -1;
            bytes *= (uint64_t)count;
        }
        uint32_t *end = kind == SYMBOL_LOCAL ? &function->local_bytes : &function->area_bytes;
        uint64_t offset = (*end + natural - 1) / natural * natural;
        if (offset + bytes > MAX_LOCAL)
            return -1;
        struct symbol *symbol = ptx_add_symbol(parser, &name, kind);
        if (!symbol)
            return -1;
        symbol->slot = (uint32_t)offset;
        symbol->size = (uint32_t)bytes;
        symbol->type = type;
        *end = (uint32_t)(offset + bytes);
    } while (ptx_accept(l, ","));
    return ptx_accept(l, ";") ? 0 : -1;
}

static int add_label(struct parser *parser, const struct token *name)
{
    struct label *larger = ptx_grow(parser->labels, &parser->label_count, &parser->label_capacity, sizeof *larger);
    if (!larger)
        return -1;
    parser->labels = larger;
    larger[parser->label_count - 1] =
        (struct label){name->text, name->bytes, parser->scope, (uint32_t)ptx_current(parser)->count};
    return 0;
}

/* A list of labels: its cells are filled when the function ends. */
static int parse_targets(struct parser *parser, const struct token *name)
{
    struct lexer *l = &parser->lexer;
    struct token labels[1024];
    uint32_t count = 0;
    do {
        if (count == 1024 || l->token.kind != TOKEN_WORD)
            return -1;
        labels[count++] = l->token;
        ptx_next(l);
    } while (ptx_accept(l, ","));
    struct symbol *symbol = ptx_add_symbol(parser, name, SYMBOL_TARGETS);
    uint32_t *cells = ptx_keep(parser->program, count * sizeof *cells);
    if (!symbol || !cells)
        return -1;
    symbol->targets = cells;
    symbol->target_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct reference *larger = ptx_grow(parser->references, &parser->reference_count, &parser->reference_capacity,
                                            sizeof *larger);
        if (!larger)
            return -1;
        parser->references = larger;
        larger[parser->reference_count - 1] =
            (struct reference){labels[i].text, labels[i].bytes, parser->scope, 0, &cells[i]};
    }
    return ptx_accept(l, ";") ? 0 : -1;
}

static int parse_labelled(struct parser *parser, const struct token *name)
{
    struct lexer *l = &parser->lexer;
    if (ptx_accept(l, ".branchtargets"))
        return parse_targets(parser, name);
    if (ptx_is(l, ".callprototype") || ptx_is(l, ".calltargets")) {
        ptx_skip_statement(l);
        return 0;
    }
    return add_label(parser, name);
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static int parse_operand(struct parser *parser, struct statement *s, struct operand *operand);

static int parse_list(struct parser *parser, struct statement *s, struct operand *operand, const char *close)
{
    struct operand list[MAX_MEMBERS];
    int count = 0;
    while (!ptx_is(&parser->lexer, close)) {
        if (ptx_is(&parser->lexer, "{") || ptx_is(&parser->lexer, "(")) /* no instruction has a list of lists */
            return -1;
        if (count == MAX_MEMBERS || parse_operand(parser, s, &list[count]) < 0)
            return -1;
        count++;
        if (!ptx_accept(&parser->lexer, ",") && !ptx_is(&parser->lexer, close))
            return -1;
    }
    ptx_next(&parser->lexer);
    if (s->member_count + count > MAX_MEMBERS)
        return -1;
    operand->first = s->member_count;
    operand->count = count;
    memcpy(&s->members[s->member_count], list, (size_t)count * sizeof *list);
    s->member_count += count;
    return 0;
}

static void parse_number(struct lexer *l, int is_minus, struct operand *operand)
{
    char text[64];
    const struct token *t = &l->token;
    size_t length = t->bytes < sizeof text - 1 ? t->bytes : sizeof text - 1;
    int is_good = 1;
    memcpy(text, t->text, length);
    text[length] = 0;
    operand->kind = OPERAND_NUMBER;
    int is_prefixed = length > 2 && text[0] == '0' && strchr("xXbB", text[1]);
    if (length > 2 && text[0] == '0' && strchr("fF", text[1])) {
        operand->number = strtoull(text + 2, NULL, 16) ^ (is_minus ? UINT64_C(1) << 31 : 0);
        operand->is_float = 2;
        ptx_next(l);
    } else if (length > 2 && text[0] == '0' && strchr("dD", text[1])) {
        operand->number = strtoull(text + 2, NULL, 16) ^ (is_minus ? UINT64_C(1) << 63 : 0);
        operand->is_float = 1;
        ptx_next(l);
    } else if (!is_prefixed && strpbrk(text, ".eE")) {
        double value = strtod(text, NULL);
        value = is_minus ? -value : value;
        memcpy(&operand->number, &value, 8);
        operand->is_float = 1;
        ptx_next(l);
    } else {
        operand->number = (uint64_t)ptx_integer(l, &is_good);
        if (is_minus)
            operand->number = -operand->number;
        if (!is_good)
            operand->kind = OPERAND_NONE;
    }
}

static void set_register(struct operand *operand, const struct symbol *symbol, uint32_t index, uint32_t component)
{
    operand->kind = OPERAND_REGISTER;
    operand->type = symbol->type;
    operand->count = (int)symbol->vector;
    operand->slot = symbol->slot + index * symbol->stride + component * (symbol->stride / symbol->vector);
}

static void parse_word(struct parser *parser, struct operand *operand)
{
    struct lexer *l = &parser->lexer;
    uint32_t index;
    operand->text = l->token.text;
    operand->bytes = l->token.bytes;
    const struct symbol *symbol = ptx_find_symbol(parser, operand->text, operand->bytes, &index);
    ptx_next(l);
    if (symbol && symbol->kind == SYMBOL_REGISTER) {
        struct symbol copy = *symbol;
        copy.vector = copy.vector ? copy.vector : 1;
        set_register(operand, &copy, index, 0);
        return;
    }
    if (operand->bytes == 1 && *operand->text == '_') {
        operand->kind = OPERAND_SINK;
        return;
    }
    size_t n = operand->bytes;
    if (!symbol && n > 2 && operand->text[n - 2] == '.' && strchr("xyzwrgba", operand->text[n - 1])) {
        const struct symbol *vector = ptx_find_symbol(parser, operand->text, n - 2, &index);
        uint32_t component = (uint32_t)(strchr("xyzwrgba", operand->text[n - 1]) - "xyzwrgba") % 4;
        if (vector && vector->kind == SYMBOL_REGISTER && vector->vector > 1 && vector->vector > component) {
            set_register(operand, vector, index, component);
            operand->count = 1;
            return;
        }
    }
    operand->kind = symbol ? OPERAND_SYMBOL : OPERAND_LABEL; /* a label, a special register or WARP_SZ */
    operand->symbol = symbol;
}

static int parse_address(struct parser *parser, struct statement *s, struct operand *operand)
{
    struct lexer *l = &parser->lexer;
    struct operand base = {0};
    int is_good = 1;
    if (l->token.kind == TOKEN_WORD) {
        parse_word(parser, &base);
    } else {
        base.number = (uint64_t)ptx_integer(l, &is_good);
        base.kind = OPERAND_NUMBER;
    }
    operand->kind = OPERAND_ADDRESS;
    while (is_good && (ptx_is(l, "+") || ptx_is(l, "-")))
        operand->addend += ptx_integer(l, &is_good);
    if (!is_good || s->member_count == MAX_MEMBERS || !ptx_accept(l, "]"))
        return -1;
    operand->first = s->member_count;
    operand->count = 1;
    s->members[s->member_count++] = base;
    return 0;
}

static int parse_operand(struct parser *parser, struct statement *s, struct operand *operand)
{
    struct lexer *l = &parser->lexer;
    *operand = (struct operand){0};
    if (ptx_accept(l, "{")) {
        operand->kind = OPERAND_VECTOR;
        return parse_list(parser, s, operand, "}");
    }
    if (ptx_accept(l, "(")) {
        operand->kind = OPERAND_LIST;
        return parse_list(parser, s, operand, ")");
    }
    if (ptx_accept(l, "["))
        return parse_address(parser, s, operand);
    int is_minus = 0;
    while (ptx_is(l, "-") || ptx_is(l, "!") || ptx_is(l, "+")) {
        is_minus ^= ptx_is(l, "-");
        operand->is_negated ^= ptx_is(l, "!");
        ptx_next(l);
    }
    if (l->token.kind == TOKEN_NUMBER) {
        parse_number(l, is_minus, operand);
        return operand->kind == OPERAND_NONE ? -1 : 0;
    }
    if (l->token.kind != TOKEN_WORD || is_minus)
        return -1;
    parse_word(parser, operand);
    if (operand->kind == OPERAND_SYMBOL && ptx_accept(l, "[")) { /* the address of an element */
        int is_good;
        int64_t index = ptx_integer(l, &is_good);
        if (!is_good || !ptx_accept(l, "]") || (index && !operand->symbol->type))
            return -1;
        operand->addend = index * (int64_t)(operand->symbol->type ? operand->symbol->type->bytes : 0);
    }
    if (operand->kind == OPERAND_SYMBOL)
        while (ptx_is(l, "+") || ptx_is(l, "-")) {
            int is_good;
            operand->addend += ptx_integer(l, &is_good);
            if (!is_good)
                return -1;
        }
    if (ptx_accept(l, "|")) {
        if (s->member_count == MAX_MEMBERS)
            return -1;
        operand->second = &s->members[s->member_count++];
        return parse_operand(parser, s, operand->second);
    }
    return 0;
}

/* ---- Statements -------------------------------------------------------------------------------------------------- */

static int split_name(struct statement *s, const struct token *token)
{
    if (token->bytes > MAX_NAME)
        return -1;
    memcpy(s->text, token->text, token->bytes);
    s->text[token->bytes] = 0;
    s->modifier_count = 0;
    const char *dot = strchr(s->text, '.');
    size_t length = dot ? (size_t)(dot - s->text) : token->bytes;
    if (length >= sizeof s->name)
        return -1;
    memcpy(s->name, s->text, length);
    s->name[length] = 0;
    for (char *at = s->text + length; *at;) {
        *at++ = 0;
        if (s->modifier_count == MAX_MODIFIERS)
            return -1;
        s->modifiers[s->modifier_count++] = at;
        while (*at && *at != '.')
            at++;
    }
    return 0;
}

static int parse_guard(struct parser *parser, struct statement *s)
{
    struct lexer *l = &parser->lexer;
    struct operand guard = {0};
    s->guard = NO_SLOT;
    s->is_negated = 0;
    if (!ptx_accept(l, "@"))
        return 0;
    s->is_negated = ptx_accept(l, "!");
    if (l->token.kind != TOKEN_WORD)
        return -1;
    parse_word(parser, &guard);
    if (guard.kind != OPERAND_REGISTER || guard.type->class != CLASS_PREDICATE)
        return -1;
    s->guard = guard.slot;
    return 0;
}

static int parse_statement(struct parser *parser, struct statement *s)
{
    struct lexer *l = &parser->lexer;
    if (parse_guard(parser, s) < 0 || l->token.kind != TOKEN_WORD || split_name(s, &l->token) < 0)
        return -1;
    s->count = s->member_count = 0;
    ptx_next(l);
    while (!ptx_is(l, ";")) {
        if (s->count == MAX_OPERANDS || parse_operand(parser, s, &s->operands[s->count]) < 0)
            return -1;
        s->count++;
        if (!ptx_accept(l, ",") && !ptx_is(l, ";"))
            return -1;
    }
    ptx_next(l);
    ptx_decode(parser, s);
    return 0;
}

static int begins_with(const char *text, size_t bytes, const char *word)
{
    return bytes >= strlen(word) && memcmp(text, word, strlen(word)) == 0;
}

/* The reason why a statement cannot be parsed: instructions on images and tensors have operands of another form. */
static const char *unsupported_memory(const char *text, size_t bytes)
{
    static const char *const textures[] = {"tex.", "tld4.", "txq."}, *const surfaces[] = {"suld.", "sust.", "sured.", "suq."};
    for (size_t k = 0; k < sizeof textures / sizeof *textures; k++)
        if (begins_with(text, bytes, textures[k]))
            return "samples a texture: '%.*s'";
    for (size_t k = 0; k < sizeof surfaces / sizeof *surfaces; k++)
        if (begins_with(text, bytes, surfaces[k]))
            return "accesses a surface: '%.*s'";
    return begins_with(text, bytes, "cp.async.bulk.tensor") || begins_with(text, bytes, "cp.reduce.async.bulk.tensor")
               ? "copies a tensor: '%.*s'"
               : "cannot parse '%.*s'";
}

static int parse_line(struct parser *parser, struct statement *s)
{
    struct lexer *l = &parser->lexer;
    if (ptx_accept(l, ".reg"))
        return parse_registers(parser);
    if (ptx_accept(l, ".local"))
        return parse_memory(parser, SYMBOL_LOCAL);
    if (ptx_accept(l, ".param"))
        return parse_memory(parser, SYMBOL_AREA);
    if (ptx_accept(l, ".shared"))
        return ptx_variable_declaration(parser, SPACE_SHARED, 0, 0, 0);
    if (ptx_accept(l, ".global"))
        return ptx_variable_declaration(parser, SPACE_GLOBAL, 0, 0, 0);
    if (ptx_accept(l, ".const"))
        return ptx_variable_declaration(parser, SPACE_CONST, 0, 0, 0);
    if (ptx_is(l, ".loc") || ptx_is(l, ".file")) {
        const char *newline = memchr(l->token.text, '\n', (size_t)(l->end - l->token.text));
        l->at = newline ? newline : l->end;
        ptx_next(l);
        return 0;
    }
    if (l->token.kind == TOKEN_WORD && *l->token.text == '.') {
        if (!ptx_is(l, ".pragma"))
            ptx_refuse(parser, "contains the unsupported directive %.*s", (int)l->token.bytes, l->token.text);
        ptx_skip_statement(l);
        return 0;
    }
    struct lexer ahead = *l;
    ptx_next(&ahead);
    if (l->token.kind == TOKEN_WORD && ptx_is(&ahead, ":")) {
        struct token name = l->token;
        *l = ahead;
        ptx_next(l);
        return parse_labelled(parser, &name);
    }
    ahead = *l;
    if (ptx_accept(l, ";") || parse_statement(parser, s) == 0)
        return 0;
    /* A statement that cannot be parsed makes only this function not executable. */
    *l = ahead;
    size_t length = 0;
    while (length < 60 && l->token.text + length < l->end && l->token.text[length] != '\n' &&
           l->token.text[length] != ';')
        length++;
    ptx_refuse(parser, unsupported_memory(l->token.text, length), (int)length, l->token.text);
    ptx_skip_statement(l);
    return 0;
}

/* A label is looked up in the scope of the reference and then in the scopes around it. */
static int resolve(struct parser *parser, const struct reference *reference, uint32_t *at)
{
    for (uint32_t scope = reference->scope;; scope = parser->scopes[scope]) {
        for (size_t i = 0; i < parser->label_count; i++) {
            const struct label *label = &parser->labels[i];
            if (label->scope == scope && label->bytes == reference->bytes &&
                memcmp(label->name, reference->name, reference->bytes) == 0) {
                *at = label->at;
                return 0;
            }
        }
        if (!scope)
            return -1;
    }
}

int ptx_parse_body(struct parser *parser)
{
    struct lexer *l = &parser->lexer;
    size_t saved[256];
    int depth = 0, result = 0;
    struct statement *s = calloc(1, sizeof *s);
    if (!s)
        return -1;
    do {
        if (ptx_is(l, "{")) {
            result = depth == 256 ? -1 : enter_scope(parser);
            if (result == 0)
                saved[depth++] = parser->symbol_count;
            ptx_next(l);
        } else if (ptx_is(l, "}")) {
            parser->symbol_count = saved[--depth];
            parser->scope = parser->scopes[parser->scope];
            ptx_next(l);
        } else {
            result = l->token.kind == TOKEN_END ? -1 : parse_line(parser, s);
        }
    } while (depth && result == 0 && !parser->program->is_lost);
    free(s);
    if (result < 0)
        return -1;
    struct statement end = {.guard = NO_SLOT};
    ptx_emit(parser, &end, NULL, ptx_current(parser)->is_entry ? INS_EXIT : INS_RETURN);
    struct ptx_function *function = ptx_current(parser);
    for (size_t i = 0; i < parser->reference_count; i++) {
        const struct reference *one = &parser->references[i];
        uint32_t at = 0;
        if (resolve(parser, one, &at) < 0)
            ptx_refuse(parser, "branches to the undefined label %.*s", (int)one->bytes, one->name);
        if (one->cell)
            *one->cell = at;
        else if (one->ins < function->count)
            function->code[one->ins].target = at;
    }
    return 0;
}

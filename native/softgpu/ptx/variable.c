/* Variables outside functions, and shared variables inside them. */
#include "softgpu/ptx/internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 30 };

struct declaration {
    struct token name;
    const struct type *type;
    uint64_t bytes, alignment, vector;
    int is_unsized;
};

/* Parse name, dimensions: what follows the type. */
static int parse_name(struct lexer *l, struct declaration *d)
{
    int is_good = 1;
    uint64_t elements = 1;
    if (l->token.kind != TOKEN_WORD)
        return -1;
    d->name = l->token;
    d->is_unsized = 0;
    ptx_next(l);
    while (ptx_accept(l, "[")) {
        int64_t count = 1;
        if (ptx_is(l, "]"))
            d->is_unsized = 1;
        else
            count = ptx_integer(l, &is_good);
        if (!is_good || count < 0 || (count && elements > MAX_BYTES / (uint64_t)count) || !ptx_accept(l, "]"))
            return -1;
        elements *= (uint64_t)count;
    }
    d->bytes = elements * d->vector * (d->type->bytes ? d->type->bytes : 1);
    return d->bytes <= MAX_BYTES ? 0 : -1;
}

static int parse_type(struct lexer *l, struct declaration *d)
{
    int is_good = 1;
    *d = (struct declaration){.vector = 1};
    for (;;) {
        const struct type *type =
            l->token.bytes > 1 && *l->token.text == '.' ? ptx_type(l->token.text + 1, l->token.bytes - 1) : NULL;
        if (type) {
            d->type = type;
            ptx_next(l);
        } else if (ptx_accept(l, ".align")) {
            int64_t alignment = ptx_integer(l, &is_good);
            if (!is_good || alignment < 1 || alignment > 4096)
                return -1;
            d->alignment = (uint64_t)alignment;
        } else if (ptx_accept(l, ".v2")) {
            d->vector = 2;
        } else if (ptx_accept(l, ".v4")) {
            d->vector = 4;
        } else if (ptx_accept(l, "[")) { /* the bank of .const[2] */
            ptx_next(l);
            ptx_accept(l, "]");
        } else if (l->token.kind == TOKEN_WORD && *l->token.text == '.') {
            ptx_next(l); /* .attribute and similar */
            if (ptx_accept(l, "("))
                while (l->token.kind != TOKEN_END && !ptx_accept(l, ")"))
                    ptx_next(l);
        } else {
            break;
        }
    }
    if (!d->type)
        return -1;
    if (!d->alignment)
        d->alignment = d->vector * (d->type->bytes ? d->type->bytes : 1);
    return 0;
}

struct initializer {
    unsigned char *data;
    size_t bytes, capacity;
    struct ptx_relocation *relocations;
    size_t count, relocation_capacity;
};

static int put(struct initializer *init, uint64_t bits, uint32_t bytes)
{
    if (init->bytes + bytes > init->capacity) {
        size_t more = init->capacity ? init->capacity * 2 : 64;
        unsigned char *larger = realloc(init->data, more);
        if (!larger)
            return -1;
        init->data = larger;
        init->capacity = more;
    }
    memcpy(init->data + init->bytes, &bits, bytes);
    init->bytes += bytes;
    return 0;
}

static uint64_t float_bits(const struct token *token, uint32_t bytes, int *is_good)
{
    char text[64];
    uint64_t bits = 0;
    size_t length = token->bytes < sizeof text - 1 ? token->bytes : sizeof text - 1;
    memcpy(text, token->text, length);
    text[length] = 0;
    *is_good = 1;
    int is_hex = length > 2 && text[0] == '0' && strchr("fFdD", text[1]);
    if (is_hex) {
        bits = strtoull(text + 2, NULL, 16);
        int is_single = text[1] == 'f' || text[1] == 'F';
        if (is_single && bytes == 4)
            return bits;
        if (!is_single && bytes == 8)
            return bits;
        double wide;
        if (is_single) {
            uint32_t low = (uint32_t)bits;
            float narrow;
            memcpy(&narrow, &low, 4);
            wide = (double)narrow;
        } else {
            memcpy(&wide, &bits, 8);
        }
        float narrow = (float)wide;
        bits = 0;
        if (bytes == 4)
            memcpy(&bits, &narrow, 4);
        else
            memcpy(&bits, &wide, 8);
        return bits;
    }
    double wide = strtod(text, NULL);
    float narrow = (float)wide;
    if (bytes == 4)
        memcpy(&bits, &narrow, 4);
    else if (bytes == 8)
        memcpy(&bits, &wide, 8);
    else
        *is_good = 0;
    return bits;
}

static int put_symbol(struct parser *parser, struct initializer *init, uint32_t bytes, uint64_t window)
{
    struct lexer *l = &parser->lexer;
    int is_good = 1;
    struct ptx_relocation *larger =
        ptx_grow(init->relocations, &init->count, &init->relocation_capacity, sizeof *larger);
    if (!larger)
        return -1;
    init->relocations = larger;
    struct ptx_relocation *one = &larger[init->count - 1];
    *one = (struct ptx_relocation){.offset = init->bytes, .bytes = bytes, .variable = NONE, .function = NONE,
                                   .window = window};
    one->name = ptx_copy_text(parser->program, l->token.text, l->token.bytes);
    ptx_next(l);
    if (ptx_is(l, "+") || ptx_is(l, "-"))
        one->addend = (uint64_t)ptx_integer(l, &is_good);
    return is_good && one->name && bytes >= 4 ? put(init, 0, bytes) : -1;
}

enum { MAX_DIMENSIONS = 16 };

static int parse_value(struct parser *parser, struct initializer *init, const struct type *type, int depth)
{
    struct lexer *l = &parser->lexer;
    uint32_t bytes = type->bytes ? type->bytes : 1;
    int is_good = 1;
    if (ptx_accept(l, "{")) {
        while (!ptx_is(l, "}")) {
            if (depth == MAX_DIMENSIONS || parse_value(parser, init, type, depth + 1) < 0)
                return -1;
            if (!ptx_accept(l, ",") && !ptx_is(l, "}"))
                return -1;
        }
        ptx_next(l);
        return 0;
    }
    if (ptx_accept(l, "generic")) {
        if (!ptx_accept(l, "(") || put_symbol(parser, init, bytes, 1) < 0)
            return -1;
        return ptx_accept(l, ")") ? 0 : -1;
    }
    if (l->token.kind == TOKEN_WORD)
        return put_symbol(parser, init, bytes, 0);
    if (type->class == CLASS_FLOAT && bytes >= 4) {
        int is_minus = 0;
        while (ptx_is(l, "-") || ptx_is(l, "+")) {
            is_minus ^= ptx_is(l, "-");
            ptx_next(l);
        }
        uint64_t bits = float_bits(&l->token, bytes, &is_good);
        if (is_minus)
            bits ^= UINT64_C(1) << (bytes * 8 - 1);
        ptx_next(l);
        return is_good ? put(init, bits, bytes) : -1;
    }
    uint64_t bits = (uint64_t)ptx_integer(l, &is_good);
    if (is_good && ptx_is(l, "(")) /* 0xFF(symbol): one byte of an address */
        return -1;
    return is_good ? put(init, bits, bytes) : -1;
}

static struct ptx_variable *add_variable(struct parser *parser, const struct declaration *d)
{
    struct sg_ptx *program = parser->program;
    struct ptx_variable *larger = ptx_grow(program->variables, &program->variable_count, &program->variable_capacity,
                                           sizeof *larger);
    if (!larger)
        return NULL;
    program->variables = larger;
    struct ptx_variable *variable = &larger[program->variable_count - 1];
    variable->name = ptx_copy_text(program, d->name.text, d->name.bytes);
    variable->unit = parser->unit;
    variable->link = variable->placed = NONE;
    variable->bytes = d->bytes;
    variable->alignment = d->alignment;
    struct symbol *symbol = ptx_add_symbol(parser, &d->name, SYMBOL_VARIABLE);
    if (!symbol || !variable->name)
        return NULL;
    symbol->index = (int)(program->variable_count - 1);
    symbol->type = d->type;
    return variable;
}

/* Shared memory of an entry follows that of all other functions, which is in the program. */
static void place_shared(struct parser *parser, struct ptx_variable *variable)
{
    struct ptx_function *function = parser->function == NONE ? NULL : ptx_current(parser);
    uint32_t *end = function && function->is_entry ? &function->shared_bytes : &parser->program->shared_bytes;
    uint64_t offset = (*end + variable->alignment - 1) / variable->alignment * variable->alignment;
    if (offset + variable->bytes > UINT32_C(1) << 28) {
        parser->program->is_lost = 1;
        return;
    }
    variable->offset = offset;
    *end = (uint32_t)(offset + variable->bytes);
    variable->link = function && function->is_entry ? parser->function : NONE;
}

static int initialize(struct parser *parser, struct ptx_variable *variable, struct declaration *d)
{
    struct initializer init = {0};
    int result = parse_value(parser, &init, d->type, 0);
    if (result == 0 && d->is_unsized)
        variable->bytes = init.bytes;
    if (result == 0 && init.bytes <= variable->bytes) {
        variable->initial = ptx_keep(parser->program, variable->bytes);
        variable->relocations = ptx_keep(parser->program, init.count * sizeof *variable->relocations);
        if (variable->initial && variable->relocations && init.bytes)
            memcpy(variable->initial, init.data, init.bytes);
        if (variable->initial && variable->relocations && init.count)
            memcpy(variable->relocations, init.relocations, init.count * sizeof *variable->relocations);
        variable->relocation_count = init.count;
    } else {
        result = -1;
    }
    free(init.data);
    free(init.relocations);
    return result;
}

int ptx_variable_declaration(struct parser *parser, enum space space, int is_extern, int is_visible, int is_weak)
{
    struct lexer *l = &parser->lexer;
    struct declaration d;
    if (parse_type(l, &d) < 0)
        return -1;
    do {
        if (parse_name(l, &d) < 0)
            return -1;
        struct ptx_variable *variable = add_variable(parser, &d);
        if (!variable)
            return -1;
        variable->space = space;
        variable->is_visible = is_visible;
        variable->is_weak = is_weak;
        variable->is_extern = is_extern || (space == SPACE_SHARED && d.is_unsized);
        if (ptx_accept(l, "=") && initialize(parser, variable, &d) < 0)
            return -1;
        if (space == SPACE_SHARED && !variable->is_extern)
            place_shared(parser, variable);
    } while (ptx_accept(l, ","));
    return ptx_accept(l, ";") ? 0 : -1;
}

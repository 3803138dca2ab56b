/* Tokens of PTX. */
#include "softgpu/ptx/internal.h"

#include <string.h>

static int is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '%' || c == '.';
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_blank(struct lexer *l)
{
    while (l->at < l->end) {
        if (*l->at == ' ' || (*l->at >= '\t' && *l->at <= '\r') || !*l->at) {
            l->at++;
        } else if (l->end - l->at >= 2 && l->at[0] == '/' && l->at[1] == '/') {
            while (l->at < l->end && *l->at != '\n')
                l->at++;
        } else if (l->end - l->at >= 2 && l->at[0] == '/' && l->at[1] == '*') {
            l->at += 2;
            while (l->end - l->at >= 2 && !(l->at[0] == '*' && l->at[1] == '/'))
                l->at++;
            l->at = l->end - l->at >= 2 ? l->at + 2 : l->end;
        } else {
            return;
        }
    }
}

/* A word may contain dots and "::", as in ld.global.L2::128B, unless it starts with a dot: .reg.b32 is two words. A
 * decimal number may have a signed exponent. */
static void read_word(struct lexer *l)
{
    const char *start = l->at;
    int is_number = is_digit(*start), is_directive = *start == '.';
    int is_plain = is_number && !(l->end - start >= 2 && start[0] == '0' && strchr("xXfFdDbB", start[1]) && start[1]);
    while (l->at < l->end) {
        if (is_directive && *l->at == '.' && l->at > start)
            break;
        if (is_name(*l->at))
            l->at++;
        else if (!is_number && l->end - l->at >= 3 && l->at[0] == ':' && l->at[1] == ':' && is_name(l->at[2]))
            l->at += 2;
        else if (is_plain && (*l->at == '+' || *l->at == '-') && (l->at[-1] == 'e' || l->at[-1] == 'E'))
            l->at++;
        else
            break;
    }
    l->token.kind = is_number ? TOKEN_NUMBER : TOKEN_WORD;
}

void ptx_next(struct lexer *l)
{
    skip_blank(l);
    l->token = (struct token){TOKEN_END, l->at, 0};
    if (l->at == l->end)
        return;
    if (*l->at == '"') {
        l->at++;
        while (l->at < l->end && *l->at != '"')
            l->at += *l->at == '\\' && l->end - l->at >= 2 ? 2 : 1;
        l->at += l->at < l->end;
        l->token.kind = TOKEN_STRING;
    } else if (is_name(*l->at)) {
        read_word(l);
    } else {
        l->at++;
        l->token.kind = TOKEN_OTHER;
    }
    l->token.bytes = (size_t)(l->at - l->token.text);
}

int ptx_token_is(const struct token *token, const char *text)
{
    return strlen(text) == token->bytes && memcmp(token->text, text, token->bytes) == 0;
}

int ptx_is(const struct lexer *l, const char *text)
{
    return ptx_token_is(&l->token, text);
}

int ptx_accept(struct lexer *l, const char *text)
{
    if (!ptx_is(l, text))
        return 0;
    ptx_next(l);
    return 1;
}

void ptx_skip_statement(struct lexer *l)
{
    while (l->token.kind != TOKEN_END && !ptx_is(l, ";") && !ptx_is(l, "}"))
        ptx_next(l);
    ptx_accept(l, ";");
}

int64_t ptx_integer(struct lexer *l, int *is_good)
{
    int is_minus = 0;
    while (ptx_is(l, "-") || ptx_is(l, "+")) {
        is_minus ^= ptx_is(l, "-");
        ptx_next(l);
    }
    *is_good = l->token.kind == TOKEN_NUMBER;
    if (!*is_good)
        return 0;
    const char *text = l->token.text;
    size_t bytes = l->token.bytes, at = 0;
    uint64_t value = 0, base = 10;
    if (bytes > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        base = 16, at = 2;
    else if (bytes > 2 && text[0] == '0' && (text[1] == 'b' || text[1] == 'B'))
        base = 2, at = 2;
    else if (bytes > 1 && text[0] == '0')
        base = 8, at = 1;
    for (; at < bytes; at++) {
        char c = text[at];
        uint64_t digit = is_digit(c) ? (uint64_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint64_t)(c - 'A') + 10
                                                : 99;
        if (digit >= base) {
            *is_good = c == 'U' && at + 1 == bytes;
            break;
        }
        value = value * base + digit;
    }
    ptx_next(l);
    return (int64_t)(is_minus ? -value : value);
}

static const struct type types[] = {
    {"b8", CLASS_BITS, 1, 0},      {"u8", CLASS_UNSIGNED, 1, 0},  {"s8", CLASS_SIGNED, 1, 0},
    {"b16", CLASS_BITS, 2, 0},     {"u16", CLASS_UNSIGNED, 2, 0}, {"s16", CLASS_SIGNED, 2, 0},
    {"b32", CLASS_BITS, 4, 0},     {"u32", CLASS_UNSIGNED, 4, 0}, {"s32", CLASS_SIGNED, 4, 0},
    {"b64", CLASS_BITS, 8, 0},     {"u64", CLASS_UNSIGNED, 8, 0}, {"s64", CLASS_SIGNED, 8, 0},
    {"f16", CLASS_FLOAT, 2, 0},    {"f32", CLASS_FLOAT, 4, 0},    {"f64", CLASS_FLOAT, 8, 0},
    {"bf16", CLASS_BF16, 2, 0},   {"f16x2", CLASS_FLOAT, 4, 1},  {"bf16x2", CLASS_BF16, 4, 1},
    {"pred", CLASS_PREDICATE, 0, 0}, {"b128", CLASS_BITS, 16, 0}, {"tf32", CLASS_FLOAT, 4, 0},
};

const struct type *ptx_type(const char *text, size_t bytes)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strlen(types[i].name) == bytes && memcmp(types[i].name, text, bytes) == 0)
            return &types[i];
    return NULL;
}

const struct type *ptx_named(const char *name)
{
    return ptx_type(name, strlen(name));
}

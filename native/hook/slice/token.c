/* Tokens of PTX. */
#include "hook/slice/internal.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

void *ct_ptx_add(struct ptx *ptx, void *array, size_t *count, size_t *capacity, size_t element_bytes)
{
    void **at = array;
    if (*count == *capacity) {
        const size_t larger = *capacity ? *capacity * 2 : FIRST_CAPACITY;
        void *grown = larger < SIZE_MAX / element_bytes / 2 ? realloc(*at, larger * element_bytes) : NULL;
        if (!grown) {
            ptx->is_lost = 1;
            return NULL;
        }
        *at = grown;
        *capacity = larger;
    }
    char *element = (char *)*at + (*count)++ * element_bytes;
    return memset(element, 0, element_bytes);
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$' || c == '%' ||
           c == '.';
}

static const char *skip_blank(const char *at, const char *end)
{
    while (at < end) {
        if (*at == ' ' || (*at >= '\t' && *at <= '\r')) {
            at++;
        } else if (end - at >= 2 && at[0] == '/' && at[1] == '/') {
            while (at < end && *at != '\n')
                at++;
        } else if (end - at >= 2 && at[0] == '/' && at[1] == '*') {
            for (at += 2; end - at >= 2 && !(at[0] == '*' && at[1] == '/');)
                at++;
            at = end - at >= 2 ? at + 2 : end;
        } else {
            break;
        }
    }
    return at;
}

/* An opcode contains dots and "::"; a directive ends before the next dot. A decimal number may have a signed exponent. */
static const char *word_end(const char *start, const char *end)
{
    const int is_number = is_digit(*start), is_directive = *start == '.';
    const int has_base = end - start >= 2 && start[0] == '0' && is_name(start[1]) && !is_digit(start[1]) && start[1] != '.';
    const int is_decimal = is_number && !has_base;
    const char *at = start;
    while (at < end) {
        if (is_directive && *at == '.' && at > start)
            break;
        if (is_name(*at))
            at++;
        else if (!is_number && end - at >= 3 && at[0] == ':' && at[1] == ':' && is_name(at[2]))
            at += 2;
        else if (is_decimal && (*at == '+' || *at == '-') && (at[-1] == 'e' || at[-1] == 'E'))
            at++;
        else
            break;
    }
    return at;
}

static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"';)
        at += *at == '\\' && end - at >= 2 ? 2 : 1;
    return at < end ? at + 1 : end;
}

int ct_ptx_split(struct ptx *ptx, const char *text, size_t bytes)
{
    const char *at = text, *const end = text + bytes;
    uint32_t kind;
    do {
        const char *start = at = skip_blank(at, end);
        kind = TOKEN_OTHER;
        if (at == end) {
            kind = TOKEN_END;
        } else if (*at == '"') {
            kind = TOKEN_STRING;
            at = string_end(at, end);
        } else if (is_name(*at)) {
            kind = is_digit(*at) ? TOKEN_NUMBER : TOKEN_WORD;
            at = word_end(at, end);
        } else {
            at++;
        }
        struct token *token =
            ct_ptx_add(ptx, &ptx->tokens, &ptx->token_count, &ptx->token_capacity, sizeof *token);
        if (!token)
            return 0;
        *token = (struct token){start, (uint32_t)(at - start), kind};
    } while (kind != TOKEN_END);
    return 1;
}

int ct_ptx_is(const struct ptx *ptx, uint32_t token, const char *text)
{
    const struct token *one = &ptx->tokens[token];
    return strlen(text) == one->bytes && memcmp(one->text, text, one->bytes) == 0;
}

int ct_ptx_begins(const struct ptx *ptx, uint32_t token, const char *text)
{
    const struct token *one = &ptx->tokens[token];
    return strlen(text) <= one->bytes && memcmp(one->text, text, strlen(text)) == 0;
}

int ct_ptx_same(const struct ptx *ptx, uint32_t left, uint32_t right)
{
    const struct token *a = &ptx->tokens[left], *b = &ptx->tokens[right];
    return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

uint32_t ct_ptx_hash(const char *text, uint32_t bytes)
{
    uint32_t hash = 2166136261u;
    for (uint32_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash;
}

int ct_ptx_has(const struct ptx *ptx, uint32_t token, const char *text)
{
    const struct token *one = &ptx->tokens[token];
    const size_t length = strlen(text);
    for (size_t i = 0; i + length <= one->bytes; i++)
        if (memcmp(one->text + i, text, length) == 0)
            return 1;
    return 0;
}

int ct_ptx_suffix(const struct ptx *ptx, uint32_t token, const char *suffix)
{
    const struct token *one = &ptx->tokens[token];
    const size_t length = strlen(suffix);
    for (size_t i = 0; i + length <= one->bytes; i++)
        if (memcmp(one->text + i, suffix, length) == 0 && (i + length == one->bytes || one->text[i + length] == '.'))
            return 1;
    return 0;
}

uint64_t ct_ptx_number(const struct ptx *ptx, uint32_t token, int *is_valid)
{
    const struct token *one = &ptx->tokens[token];
    uint64_t value = 0;
    *is_valid = one->kind == TOKEN_NUMBER && one->bytes <= 9 && (one->bytes == 1 || one->text[0] != '0');
    for (uint32_t i = 0; i < one->bytes && *is_valid; i++) {
        *is_valid = is_digit(one->text[i]);
        value = value * 10 + (uint64_t)(one->text[i] - '0');
    }
    return value;
}

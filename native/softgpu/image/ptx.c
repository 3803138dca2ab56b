/* PTX: names, parameters and limits of entry functions. Their code is compiled when the image is bound. */
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    const char *at, *end;
};

static int is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '%' || c == '.';
}

static void skip_blank(struct reader *r)
{
    while (r->at < r->end) {
        if (strchr(" \t\r\n", *r->at) && *r->at) {
            r->at++;
        } else if (r->end - r->at >= 2 && r->at[0] == '/' && r->at[1] == '/') {
            while (r->at < r->end && *r->at != '\n')
                r->at++;
        } else if (r->end - r->at >= 2 && r->at[0] == '/' && r->at[1] == '*') {
            r->at += 2;
            while (r->end - r->at >= 2 && !(r->at[0] == '*' && r->at[1] == '/'))
                r->at++;
            r->at = r->end - r->at >= 2 ? r->at + 2 : r->end;
        } else {
            return;
        }
    }
}

/* Return the next word of name characters or the next other character; 0: end of input. */
static size_t word(struct reader *r, const char **start)
{
    skip_blank(r);
    *start = r->at;
    if (r->at == r->end)
        return 0;
    if (*r->at == '"') { /* strings may contain braces and names */
        r->at++;
        while (r->at < r->end && *r->at != '"')
            r->at += *r->at == '\\' && r->end - r->at >= 2 ? 2 : 1;
        r->at += r->at < r->end;
    } else if (is_name(*r->at)) {
        while (r->at < r->end && is_name(*r->at))
            r->at++;
    } else {
        r->at++;
    }
    return (size_t)(r->at - *start);
}

static int is(const char *start, size_t length, const char *expected)
{
    return strlen(expected) == length && memcmp(start, expected, length) == 0;
}

static uint32_t number(const char *start, size_t length)
{
    uint64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (start[i] < '0' || start[i] > '9')
            break;
        value = value * 10 + (uint64_t)(start[i] - '0');
        if (value > UINT32_MAX)
            return 0;
    }
    return (uint32_t)value;
}

static uint32_t type_bytes(const char *start, size_t length)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } types[] = {{".b8", 1},   {".u8", 1},   {".s8", 1},   {".pred", 1}, {".b16", 2}, {".u16", 2}, {".s16", 2},
                 {".f16", 2},  {".b32", 4},  {".u32", 4},  {".s32", 4},  {".f32", 4}, {".f16x2", 4}, {".b64", 8},
                 {".u64", 8},  {".s64", 8},  {".f64", 8},  {".b128", 16}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (is(start, length, types[i].name))
            return types[i].bytes;
    return 0;
}

/* Parse one parameter up to , or ): .param .align 8 .b8 name[16] or .param .u64 .ptr .global .align 4 name. */
static int parameter(struct reader *r, struct sg_kernel *kernel, int *is_last)
{
    uint32_t bytes = 0, alignment = 0, elements = 1;
    const char *start;
    size_t length;
    int is_pointer = 0;
    while ((length = word(r, &start)) && *start != ',' && *start != ')') {
        uint32_t type = type_bytes(start, length);
        if (type) {
            bytes = type;
        } else if (is(start, length, ".ptr")) {
            is_pointer = 1;
        } else if (is(start, length, ".align")) {
            length = word(r, &start);
            if (!is_pointer) /* otherwise it is the alignment of the target */
                alignment = number(start, length);
        } else if (*start == '[') {
            length = word(r, &start);
            elements = number(start, length);
        }
    }
    *is_last = !length || *start == ')';
    if (!length || !bytes || elements > SG_PARAM_LIMIT_BYTES || alignment > 256)
        return -1;
    return sg_kernel_param(kernel, bytes * elements, alignment ? alignment : bytes);
}

static CUresult entry(struct reader *r, struct sg_image *image, int version)
{
    const char *start;
    size_t length = word(r, &start);
    struct sg_kernel *kernel = length && is_name(*start) ? sg_image_add(image, start, length) : NULL;
    if (!kernel)
        return CUDA_ERROR_INVALID_PTX;
    kernel->ptx_version = version;
    length = word(r, &start);
    if (length && *start == '(') {
        struct reader ahead = *r;
        int is_last = 0;
        if (word(&ahead, &start) && *start == ')') {
            *r = ahead;
            is_last = 1;
        }
        while (!is_last)
            if (parameter(r, kernel, &is_last) < 0)
                return CUDA_ERROR_INVALID_PTX;
        length = word(r, &start);
    }
    for (; length && *start != '{' && *start != ';'; length = word(r, &start)) {
        if (!is(start, length, ".maxntid") && !is(start, length, ".reqntid"))
            continue;
        uint64_t threads = 1;
        do {
            length = word(r, &start);
            threads *= number(start, length);
            struct reader ahead = *r;
            length = word(&ahead, &start);
            if (length && *start == ',')
                *r = ahead;
        } while (length && *start == ',');
        if (threads >= 1 && threads <= 1024)
            kernel->max_threads = (uint32_t)threads;
    }
    return CUDA_SUCCESS;
}

/* A declaration after .global, .const, .shared or .local, such as .align 4 .b8 name[4][5], up to its initial value or
 * end. bytes 0: its size is unknown. */
struct declaration {
    const char *name;
    size_t length;
    uint64_t bytes;
};

static int parse_declaration(struct reader *r, struct declaration *declaration)
{
    const char *start;
    size_t length;
    uint64_t bytes = 0;
    *declaration = (struct declaration){0};
    while ((length = word(r, &start)) && *start != ';' && *start != '=' && *start != ',') {
        uint32_t type = type_bytes(start, length);
        if (type) {
            bytes = type * (bytes ? bytes : 1);
        } else if (is(start, length, ".v2") || is(start, length, ".v4")) {
            bytes = (uint64_t)(start[2] - '0') * (bytes ? bytes : 1);
        } else if (is(start, length, ".align")) {
            word(r, &start);
        } else if (*start == '[') {
            length = word(r, &start);
            bytes *= number(start, length);
            if (bytes > UINT32_MAX)
                return -1;
        } else if (!declaration->name && *start != '.' && is_name(*start)) {
            declaration->name = start;
            declaration->length = length;
        }
    }
    declaration->bytes = declaration->name ? bytes : 0;
    return 0;
}

/* Memory declared outside functions. A kernel that names it is charged for it. */
struct file_memory {
    struct declaration declaration;
    int is_const;
    size_t last_user; /* index plus one of the last kernel that was charged */
};

enum { MAX_SHARED = 64, MAX_BYTES = 1 << 20 };

struct parser {
    struct reader r;
    struct sg_image *image;
    struct file_memory shared[MAX_SHARED];
    size_t shared_count;
    int depth, is_entry, is_extern;
};

static void charge(uint32_t *total, uint64_t bytes)
{
    if (bytes < MAX_BYTES - *total)
        *total += (uint32_t)bytes;
}

static int outside(struct parser *parser, const char *start, size_t length)
{
    int is_const = is(start, length, ".const"), is_shared = is(start, length, ".shared");
    struct declaration declaration;
    if (is(start, length, ".func"))
        parser->is_entry = 0;
    if (parser->is_extern || (!is_const && !is_shared && !is(start, length, ".global")))
        return 0;
    if (parse_declaration(&parser->r, &declaration) < 0)
        return -1;
    if (!declaration.bytes)
        return 0;
    if ((is_const || is_shared) && parser->shared_count < MAX_SHARED)
        parser->shared[parser->shared_count++] = (struct file_memory){declaration, is_const, 0};
    return is_shared ? 0
                     : sg_image_variable(parser->image, declaration.name, declaration.length, declaration.bytes, NULL);
}

/* Process a word in the body of a kernel: a declaration, or the name of memory declared in the file. */
static int inside(struct parser *parser, const char *start, size_t length)
{
    struct sg_kernel *kernel = &parser->image->kernels[parser->image->count - 1];
    int is_local = is(start, length, ".local");
    struct declaration declaration;
    if (is_local || is(start, length, ".shared")) {
        if (parse_declaration(&parser->r, &declaration) < 0)
            return -1;
        charge(is_local ? &kernel->local_bytes : &kernel->shared_bytes, declaration.bytes);
        return 0;
    }
    for (size_t i = 0; i < parser->shared_count; i++) {
        struct file_memory *one = &parser->shared[i];
        if (one->declaration.length != length || memcmp(one->declaration.name, start, length) != 0 ||
            one->last_user == parser->image->count)
            continue;
        one->last_user = parser->image->count;
        charge(one->is_const ? &kernel->const_bytes : &kernel->shared_bytes, one->declaration.bytes);
    }
    return 0;
}

static int version_of(const char *start, size_t length)
{
    int version = (int)(number(start, length) % 1000 * 10);
    const char *dot = memchr(start, '.', length);
    return dot ? version + (int)(number(dot + 1, (size_t)(start + length - dot - 1)) % 10) : version;
}

CUresult sg_image_ptx(const char *text, size_t bytes, struct sg_image *image)
{
    struct parser parser = {.r = {text, text + bytes}, .image = image};
    const char *start;
    int version = 0, *depth = &parser.depth;
    size_t length = word(&parser.r, &start);
    image->code_bytes = bytes;
    if (bytes && sg_image_add_text(image, text, bytes) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!is(start, length, ".version"))
        return CUDA_ERROR_INVALID_IMAGE;
    length = word(&parser.r, &start);
    version = length ? version_of(start, length) : 0;
    if (!version)
        return CUDA_ERROR_INVALID_PTX;
    while ((length = word(&parser.r, &start))) {
        if (*start == '{') {
            ++*depth;
        } else if (*start == '}') {
            *depth -= *depth > 0;
        } else if (!*depth && is(start, length, ".entry")) {
            CUresult result = entry(&parser.r, image, version);
            if (result != CUDA_SUCCESS)
                return result;
            parser.is_entry = 1;
            /* So that the loop counts the brace of the body. */
            parser.r.at -= parser.r.at > text && parser.r.at[-1] == '{';
        } else if ((!*depth && outside(&parser, start, length) < 0) ||
                   (*depth && parser.is_entry && inside(&parser, start, length) < 0)) {
            return CUDA_ERROR_INVALID_PTX;
        }
        parser.is_extern = is(start, length, ".extern");
    }
    return *depth ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

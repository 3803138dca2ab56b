/* PTX: entry names, parameters and limits are read; what the code does is not. */
#include "softgpu/face.h"

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

/* The next word of name characters, or one other character; 0 at the end. */
static size_t word(struct reader *r, const char **start)
{
    skip_blank(r);
    *start = r->at;
    if (r->at == r->end)
        return 0;
    if (*r->at == '"') { /* strings hide braces and names */
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

/* One parameter: .param .align 8 .b8 name[16] or .param .u64 .ptr .global .align 4 name, up to , or ). */
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
            if (!is_pointer) /* of what it points to, otherwise */
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
        struct reader look = *r;
        int is_last = 0;
        if (word(&look, &start) && *start == ')') {
            *r = look;
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
            struct reader look = *r;
            length = word(&look, &start);
            if (length && *start == ',')
                *r = look;
        } while (length && *start == ',');
        if (threads >= 1 && threads <= 1024)
            kernel->max_threads = (uint32_t)threads;
    }
    return CUDA_SUCCESS;
}

/* A variable outside of functions: .align 4 .b8 name[4][5], up to its value or its end. What cannot be sized is left. */
static int variable(struct reader *r, struct sg_image *image)
{
    const char *start, *name = NULL;
    size_t length, name_length = 0;
    uint64_t bytes = 0;
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
        } else if (!name && *start != '.' && is_name(*start)) {
            name = start;
            name_length = length;
        }
    }
    return name && bytes ? sg_image_variable(image, name, name_length, bytes, NULL) : 0;
}

CUresult sg_image_ptx(const char *text, size_t bytes, struct sg_image *image)
{
    struct reader r = {text, text + bytes};
    const char *start;
    size_t length;
    int version = 0, depth = 0, is_extern = 0;
    length = word(&r, &start);
    if (!is(start, length, ".version"))
        return CUDA_ERROR_INVALID_IMAGE;
    while ((length = word(&r, &start))) {
        if (!version) {
            version = (int)(number(start, length) % 1000 * 10);
            const char *dot = memchr(start, '.', length);
            if (dot)
                version += (int)(number(dot + 1, (size_t)(start + length - dot - 1)) % 10);
            if (!version)
                return CUDA_ERROR_INVALID_PTX;
        } else if (*start == '{') {
            depth++;
        } else if (*start == '}') {
            depth -= depth > 0;
        } else if (!depth && is(start, length, ".entry")) {
            CUresult result = entry(&r, image, version);
            if (result != CUDA_SUCCESS)
                return result;
            r.at -= r.at > text && r.at[-1] == '{'; /* the body's brace is counted above */
        } else if (!depth && !is_extern && (is(start, length, ".global") || is(start, length, ".const"))) {
            if (variable(&r, image) < 0)
                return CUDA_ERROR_INVALID_PTX;
        }
        is_extern = is(start, length, ".extern");
    }
    return version && !depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

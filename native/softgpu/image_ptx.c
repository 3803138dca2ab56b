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

/* What is declared behind .global, .const, .shared or .local: .align 4 .b8 name[4][5], up to its value or its end. Of no
 * bytes: it cannot be sized. */
struct declared {
    const char *name;
    size_t length;
    uint64_t bytes;
};

static int declaration(struct reader *r, struct declared *declared)
{
    const char *start;
    size_t length;
    uint64_t bytes = 0;
    *declared = (struct declared){0};
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
        } else if (!declared->name && *start != '.' && is_name(*start)) {
            declared->name = start;
            declared->length = length;
        }
    }
    declared->bytes = declared->name ? bytes : 0;
    return 0;
}

/* Memory declared outside of functions that a kernel has if it names it. */
struct shared {
    struct declared what;
    int is_const;
    size_t last_user; /* index of the kernel that was charged last, plus one */
};

enum { MOST_SHARED = 64, MOST_BYTES = 1 << 20 };

struct reading {
    struct reader r;
    struct sg_image *image;
    struct shared shared[MOST_SHARED];
    size_t shared_count;
    int depth, is_entry, is_extern;
};

static void charge(uint32_t *total, uint64_t bytes)
{
    if (bytes < MOST_BYTES - *total)
        *total += (uint32_t)bytes;
}

static int outside(struct reading *reading, const char *start, size_t length)
{
    int is_const = is(start, length, ".const"), is_shared = is(start, length, ".shared");
    struct declared declared;
    if (is(start, length, ".func"))
        reading->is_entry = 0;
    if (reading->is_extern || (!is_const && !is_shared && !is(start, length, ".global")))
        return 0;
    if (declaration(&reading->r, &declared) < 0)
        return -1;
    if (!declared.bytes)
        return 0;
    if ((is_const || is_shared) && reading->shared_count < MOST_SHARED)
        reading->shared[reading->shared_count++] = (struct shared){declared, is_const, 0};
    return is_shared ? 0
                     : sg_image_variable(reading->image, declared.name, declared.length, declared.bytes, NULL);
}

/* In the body of a kernel: its own memory, and what of the file's it names. */
static int inside(struct reading *reading, const char *start, size_t length)
{
    struct sg_kernel *kernel = &reading->image->kernels[reading->image->count - 1];
    int is_local = is(start, length, ".local");
    struct declared declared;
    if (is_local || is(start, length, ".shared")) {
        if (declaration(&reading->r, &declared) < 0)
            return -1;
        charge(is_local ? &kernel->local_bytes : &kernel->shared_bytes, declared.bytes);
        return 0;
    }
    for (size_t i = 0; i < reading->shared_count; i++) {
        struct shared *one = &reading->shared[i];
        if (one->what.length != length || memcmp(one->what.name, start, length) != 0 ||
            one->last_user == reading->image->count)
            continue;
        one->last_user = reading->image->count;
        charge(one->is_const ? &kernel->const_bytes : &kernel->shared_bytes, one->what.bytes);
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
    struct reading reading = {.r = {text, text + bytes}, .image = image};
    const char *start;
    int version = 0, *depth = &reading.depth;
    size_t length = word(&reading.r, &start);
    image->code_bytes = bytes;
    if (!is(start, length, ".version"))
        return CUDA_ERROR_INVALID_IMAGE;
    length = word(&reading.r, &start);
    version = length ? version_of(start, length) : 0;
    if (!version)
        return CUDA_ERROR_INVALID_PTX;
    while ((length = word(&reading.r, &start))) {
        if (*start == '{') {
            ++*depth;
        } else if (*start == '}') {
            *depth -= *depth > 0;
        } else if (!*depth && is(start, length, ".entry")) {
            CUresult result = entry(&reading.r, image, version);
            if (result != CUDA_SUCCESS)
                return result;
            reading.is_entry = 1;
            reading.r.at -= reading.r.at > text && reading.r.at[-1] == '{'; /* the body's brace is counted above */
        } else if ((!*depth && outside(&reading, start, length) < 0) ||
                   (*depth && reading.is_entry && inside(&reading, start, length) < 0)) {
            return CUDA_ERROR_INVALID_PTX;
        }
        reading.is_extern = is(start, length, ".extern");
    }
    return *depth ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

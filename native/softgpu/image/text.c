/* The text image, in which a program for this device declares its kernels. docs/how-to/write-kernel-images.md specifies the
 * format. */
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = SG_MAX_PARAMS + 1, WORD_BYTES = 32, SHARED_LIMIT = 1 << 20 };

struct line {
    const char *word[WORDS];
    size_t length[WORDS];
    int count;
};

/* Split the next line into words. # starts a comment. -1: too many words. */
static int next_line(const char **at, const char *end, struct line *line)
{
    line->count = 0;
    while (*at < end && **at != '\n') {
        if (**at == '#') {
            while (*at < end && **at != '\n')
                ++*at;
            break;
        }
        if (**at == ' ' || **at == '\t' || **at == '\r') {
            ++*at;
            continue;
        }
        if (line->count == WORDS)
            return -1;
        const char *start = *at;
        while (*at < end && !memchr(" \t\r\n#", **at, 5))
            ++*at;
        line->word[line->count] = start;
        line->length[line->count++] = (size_t)(*at - start);
    }
    if (*at < end)
        ++*at;
    return 0;
}

static int is(const struct line *line, int index, const char *word)
{
    return line->count > index && strlen(word) == line->length[index] &&
           memcmp(line->word[index], word, line->length[index]) == 0;
}

/* Parse a number up to `limit`; if `percent`, a trailing % is accepted and applied. -1: invalid. */
static double number(const struct line *line, int index, double limit, int percent)
{
    char copy[WORD_BYTES], *end;
    if (line->count <= index || !line->length[index] || line->length[index] >= sizeof copy)
        return -1;
    memcpy(copy, line->word[index], line->length[index]);
    copy[line->length[index]] = 0;
    if (!strchr("0123456789.", copy[0]) || strpbrk(copy, "xXnNiI"))
        return -1;
    double value = strtod(copy, &end);
    if (percent && *end == '%') {
        end++;
        value /= 100;
    }
    return *end || !(value >= 0 && value <= limit) ? -1 : value;
}

static int set_real(const struct line *line, double limit, int percent, double *target)
{
    double value = number(line, 1, limit, percent);
    if (value < 0 || line->count != 2)
        return -1;
    *target = value;
    return 0;
}

static int set_whole(const struct line *line, double limit, uint64_t *target)
{
    double value;
    if (set_real(line, limit, 0, &value) < 0)
        return -1;
    *target = (uint64_t)value;
    return 0;
}

static int set_small(const struct line *line, double limit, uint32_t *target)
{
    uint64_t value;
    if (set_whole(line, limit, &value) < 0)
        return -1;
    *target = (uint32_t)value;
    return 0;
}

/* Parameters can be set only once, by params or builtin, because other properties depend on them. */
static int set_params(struct sg_kernel *kernel, const struct line *line)
{
    if (kernel->builtin != SG_BUILTIN_NONE || kernel->param_count || line->count < 2)
        return -1;
    for (int i = 1; i < line->count; i++) {
        double bytes = number(line, i, SG_PARAM_LIMIT_BYTES, 0);
        uint32_t size = (uint32_t)bytes, alignment = 1;
        if (bytes < 1)
            return -1;
        while (alignment < 16 && size % (alignment * 2) == 0)
            alignment *= 2;
        if (sg_kernel_param(kernel, size, alignment) < 0)
            return -1;
    }
    return 0;
}

/* Set explicit parameter offsets, which must increase without overlap. */
static int set_offsets(struct sg_kernel *kernel, const struct line *line)
{
    uint32_t end = 0;
    if (kernel->builtin != SG_BUILTIN_NONE || !kernel->param_count || line->count != (int)kernel->param_count + 1)
        return -1;
    for (uint32_t i = 0; i < kernel->param_count; i++) {
        double offset = number(line, (int)i + 1, SG_PARAM_LIMIT_BYTES, 0);
        if (offset < end)
            return -1;
        kernel->param_offset[i] = (uint32_t)offset;
        end = (uint32_t)offset + kernel->param_bytes[i];
    }
    return 0;
}

static int set_version(const struct line *line, int *target)
{
    uint32_t value;
    if (set_small(line, 9999, &value) < 0)
        return -1;
    *target = (int)value;
    return 0;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Parse variable NAME BYTES [VALUE], with two hexadecimal digits per byte of the value. */
static int add_variable(struct sg_image *image, const struct line *line)
{
    double bytes = number(line, 2, 1 << 30, 0);
    unsigned char *initial = NULL;
    if (line->count < 3 || line->count > 4 || bytes < 1)
        return -1;
    size_t size = (size_t)bytes;
    if (line->count == 4) {
        if (line->length[3] != 2 * size)
            return -1;
        initial = malloc(size);
        for (size_t i = 0; initial && i < size; i++) {
            int high = digit(line->word[3][2 * i]), low = digit(line->word[3][2 * i + 1]);
            if (high < 0 || low < 0) {
                free(initial);
                return -1;
            }
            initial[i] = (unsigned char)(high << 4 | low);
        }
        if (!initial)
            return -1;
    }
    int failed = sg_image_variable(image, line->word[1], line->length[1], size, initial);
    free(initial);
    return failed;
}

static int set_duration_param(struct sg_kernel *kernel, const struct line *line, int *target)
{
    uint32_t index;
    if (set_small(line, SG_MAX_PARAMS - 1, &index) < 0 || index >= kernel->param_count ||
        kernel->param_bytes[index] != 8)
        return -1;
    *target = (int)index;
    return 0;
}

static int set_builtin(struct sg_kernel *kernel, const struct line *line)
{
    if (line->count != 2 || kernel->builtin != SG_BUILTIN_NONE || kernel->param_count)
        return -1;
    kernel->builtin = (enum sg_builtin)sg_builtin_find(line->word[1], line->length[1]);
    if (kernel->builtin == SG_BUILTIN_NONE)
        return -1;
    sg_builtin_shape(kernel);
    return 0;
}

/* The counter's address takes 8 bytes, its value 4. */
static int set_spin(struct sg_kernel *kernel, const struct line *line)
{
    double counter = number(line, 1, SG_MAX_PARAMS, 0), value = number(line, 2, SG_MAX_PARAMS, 0);
    if (line->count != 3 || counter < 0 || value < 0 || kernel->builtin != SG_BUILTIN_NONE)
        return -1;
    if ((uint32_t)counter >= kernel->param_count || (uint32_t)value >= kernel->param_count ||
        kernel->param_bytes[(uint32_t)counter] != 8 || kernel->param_bytes[(uint32_t)value] != 4)
        return -1;
    kernel->spin_counter = (int)counter;
    kernel->spin_value = (int)value;
    return 0;
}

static int property(struct sg_kernel *kernel, const struct line *line)
{
    if (is(line, 0, "params"))
        return set_params(kernel, line);
    if (is(line, 0, "builtin"))
        return set_builtin(kernel, line);
    if (is(line, 0, "duration_ns"))
        return set_whole(line, 1e15, &kernel->duration_ns);
    if (is(line, 0, "duration_param"))
        return set_duration_param(kernel, line, &kernel->duration_param);
    if (is(line, 0, "duration_data"))
        return set_duration_param(kernel, line, &kernel->duration_data);
    if (is(line, 0, "spin"))
        return set_spin(kernel, line);
    if (is(line, 0, "spin_limit_ns"))
        return set_whole(line, 1e15, &kernel->spin_limit_ns);
    if (is(line, 0, "bandwidth"))
        return set_real(line, 1, 1, &kernel->bandwidth);
    if (is(line, 0, "block_ns"))
        return set_whole(line, 1e15, &kernel->block_ns);
    if (is(line, 0, "thread_ns"))
        return set_real(line, 1e12, 0, &kernel->thread_ns);
    if (is(line, 0, "bytes_per_block"))
        return set_real(line, 1e12, 0, &kernel->bytes_per_block);
    if (is(line, 0, "bytes_per_thread"))
        return set_real(line, 1e9, 0, &kernel->bytes_per_thread);
    if (is(line, 0, "registers"))
        return set_small(line, 255, &kernel->registers);
    if (is(line, 0, "shared_bytes"))
        return set_small(line, SHARED_LIMIT, &kernel->shared_bytes);
    if (is(line, 0, "max_threads"))
        return set_small(line, 1024, &kernel->max_threads);
    if (is(line, 0, "blocks_per_sm"))
        return set_small(line, 32, &kernel->blocks_per_sm);
    if (is(line, 0, "param_offsets"))
        return set_offsets(kernel, line);
    if (is(line, 0, "local_bytes"))
        return set_small(line, SHARED_LIMIT, &kernel->local_bytes);
    if (is(line, 0, "const_bytes"))
        return set_small(line, SHARED_LIMIT, &kernel->const_bytes);
    if (is(line, 0, "ptx_version"))
        return set_version(line, &kernel->ptx_version);
    if (is(line, 0, "binary_version"))
        return set_version(line, &kernel->binary_version);
    if (is(line, 0, "jitter"))
        return set_real(line, 1, 1, &kernel->jitter);
    return -1;
}

CUresult sg_image_text(const char *text, size_t bytes, struct sg_image *image)
{
    const char *at = text, *end = text + bytes;
    struct line line;
    struct sg_kernel *kernel = NULL;
    int is_first = 1;
    image->code_bytes = bytes;
    while (at < end) {
        if (next_line(&at, end, &line) < 0)
            return CUDA_ERROR_INVALID_IMAGE;
        if (!line.count)
            continue;
        if (is_first) {
            if (!is(&line, 0, "softgpu-image") || !is(&line, 1, "1") || line.count != 2)
                return CUDA_ERROR_INVALID_IMAGE;
            is_first = 0;
        } else if (is(&line, 0, "kernel")) {
            kernel = line.count == 2 ? sg_image_add(image, line.word[1], line.length[1]) : NULL;
            if (!kernel)
                return CUDA_ERROR_INVALID_IMAGE;
            kernel->bytes_per_thread = 0; /* unspecified properties are 0 */
        } else if (is(&line, 0, "ptx")) { /* the number of bytes that follow the line */
            uint64_t size;
            if (set_whole(&line, 1e9, &size) < 0 || size > (uint64_t)(end - at) ||
                sg_image_add_text(image, at, size) < 0)
                return CUDA_ERROR_INVALID_IMAGE;
            at += size;
        } else if (is(&line, 0, "machine_code") && line.count == 1) { /* kernels without PTX are not executed */
            image->is_machine_code = 1;
        } else if (is(&line, 0, "variable")) {
            if (add_variable(image, &line) < 0)
                return CUDA_ERROR_INVALID_IMAGE;
        } else if (!kernel || property(kernel, &line) < 0) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
    }
    return is_first ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

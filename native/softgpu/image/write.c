/* Output of an image in text format, as returned by cuLinkComplete. */
#include "softgpu/driver/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A name with a character that ends a word cannot be written. */
static int is_word(const char *name)
{
    return *name && !strpbrk(name, " \t\r\n#");
}

static void write_params(FILE *text, const struct sg_kernel *kernel)
{
    if (kernel->builtin != SG_BUILTIN_NONE) {
        fprintf(text, "  builtin %s\n", sg_builtin_name(kernel->builtin));
    } else if (kernel->param_count) {
        fputs("  params", text);
        for (uint32_t i = 0; i < kernel->param_count; i++)
            fprintf(text, " %u", kernel->param_bytes[i]);
        fputs("\n  param_offsets", text);
        for (uint32_t i = 0; i < kernel->param_count; i++)
            fprintf(text, " %u", kernel->param_offset[i]);
        fputc('\n', text);
    }
    if (kernel->duration_param >= 0)
        fprintf(text, "  duration_param %d\n", kernel->duration_param);
    if (kernel->duration_data >= 0)
        fprintf(text, "  duration_data %d\n", kernel->duration_data);
    if (kernel->spin_counter >= 0)
        fprintf(text, "  spin %d %d\n", kernel->spin_counter, kernel->spin_value);
}

static void write_kernel(FILE *text, const struct sg_kernel *kernel)
{
    const struct {
        const char *property;
        uint64_t value;
    } integers[] = {
        {"duration_ns", kernel->duration_ns},
        {"block_ns", kernel->block_ns},
        {"spin_limit_ns", kernel->spin_limit_ns},
        {"registers", kernel->registers},
        {"shared_bytes", kernel->shared_bytes},
        {"max_threads", kernel->max_threads},
        {"blocks_per_sm", kernel->blocks_per_sm},
        {"local_bytes", kernel->local_bytes},
        {"const_bytes", kernel->const_bytes},
        {"ptx_version", (uint64_t)kernel->ptx_version},
        {"binary_version", (uint64_t)kernel->binary_version},
    };
    const struct {
        const char *property;
        double value;
    } reals[] = {
        {"thread_ns", kernel->thread_ns},
        {"bytes_per_block", kernel->bytes_per_block},
        {"bytes_per_thread", kernel->bytes_per_thread},
        {"bandwidth", kernel->bandwidth},
        {"jitter", kernel->jitter},
    };
    fprintf(text, "kernel %s\n", kernel->name);
    write_params(text, kernel);
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        fprintf(text, "  %s %llu\n", integers[i].property, (unsigned long long)integers[i].value);
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        fprintf(text, "  %s %.17g\n", reals[i].property, reals[i].value);
}

static void write_variable(FILE *text, const struct sg_variable *variable)
{
    fprintf(text, "variable %s %llu", variable->name, (unsigned long long)variable->bytes);
    if (variable->initial) {
        fputc(' ', text);
        for (uint64_t i = 0; i < variable->bytes; i++)
            fprintf(text, "%02x", variable->initial[i]);
    }
    fputc('\n', text);
}

char *sg_image_write(const struct sg_image *image, size_t *bytes)
{
    char *written = NULL;
    FILE *text = open_memstream(&written, bytes);
    int is_good = text != NULL;
    if (!text)
        return NULL;
    fputs("softgpu-image 1\n", text);
    for (size_t i = 0; i < image->variable_count; i++) {
        is_good = is_good && is_word(image->variables[i].name);
        write_variable(text, &image->variables[i]);
    }
    for (size_t i = 0; i < image->count; i++) {
        is_good = is_good && is_word(image->kernels[i].name);
        write_kernel(text, &image->kernels[i]);
    }
    for (size_t i = 0; i < image->text_count; i++)
        fprintf(text, "ptx %zu\n%s\n", strlen(image->texts[i]), image->texts[i]);
    if (image->is_machine_code)
        fputs("machine_code\n", text);
    if (fclose(text) != 0 || !is_good) {
        free(written);
        return NULL;
    }
    return written;
}

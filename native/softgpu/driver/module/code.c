/* Code that is executed: the PTX of images, and launches of its kernels. The code runs in the process that launched it
 * (docs/developer/decisions/0035-ptx-runs-in-the-client.md). */
#include "softgpu/driver/internal.h"
#include "softgpu/ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED_KERNELS = 8, HEAP_LIMIT = 2 }; /* HEAP_LIMIT: CU_LIMIT_MALLOC_HEAP_SIZE */

int sg_image_add_text(struct sg_image *image, const char *text, size_t bytes)
{
    char **texts = realloc(image->texts, (image->text_count + 1) * sizeof *texts);
    if (!texts)
        return -1;
    image->texts = texts;
    char *copy = malloc(bytes + 1);
    if (!copy)
        return -1;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    texts[image->text_count++] = copy;
    return 0;
}

void sg_image_free_code(struct sg_image *image)
{
    for (size_t i = 0; i < image->text_count; i++)
        free(image->texts[i]);
    free(image->texts);
    free(image->report);
    sg_ptx_release(image->program);
    image->texts = NULL;
    image->text_count = 0;
    image->report = NULL;
    image->program = NULL;
}

/* The variables of the program come first, in its order; those of machine code follow. */
static int join_variables(struct sg_image *image)
{
    struct sg_image joined = {0};
    size_t count = sg_ptx_variable_count(image->program);
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) {
        struct sg_ptx_variable one = sg_ptx_variable(image->program, i);
        failed = sg_image_variable(&joined, one.name, strlen(one.name), one.bytes ? one.bytes : 1,
                                   one.bytes ? one.initial : NULL);
    }
    for (size_t i = 0; i < image->variable_count && !failed; i++) {
        const struct sg_variable *one = &image->variables[i];
        int is_known = 0;
        for (size_t k = 0; k < count; k++)
            is_known |= strcmp(joined.variables[k].name, one->name) == 0;
        if (!is_known)
            failed = sg_image_variable(&joined, one->name, strlen(one->name), one->bytes, one->initial);
    }
    if (failed) {
        sg_variables_free(&joined);
        return -1;
    }
    sg_variables_free(image);
    image->variables = joined.variables;
    image->variable_count = joined.variable_count;
    return 0;
}

/* Describe the kernels that cannot be executed. */
static void write_report(struct sg_image *image)
{
    size_t bytes = 0, listed = 0, machine_code = 0;
    FILE *text = image->refused ? open_memstream(&image->report, &bytes) : NULL;
    if (!text)
        return;
    for (size_t i = 0; i < image->count; i++) {
        const struct sg_kernel *kernel = &image->kernels[i];
        const char *reason = kernel->entry < 0 ? NULL : sg_ptx_reason(image->program, kernel->entry);
        machine_code += kernel->entry < 0 && image->is_machine_code;
        if (!reason || listed == LISTED_KERNELS)
            continue;
        fprintf(text, "softgpu: kernel '%s' cannot be executed: %s\n", kernel->name, reason);
        listed++;
    }
    if (machine_code)
        fprintf(text, "softgpu: %zu kernels of machine code cannot be executed: they take time and compute nothing\n",
                machine_code);
    if (image->refused > listed + machine_code)
        fprintf(text, "softgpu: %zu more kernels cannot be executed\n", image->refused - listed - machine_code);
    fclose(text);
}

CUresult sg_image_compile(struct sg_image *image)
{
    if (!image->text_count) {
        image->refused = image->is_machine_code ? image->count : 0;
        write_report(image);
        return CUDA_SUCCESS;
    }
    size_t *sizes = calloc(image->text_count, sizeof *sizes);
    if (!sizes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < image->text_count; i++)
        sizes[i] = strlen(image->texts[i]);
    image->program = sg_ptx_compile((const char *const *)image->texts, sizes, image->text_count);
    free(sizes);
    if (!image->program || join_variables(image) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < image->count; i++) {
        struct sg_kernel *kernel = &image->kernels[i];
        kernel->entry = sg_ptx_entry(image->program, kernel->name);
        if (kernel->entry < 0 ? image->is_machine_code : sg_ptx_reason(image->program, kernel->entry) != NULL)
            image->refused++;
        else if (kernel->entry >= 0)
            image->executable++;
    }
    write_report(image);
    return CUDA_SUCCESS;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* A launch whose kernel has not been executed yet. It holds the program, because the module may be unloaded. */
struct sg_code_launch {
    struct sg_ptx *program;
    struct sg_device *device;
    struct sg_ptx_launch launch;
    uint64_t *addresses;
    unsigned char params[];
};

void sg_code_drop(struct sg_code_launch *code)
{
    if (!code)
        return;
    sg_ptx_release(code->program);
    free(code->addresses);
    free(code);
}

/* Memory is accessible up to the unit in which it was allocated, as on a device. */
static int range(void *data, uint64_t address, uint64_t bytes, int is_write, uint64_t *start, uint64_t *end)
{
    const struct sg_device *device = data;
    const struct sg_memory *memory = sg_memory_at(address);
    if (!memory) { /* behind the requested bytes of the allocation before it */
        const struct sg_memory *before = sg_memory_at((address - 1) / SG_MEMORY_UNIT * SG_MEMORY_UNIT);
        memory = before && before->start + before->charged_bytes > address ? before : NULL;
    }
    if (!memory)
        return 0;
    int is_plain = memory->kind == SG_MEMORY_DEVICE && !memory->physical && !memory->share;
    uint64_t size = is_plain && memory->charged_bytes > memory->bytes ? memory->charged_bytes : memory->bytes;
    if (address - memory->start <= size && bytes <= size - (address - memory->start) &&
        sg_memory_allows(device, memory->start, 1, is_write)) {
        *start = memory->start;
        *end = memory->start + size;
        return 1;
    }
    *start = address;
    *end = address + bytes;
    return sg_memory_allows(device, address, bytes, is_write);
}

CUresult sg_code_prepare(CUcontext context, struct CUfunc_st *function, const struct sg_code_shape *shape,
                         const void **values, struct sg_code_launch **made)
{
    const struct sg_kernel *kernel = function->kernel;
    struct CUmod_st *module = function->module;
    struct sg_ptx *program = module->image.program;
    CUresult result = sg_variables_place(context, module);
    if (result != CUDA_SUCCESS)
        return result;
    uint32_t bytes = sg_ptx_param_bytes(program, kernel->entry);
    size_t count = sg_ptx_variable_count(program);
    struct sg_code_launch *code = calloc(1, sizeof *code + bytes);
    uint64_t *addresses = calloc(count ? count : 1, sizeof *addresses);
    if (!code || !addresses) {
        free(code);
        free(addresses);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (count)
        memcpy(addresses, module->addresses, count * sizeof *addresses);
    for (uint32_t i = 0; i < kernel->param_count; i++)
        if (kernel->param_offset[i] <= bytes && kernel->param_bytes[i] <= bytes - kernel->param_offset[i])
            memcpy(code->params + kernel->param_offset[i], values[i], kernel->param_bytes[i]);
    code->program = sg_ptx_hold(program);
    code->device = context->device;
    code->addresses = addresses;
    code->launch = (struct sg_ptx_launch){
        .program = program, .entry = kernel->entry, .dynamic_bytes = shape->shared_bytes, .params = code->params,
        .param_bytes = bytes, .addresses = addresses, .sm_count = context->device->config.sm_count,
        .resident_blocks = shape->resident_blocks, .grid_number = sg_next_id(),
        .heap_bytes = context->limits[HEAP_LIMIT] ? context->limits[HEAP_LIMIT] : 8 << 20, .range = range, .is_cooperative = shape->options->is_cooperative,
        .data = context->device};
    memcpy(code->launch.cluster, shape->options->cluster, sizeof code->launch.cluster);
    memcpy(code->launch.grid, shape->grid, sizeof code->launch.grid);
    memcpy(code->launch.block, shape->block, sizeof code->launch.block);
    *made = code;
    return CUDA_SUCCESS;
}

CUresult sg_code_run(const struct sg_code_launch *code)
{
    switch (sg_ptx_run(&code->launch)) {
    case SG_PTX_DONE:
        return CUDA_SUCCESS;
    case SG_PTX_ILLEGAL_ADDRESS:
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    case SG_PTX_MISALIGNED_ADDRESS:
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    case SG_PTX_TIMEOUT:
        return CUDA_ERROR_LAUNCH_TIMEOUT;
    case SG_PTX_ASSERT:
        return CUDA_ERROR_ASSERT;
    default:
        return CUDA_ERROR_LAUNCH_FAILED;
    }
}

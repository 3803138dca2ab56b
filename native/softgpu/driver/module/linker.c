/* The cuLink calls, which combine the kernels and variables of several images into one. */
#include "softgpu/driver/module/linker.h"
#include "fat_binary.h"
#include "softgpu/abi/names.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGE = 1024 };

/* Append to the program's log buffer as far as it fits, and update its reported length. */
__attribute__((format(printf, 2, 3))) static void log_error(struct CUlinkState_st *state, const char *format, ...)
{
    char message[MAX_MESSAGE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    unsigned bytes = length < 0 ? 0 : length < MAX_MESSAGE ? (unsigned)length : MAX_MESSAGE - 1;
    struct sg_log *log = &state->error;
    if (!log->text || !log->capacity)
        return;
    unsigned remaining = log->capacity - 1 - log->used;
    bytes = bytes < remaining ? bytes : remaining;
    memcpy(log->text + log->used, message, bytes);
    log->used += bytes;
    log->text[log->used] = 0;
    if (state->error_used)
        *state->error_used = (void *)(uintptr_t)log->used;
}

/* By the driver's contract, the option values belong to the program and are updated until the linker is destroyed. */
static void take_options(struct CUlinkState_st *state, unsigned count, const CUjit_option *options, void **values)
{
    for (unsigned i = 0; i < count; i++) {
        switch (options[i]) {
        case CU_JIT_INFO_LOG_BUFFER:
            state->info.text = values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER:
            state->error.text = values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            state->info.capacity = (unsigned)(uintptr_t)values[i];
            state->info_used = &values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            state->error.capacity = (unsigned)(uintptr_t)values[i];
            state->error_used = &values[i];
            break;
        case CU_JIT_WALL_TIME:
            values[i] = NULL; /* nothing is compiled, so the time is 0 */
            break;
        default:
            break;
        }
    }
    struct sg_log *logs[] = {&state->info, &state->error};
    void **used[] = {state->info_used, state->error_used};
    for (int i = 0; i < 2; i++) {
        if (logs[i]->text && logs[i]->capacity)
            logs[i]->text[0] = 0;
        if (used[i])
            *used[i] = NULL;
    }
}

static CUresult create(unsigned count, const CUjit_option *options, void **values, CUlinkState *made)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!made || (count && (!options || !values)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct CUlinkState_st *state = sg_new(SG_LINKER);
    if (!state)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    take_options(state, count, options, values);
    *made = state;
    return sg_leave(CUDA_SUCCESS);
}

static int has_kernel(const struct sg_image *image, const char *name)
{
    for (size_t i = 0; i < image->count; i++)
        if (strcmp(image->kernels[i].name, name) == 0)
            return 1;
    return 0;
}

static int has_variable(const struct sg_image *image, const char *name)
{
    for (size_t i = 0; i < image->variable_count; i++)
        if (strcmp(image->variables[i].name, name) == 0)
            return 1;
    return 0;
}

/* Reject duplicate kernels. Only the names of variables are known, not their linkage, so the first definition is used.
 * A rejected image adds nothing. */
static CUresult merge(struct CUlinkState_st *state, const struct sg_image *added, const char *name)
{
    struct sg_image *image = &state->image;
    for (size_t i = 0; i < added->count; i++)
        if (has_kernel(image, added->kernels[i].name)) {
            log_error(state, "error   : Multiple definition of '%s' in '%s'\n", added->kernels[i].name, name);
            return CUDA_ERROR_INVALID_IMAGE;
        }
    for (size_t i = 0; i < added->count; i++) {
        const struct sg_kernel *kernel = &added->kernels[i];
        struct sg_kernel *copy = sg_image_add(image, kernel->name, strlen(kernel->name));
        if (!copy)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *copy = *kernel;
    }
    for (size_t i = 0; i < added->text_count; i++)
        if (sg_image_add_text(image, added->texts[i], strlen(added->texts[i])) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    image->is_machine_code |= added->is_machine_code;
    for (size_t i = 0; i < added->variable_count; i++) {
        const struct sg_variable *one = &added->variables[i];
        if (!has_variable(image, one->name) &&
            sg_image_variable(image, one->name, strlen(one->name), one->bytes, one->initial) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* Host objects and archives contain their device code as aligned fat binaries. */
static CUresult add_carrier(struct CUlinkState_st *state, const unsigned char *data, size_t bytes, const char *name)
{
    CUresult result = CUDA_SUCCESS;
    if (bytes < 8 || (memcmp(data, "\177ELF", 4) != 0 && memcmp(data, "!<arch>\n", 8) != 0)) {
        log_error(state, "error   : '%s' is neither an object nor a library\n", name);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    /* Members of an archive start at even offsets, so their alignment does not hold for the archive. */
    for (size_t at = 0; result == CUDA_SUCCESS && at + CT_FATBIN_HEAD_BYTES <= bytes; at += 2) {
        struct sg_image image = {0};
        if (memcmp(data + at, ct_fatbin_magic, sizeof ct_fatbin_magic) != 0 ||
            sg_image_read(data + at, bytes - at, &image) != CUDA_SUCCESS)
            continue;
        result = merge(state, &image, name);
        sg_image_free(&image);
    }
    return result;
}

static CUresult add_image(struct CUlinkState_st *state, CUjitInputType type, const unsigned char *data, size_t bytes,
                          const char *name)
{
    struct sg_image image;
    int is_elf = bytes >= 4 && memcmp(data, "\177ELF", 4) == 0;
    int is_fatbin = bytes >= 4 && memcmp(data, ct_fatbin_magic, sizeof ct_fatbin_magic) == 0;
    int is_text = !is_elf && !is_fatbin;
    CUresult invalid = type == CU_JIT_INPUT_PTX ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    int fits = (type == CU_JIT_INPUT_PTX && is_text) || (type == CU_JIT_INPUT_FATBINARY && is_fatbin) ||
               (type == CU_JIT_INPUT_CUBIN && !is_fatbin);
    CUresult result = fits ? sg_image_read(data, bytes, &image) : invalid;
    if (result != CUDA_SUCCESS) {
        log_error(state, "error   : '%s' cannot be read\n", name);
        return type == CU_JIT_INPUT_PTX && result == CUDA_ERROR_INVALID_IMAGE ? CUDA_ERROR_INVALID_PTX : result;
    }
    result = merge(state, &image, name);
    sg_image_free(&image);
    return result;
}

static CUresult add(CUlinkState state, CUjitInputType type, const void *data, size_t bytes, const char *name)
{
    if (!data || !bytes || state->linked || type < CU_JIT_INPUT_CUBIN || type > CU_JIT_INPUT_NVVM)
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_JIT_INPUT_NVVM)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!name)
        name = "<input>";
    return type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY ? add_carrier(state, data, bytes, name)
                                                                       : add_image(state, type, data, bytes, name);
}

static CUresult enter(const struct CUlinkState_st *state)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_LINKER, state) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

static CUresult add_data(int number, CUlinkState state, CUjitInputType type, const void *data, size_t bytes,
                         const char *name, unsigned count, const CUjit_option *options, void **values)
{
    CUresult result = enter(state);
    if (result != CUDA_SUCCESS)
        return result;
    if (count && (!options || !values))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = sg_leave(add(state, type, data, bytes, name));
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(number) : result;
}

static CUresult add_file(int number, CUlinkState state, CUjitInputType type, const char *path, unsigned count,
                         const CUjit_option *options, void **values)
{
    size_t bytes = 0;
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    char *data = sg_file_read(path, &bytes);
    if (!data)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = add_data(number, state, type, data, bytes, path, count, options, values);
    free(data);
    return result;
}

API CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    return create(count, options, values, state);
}

API CUresult cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    return create(count, options, values, state);
}

API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,
                              unsigned int count, CUjit_option *options, void **values)
{
    return add_data(SG_NAME_cuLinkAddData_v2, state, type, data, bytes, name, count, options, values);
}

API CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,
                           unsigned int count, CUjit_option *options, void **values)
{
    return add_data(SG_NAME_cuLinkAddData, state, type, data, bytes, name, count, options, values);
}

API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,
                              CUjit_option *options, void **values)
{
    return add_file(SG_NAME_cuLinkAddFile_v2, state, type, path, count, options, values);
}

API CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,
                           CUjit_option *options, void **values)
{
    return add_file(SG_NAME_cuLinkAddFile, state, type, path, count, options, values);
}

/* A corrupt cubin may contain what a text image cannot express. Return only images that can be read back. */
static char *written_image(const struct sg_image *image, size_t *bytes)
{
    struct sg_image again;
    char *text = sg_image_write(image, bytes);
    if (text && sg_image_read(text, *bytes, &again) == CUDA_SUCCESS) {
        sg_image_free(&again);
        return text;
    }
    free(text);
    return NULL;
}

/* The linker owns the image. */
API CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes)
{
    CUresult result = enter(state);
    size_t written = 0;
    if (result != CUDA_SUCCESS)
        return result;
    if (!image)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!state->linked)
        state->linked = written_image(&state->image, &written);
    else
        written = strlen(state->linked);
    if (!state->linked) {
        log_error(state, "error   : the linked image cannot be written\n");
        return sg_leave(CUDA_ERROR_INVALID_IMAGE);
    }
    *image = state->linked;
    if (bytes)
        *bytes = written + 1; /* including the terminating zero, so that copies are terminated */
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuLinkDestroy(CUlinkState state)
{
    CUresult result = enter(state);
    if (result != CUDA_SUCCESS)
        return result;
    sg_image_free(&state->image);
    free(state->linked);
    sg_delete(SG_LINKER, state);
    return sg_leave(CUDA_SUCCESS);
}

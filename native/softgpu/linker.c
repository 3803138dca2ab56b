/* cuLink...: several images become one, with the kernels and variables of all of them. */
#include "softgpu/linker.h"
#include "softgpu/names.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_SAYING = 1024, FATBIN_HEAD = 16 };

static const unsigned char FATBIN[4] = {0x50, 0xed, 0x55, 0xba};

/* As much as the program's buffer holds; what it looks at says how much there is. */
__attribute__((format(printf, 2, 3))) static void say(struct CUlinkState_st *state, const char *format, ...)
{
    char line[LONGEST_SAYING];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    unsigned bytes = length < 0 ? 0 : length < LONGEST_SAYING ? (unsigned)length : LONGEST_SAYING - 1;
    struct sg_log *log = &state->error;
    if (!log->text || !log->room)
        return;
    unsigned left = log->room - 1 - log->used;
    bytes = bytes < left ? bytes : left;
    memcpy(log->text + log->used, line, bytes);
    log->used += bytes;
    log->text[log->used] = 0;
    if (state->error_used)
        *state->error_used = (void *)(uintptr_t)log->used;
}

/* The options' values stay the program's and are written to until the end: so says the driver's contract. */
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
            state->info.room = (unsigned)(uintptr_t)values[i];
            state->info_used = &values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            state->error.room = (unsigned)(uintptr_t)values[i];
            state->error_used = &values[i];
            break;
        case CU_JIT_WALL_TIME:
            values[i] = NULL; /* nothing is compiled: no time */
            break;
        default:
            break;
        }
    }
    struct sg_log *logs[] = {&state->info, &state->error};
    void **used[] = {state->info_used, state->error_used};
    for (int i = 0; i < 2; i++) {
        if (logs[i]->text && logs[i]->room)
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
    struct CUlinkState_st *state = sg_make(SG_LINKER);
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

/* A kernel that is there twice is refused. Of variables only the name is known, not whether they are the file's own:
 * the first one stands for all. Nothing is taken of an image that is refused. */
static CUresult merge(struct CUlinkState_st *state, const struct sg_image *added, const char *name)
{
    struct sg_image *image = &state->image;
    for (size_t i = 0; i < added->count; i++)
        if (has_kernel(image, added->kernels[i].name)) {
            say(state, "error   : Multiple definition of '%s' in '%s'\n", added->kernels[i].name, name);
            return CUDA_ERROR_INVALID_IMAGE;
        }
    for (size_t i = 0; i < added->count; i++) {
        const struct sg_kernel *kernel = &added->kernels[i];
        struct sg_kernel *copy = sg_image_add(image, kernel->name, strlen(kernel->name));
        if (!copy)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *copy = *kernel;
    }
    for (size_t i = 0; i < added->variable_count; i++) {
        const struct sg_variable *one = &added->variables[i];
        if (!has_variable(image, one->name) &&
            sg_image_variable(image, one->name, strlen(one->name), one->bytes, one->initial) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* The host's objects and archives of them carry their device code as fat binaries at aligned places. */
static CUresult add_carrier(struct CUlinkState_st *state, const unsigned char *data, size_t bytes, const char *name)
{
    CUresult result = CUDA_SUCCESS;
    if (bytes < 8 || (memcmp(data, "\177ELF", 4) != 0 && memcmp(data, "!<arch>\n", 8) != 0)) {
        say(state, "error   : '%s' is neither an object nor a library\n", name);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    /* An archive's members begin at even places, and what is aligned within them is not so within it. */
    for (size_t at = 0; result == CUDA_SUCCESS && at + FATBIN_HEAD <= bytes; at += 2) {
        struct sg_image image = {0};
        if (memcmp(data + at, FATBIN, sizeof FATBIN) != 0 || sg_image_read(data + at, bytes - at, &image) != CUDA_SUCCESS)
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
    int is_fatbin = bytes >= 4 && memcmp(data, FATBIN, sizeof FATBIN) == 0;
    int is_text = !is_elf && !is_fatbin;
    CUresult wrong = type == CU_JIT_INPUT_PTX ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    int fits = (type == CU_JIT_INPUT_PTX && is_text) || (type == CU_JIT_INPUT_FATBINARY && is_fatbin) ||
               (type == CU_JIT_INPUT_CUBIN && !is_fatbin);
    CUresult result = fits ? sg_image_read(data, bytes, &image) : wrong;
    if (result != CUDA_SUCCESS) {
        say(state, "error   : '%s' cannot be read\n", name);
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

/* A broken cubin may say what no text image can: what cannot be read again is not handed out. */
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

/* The image is the linker's until it is destroyed. */
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
        say(state, "error   : the linked image cannot be written\n");
        return sg_leave(CUDA_ERROR_INVALID_IMAGE);
    }
    *image = state->linked;
    if (bytes)
        *bytes = written + 1; /* a copy of it must end too */
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuLinkDestroy(CUlinkState state)
{
    CUresult result = enter(state);
    if (result != CUDA_SUCCESS)
        return result;
    sg_image_free(&state->image);
    free(state->linked);
    sg_unmake(SG_LINKER, state);
    return sg_leave(CUDA_SUCCESS);
}

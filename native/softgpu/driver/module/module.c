/* Modules and libraries: images that are bound to a context or to none. */
#include "softgpu/driver/internal.h"
#include "softgpu/ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 30 };

static CUresult make(CUcontext context, struct sg_image *image, struct CUmod_st **made)
{
    struct CUmod_st *module = sg_new(SG_MODULE);
    struct CUfunc_st **functions = calloc(image->count ? image->count : 1, sizeof *functions);
    if (!module || !functions) {
        if (module)
            sg_delete(SG_MODULE, module);
        free(functions);
        sg_image_free(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->context = context;
    module->context_id = context ? context->object.id : 0;
    module->image = *image;
    module->functions = functions;
    *made = module;
    return CUDA_SUCCESS;
}

void sg_module_end(struct CUmod_st *module)
{
    for (size_t i = 0; i < module->image.count; i++)
        if (module->functions[i]) {
            free(module->functions[i]->legacy);
            sg_delete(SG_FUNCTION, module->functions[i]);
        }
    free(module->functions);
    sg_variables_end(module);
    sg_image_free(&module->image);
    sg_delete(SG_MODULE, module);
}

/* Count kernels at the device, or at the first one for a library, and report those that cannot be executed. */
static void report_code(CUcontext context, const struct sg_image *image)
{
    struct sg_device *device = context ? context->device : sg_device_at(0);
    struct sg_request request = {.kind = SG_CODE_COUNT, .a = image->executable, .b = image->refused};
    struct sg_reply reply;
    if (image->report)
        fputs(image->report, stderr);
    if (device && device->connection.ring && (image->executable || image->refused))
        sg_call(&device->connection, &request, &reply);
}

/* Load the code of a module onto the device. The code of a library is loaded at its first use in a context. */
static CUresult bind(CUcontext context, struct sg_image *image, struct CUmod_st **made)
{
    struct CUmod_st *module;
    CUresult result = image->program ? CUDA_SUCCESS : sg_image_compile(image);
    if (result != CUDA_SUCCESS) {
        sg_image_free(image);
        return result;
    }
    report_code(context, image);
    result = make(context, image, &module);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t id = module->object.id;
    if (context)
        result = sg_code_load(context, module);
    if (result == CUDA_SUCCESS)
        *made = module;
    else if (sg_alive(SG_MODULE, module) && module->object.id == id)
        sg_module_end(module);
    return result;
}

char *sg_file_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rbe");
    char *data = NULL;
    if (!file)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long length = ftell(file);
        if (length >= 0 && length < FILE_LIMIT && fseek(file, 0, SEEK_SET) == 0)
            data = malloc((size_t)length + 1);
        if (data) {
            *bytes = fread(data, 1, (size_t)length, file);
            data[*bytes] = 0;
        }
    }
    fclose(file);
    return data;
}

/* With a context this loads a module, without one a library. */
static CUresult load(int is_library, const void *data, const char *path, struct CUmod_st **made)
{
    CUcontext context = NULL;
    char *content = NULL;
    size_t bytes = 0;
    CUresult result = is_library ? sg_enter() : sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!made || (!data && !path))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (path) {
        content = sg_file_read(path, &bytes);
        if (!content)
            return sg_leave(CUDA_ERROR_FILE_NOT_FOUND);
        data = content;
    }
    struct sg_image image;
    result = path && !bytes ? CUDA_ERROR_INVALID_IMAGE : sg_image_read(data, bytes, &image);
    free(content);
    if (result == CUDA_SUCCESS)
        result = bind(context, &image, made);
    return sg_leave(result);
}

/* Nothing is compiled, so report empty logs: programs print as much of their buffers as the driver reports. */
static void empty_logs(unsigned count, const CUjit_option *options, void **values)
{
    static const struct {
        CUjit_option buffer, bytes;
    } logs[] = {{CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES},
                {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES}};
    for (size_t log = 0; log < sizeof logs / sizeof logs[0]; log++) {
        char *buffer = NULL;
        unsigned bytes = 0; /* the option has 32 bits */
        for (unsigned i = 0; i < count; i++) {
            if (options[i] == logs[log].buffer)
                buffer = values[i];
            if (options[i] != logs[log].bytes)
                continue;
            bytes = (unsigned)(uintptr_t)values[i];
            values[i] = NULL;
        }
        if (buffer && bytes)
            buffer[0] = 0;
    }
}

API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    return load(0, NULL, path, module);
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load(0, image, NULL, module);
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                void **values)
{
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = load(0, image, NULL, module);
    if (image && module)
        empty_logs(count, options, values);
    return result;
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return load(0, image, NULL, module);
}

static CUresult enter_module(const void *handle, int is_library)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    const struct CUmod_st *module = handle;
    if (!sg_alive(SG_MODULE, module) || (module->context == NULL) != is_library)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    return CUDA_SUCCESS;
}

#define ENTER(handle, is_library)                                                                                      \
    CUresult result = enter_module(handle, is_library);                                                                \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

API CUresult cuModuleUnload(CUmodule module)
{
    ENTER(module, 0);
    result = sg_context_wait(module->context);
    if (sg_alive(SG_MODULE, module))
        sg_module_end(module);
    return sg_leave(result);
}

static struct CUfunc_st *function_at(struct CUmod_st *module, size_t index)
{
    if (!module->functions[index]) {
        struct CUfunc_st *function = sg_new(SG_FUNCTION);
        if (!function)
            return NULL;
        function->module = module;
        function->kernel = &module->image.kernels[index];
        uint32_t shared = function->kernel->shared_bytes;
        function->dynamic_bytes = shared < 49152 ? 49152 - shared : 0; /* more must be requested explicitly */
        function->carveout = -1;
        module->functions[index] = function;
    }
    return module->functions[index];
}

static CUresult by_name(struct CUmod_st *module, const char *name, struct CUfunc_st **function)
{
    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < module->image.count; i++) {
        if (strcmp(module->image.kernels[i].name, name) != 0)
            continue;
        *function = function_at(module, i);
        return *function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult enumerate(struct CUmod_st *module, struct CUfunc_st **functions, unsigned count)
{
    if (!functions)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && i < module->image.count; i++) {
        functions[i] = function_at(module, i);
        if (!functions[i])
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER(module, 0);
    return sg_leave(by_name(module, name, function));
}

API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    ENTER(module, 0);
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *count = (unsigned)module->image.count;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module)
{
    ENTER(module, 0);
    return sg_leave(enumerate(module, functions, count));
}

API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!mode)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *mode = CU_MODULE_LAZY_LOADING;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                               unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    if ((jit_count && (!jit || !jit_values)) || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = load(1, code, NULL, (struct CUmod_st **)library);
    if (code && library)
        empty_logs(jit_count, jit, jit_values);
    return result;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                                   unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    if ((jit_count && (!jit || !jit_values)) || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = load(1, NULL, path, (struct CUmod_st **)library);
    if (path && library)
        empty_logs(jit_count, jit, jit_values);
    return result;
}

API CUresult cuLibraryUnload(CUlibrary library)
{
    ENTER(library, 1);
    for (CUcontext context = sg_each(SG_CONTEXT, NULL); context; context = sg_each(SG_CONTEXT, context))
        sg_context_wait(context);
    if (sg_alive(SG_MODULE, library))
        sg_module_end((struct CUmod_st *)library);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    ENTER(library, 1);
    return sg_leave(by_name((struct CUmod_st *)library, name, (struct CUfunc_st **)kernel));
}

API CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    ENTER(library, 1);
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *count = (unsigned)((struct CUmod_st *)library)->image.count;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
    ENTER(library, 1);
    return sg_leave(enumerate((struct CUmod_st *)library, (struct CUfunc_st **)kernels, count));
}

/* Return a module with the library's image, bound to the current context. */
API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct CUmod_st *source = (struct CUmod_st *)library;
    if (!module || !sg_alive(SG_MODULE, library) || source->context)
        return sg_leave(module ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    struct sg_image image = source->image;
    image.texts = NULL;
    image.text_count = 0;
    image.report = NULL;
    image.program = sg_ptx_hold(image.program);
    image.executable = image.refused = 0; /* they are counted already */
    image.capacity = image.count ? image.count : 1;
    image.kernels = malloc(image.capacity * sizeof *image.kernels);
    if (!image.kernels || sg_variables_copy(&image, &source->image) < 0) {
        free(image.kernels);
        sg_ptx_release(image.program);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    if (image.count)
        memcpy(image.kernels, source->image.kernels, image.count * sizeof *image.kernels);
    return sg_leave(bind(context, &image, module));
}

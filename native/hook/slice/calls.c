/* Calls that would show the variants of kernels, and calls that configure a kernel and so its variant. */
#include "hook/entry/session.h"
#include "hook/slice/modules.h"

#include <stdlib.h>

/* ---- listing ------------------------------------------------------------------------------------------------------ */

static CUresult hide_count(unsigned int *count, uintptr_t owner, CUresult result)
{
    const unsigned variants = result == CUDA_SUCCESS ? ct_slice_variant_count(owner) : 0;
    if (variants && count)
        *count -= variants < *count ? variants : *count;
    return result;
}

CT_EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    return hide_count(count, (uintptr_t)module, CT_NEXT(cuModuleGetFunctionCount)(count, module));
}

CT_EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    return hide_count(count, (uintptr_t)library, CT_NEXT(cuLibraryGetKernelCount)(count, library));
}

/* Lists all kernels of the owner, and keeps those that are no variants. */
#define ENUMERATE(enumerate, get_count, get_name, type, listed, limit, owner)                                          \
    if (!listed || !limit || !ct_slice_variant_count((uintptr_t)owner))                                                \
        return CT_NEXT(enumerate)(listed, limit, owner);                                                               \
    struct ct_session *session = ct_session();                                                                         \
    unsigned int count = 0, kept = 0;                                                                                  \
    CUresult result = CT_NEXT(get_count)(&count, owner);                                                               \
    type *all = result == CUDA_SUCCESS ? calloc((size_t)count + 1, sizeof *all) : NULL;                                \
    if (result == CUDA_SUCCESS)                                                                                        \
        result = all ? CT_NEXT(enumerate)(all, count, owner) : CUDA_ERROR_OUT_OF_MEMORY;                               \
    for (unsigned int i = 0; i < count && kept < limit && result == CUDA_SUCCESS; i++) {                               \
        const char *name = NULL;                                                                                       \
        result = CT_NEXT(get_name)(&name, all[i]);                                                                     \
        if (result != CUDA_SUCCESS || ct_slice_is_variant(name))                                                       \
            continue;                                                                                                  \
        listed[kept++] = all[i];                                                                                       \
        if (session)                                                                                                   \
            ct_function_note(session, (uintptr_t)all[i], ct_slice_owner((uintptr_t)owner), name);                      \
    }                                                                                                                  \
    free(all);                                                                                                         \
    return result

CT_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int limit, CUmodule module)
{
    ENUMERATE(cuModuleEnumerateFunctions, cuModuleGetFunctionCount, cuFuncGetName, CUfunction, functions, limit, module);
}

CT_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int limit, CUlibrary library)
{
    ENUMERATE(cuLibraryEnumerateKernels, cuLibraryGetKernelCount, cuKernelGetName, CUkernel, kernels, limit, library);
}

CT_EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CUresult result = CT_NEXT(cuLibraryGetModule)(module, library);
    if (result == CUDA_SUCCESS && module)
        ct_slice_add_module((uintptr_t)*module, (uintptr_t)library);
    return result;
}

/* ---- configuration ------------------------------------------------------------------------------------------------ */

/* Returns the variant of a kernel that was configured; NULL: it has none. */
static CUfunction variant_of(uintptr_t handle, CUresult result, struct ct_slice **slice)
{
    struct ct_session *session = result == CUDA_SUCCESS ? ct_session() : NULL;
    *slice = session ? ct_function_slice(session, handle) : NULL;
    return *slice ? ct_slice_variant(*slice) : NULL;
}

/* The function of a variant in the current context. */
static CUfunction function_of(const struct ct_slice *slice, CUfunction variant)
{
    CUfunction function = variant;
    if (slice->is_library && CT_NEXT(cuKernelGetFunction)(&function, (CUkernel)variant) != CUDA_SUCCESS)
        return NULL;
    return function;
}

/* A variant that cannot be configured like its kernel is not used any more. */
static void check(struct ct_slice *slice, CUresult result)
{
    if (result != CUDA_SUCCESS)
        store_relaxed(&slice->state, CT_SLICE_REFUSED);
}

#define CONFIGURE(handle, configure_kernel, configure_variant)                                                         \
    CUresult result = (configure_kernel);                                                                              \
    struct ct_slice *slice;                                                                                            \
    const CUfunction variant = variant_of((uintptr_t)handle, result, &slice);                                          \
    if (variant)                                                                                                       \
        check(slice, (configure_variant));                                                                             \
    return result

static int is_cluster(CUfunction_attribute attribute, int value)
{
    return value && attribute >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH &&
           attribute <= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH;
}

static CUresult set_attribute(const struct ct_slice *slice, CUfunction variant, CUfunction_attribute attribute,
                              int value)
{
    const CUfunction function = is_cluster(attribute, value) ? NULL : function_of(slice, variant);
    return function ? CT_NEXT(cuFuncSetAttribute)(function, attribute, value) : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult set_cache(const struct ct_slice *slice, CUfunction variant, CUfunc_cache cache)
{
    const CUfunction function = function_of(slice, variant);
    return function ? CT_NEXT(cuFuncSetCacheConfig)(function, cache) : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult set_banks(const struct ct_slice *slice, CUfunction variant, CUsharedconfig banks)
{
    const CUfunction function = function_of(slice, variant);
    return function ? CT_NEXT(cuFuncSetSharedMemConfig)(function, banks) : CUDA_ERROR_NOT_SUPPORTED;
}

CT_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    CONFIGURE(function, CT_NEXT(cuFuncSetAttribute)(function, attribute, value),
              set_attribute(slice, variant, attribute, value));
}

CT_EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache cache)
{
    CONFIGURE(function, CT_NEXT(cuFuncSetCacheConfig)(function, cache), set_cache(slice, variant, cache));
}

CT_EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig banks)
{
    CONFIGURE(function, CT_NEXT(cuFuncSetSharedMemConfig)(function, banks), set_banks(slice, variant, banks));
}

CT_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
    CONFIGURE(kernel, CT_NEXT(cuKernelSetAttribute)(attribute, value, kernel, device),
              is_cluster(attribute, value)
                  ? CUDA_ERROR_NOT_SUPPORTED
                  : CT_NEXT(cuKernelSetAttribute)(attribute, value, (CUkernel)variant, device));
}

CT_EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache cache, CUdevice device)
{
    CONFIGURE(kernel, CT_NEXT(cuKernelSetCacheConfig)(kernel, cache, device),
              CT_NEXT(cuKernelSetCacheConfig)((CUkernel)variant, cache, device));
}

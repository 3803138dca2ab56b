/* Hooks of the driver's initialization, and of calls that create and destroy function handles, which record the
 * functions' names. */
#include "hook/memory/memory.h"
#include "hook/entry/parameters.h"
#include "hook/launch/work.h"
#include "hook/slice/modules.h"

CT_EXPORT CUresult cuInit(unsigned int flags)
{
    if (ct_membership_is_missing())
        return CUDA_ERROR_NOT_PERMITTED;
    ct_session(); /* also if a lookup of symbols has already found the driver */
    return CT_NEXT(cuInit)(flags);
}

CT_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (name && ct_slice_is_variant(name) && ct_slice_variant_count((uintptr_t)module))
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = CT_NEXT(cuModuleGetFunction)(function, module, name);
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS && function && name)
        ct_function_note(session, (uintptr_t)*function, ct_slice_owner((uintptr_t)module), name);
    return result;
}

CT_EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    if (name && ct_slice_is_variant(name) && ct_slice_variant_count((uintptr_t)library))
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = CT_NEXT(cuLibraryGetKernel)(kernel, library, name);
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS && kernel && name)
        ct_function_note(session, (uintptr_t)*kernel, (uintptr_t)library, name);
    return result;
}

/* The function of a kernel is unloaded with the kernel's library. */
CT_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUresult result = CT_NEXT(cuKernelGetFunction)(function, kernel);
    struct ct_session *session = ct_session();
    const char *name = NULL;
    if (session && result == CUDA_SUCCESS && function && (uintptr_t)*function != (uintptr_t)kernel &&
        ct_function_name(session, (uintptr_t)kernel, &name))
        ct_function_note(session, (uintptr_t)*function, ct_function_owner(session, (uintptr_t)kernel), name);
    return result;
}

static CUresult forget_unloaded(uintptr_t owner, CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS)
        ct_functions_forget(session, owner);
    return result;
}

#define UNLOAD(symbol, type, holding_kind)                                                                             \
    CT_EXPORT CUresult symbol(type handle)                                                                             \
    {                                                                                                                  \
        CT_ON_DEVICE(ct_holding_device(holding_kind, (uintptr_t)handle));                                              \
        struct ct_memory *memory = ct_memory();                                                                        \
        struct ct_holding holding;                                                                                     \
        ct_memory_begin(memory);                                                                                       \
        int was_held = ct_holding_take(memory, holding_kind, (uintptr_t)handle, &holding);                             \
        CUresult result = forget_unloaded((uintptr_t)handle, CT_NEXT(symbol)(handle));                                 \
        return ct_memory_settle_free(memory, &holding, was_held, result);                                              \
    }

UNLOAD(cuModuleUnload, CUmodule, CT_HELD_MODULE)
UNLOAD(cuLibraryUnload, CUlibrary, CT_HELD_LIBRARY)

CT_EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph)
{
    ct_graph_ended(graph);
    return forget_unloaded((uintptr_t)graph, CT_NEXT(cuGraphExecDestroy)(graph));
}

/* -- graphs ------------------------------------------------------------------------------------------------------- */

/* Only the call with a parameter structure can upload the graph: the other ones have no stream for it. */
static unsigned long long flags_in(const CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return params ? params->flags : 0;
}
#define FLAGS_OF(third)                                                                                                \
    _Generic((third), CUDA_GRAPH_INSTANTIATE_PARAMS *: flags_in((const void *)(uintptr_t)(third)), default: 0)

#define BODY_INSTANTIATE(symbol, ...)                                                                                  \
    CT_EXPORT CUresult symbol(CT_PARAMETERS(__VA_ARGS__));                                                             \
    CUresult symbol(CT_PARAMETERS(__VA_ARGS__))                                                                        \
    {                                                                                                                  \
        struct ct_graph sum;                                                                                           \
        struct ct_growth growth;                                                                                       \
        ct_graph_sum(b, &sum);                                                                                         \
        if (!ct_graph_uploads(&sum, FLAGS_OF(c), &growth))                                                             \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = CT_NEXT(symbol)(CT_ARGUMENTS(__VA_ARGS__));                                                  \
        ct_graph_settle(&growth, result);                                                                              \
        if (result == CUDA_SUCCESS && a) {                                                                             \
            ct_graph_made(*a, &sum);                                                                                   \
            ct_graph_name(*a, b);                                                                                      \
        }                                                                                                              \
        return result;                                                                                                 \
    }
#define BODY_CUSTOM(...)
#define BODY_NO_PARAMETERS(...)
#define BODY_UNIDENTIFIED(...)
#define BODY_CAPTURE(...)
#define BODY_SYNC(...)
#define BODY_QUERY(...)
#define BODY_DESTROY_CONTEXT(...)
#define BODY_RELEASE_PRIMARY(...)
#define BODY_ENGINE(...)
#define BODY_ALLOC(...)
#define BODY_FREE(...)
#define BODY_DETACH_CONTEXT(...)
#define BODY_RESET_PRIMARY(...)
#define BODY_DESTROY_GREEN(...)
#define CT_EACH_HOOK(kind, symbol, ...) BODY_##kind(symbol, __VA_ARGS__)
#define CALLED(symbol, ...)
#include "hook/entry/hooked.def"

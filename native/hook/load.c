/* Where handles get their names, and when they lose them. */
#include "hook/memory.h"
#include "hook/parameters.h"
#include "hook/work.h"

CT_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult result = CT_NEXT(cuModuleGetFunction)(function, module, name);
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS && function && name)
        ct_function_note(session, (uintptr_t)*function, (uintptr_t)module, name);
    return result;
}

CT_EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUresult result = CT_NEXT(cuLibraryGetKernel)(kernel, library, name);
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS && kernel && name)
        ct_function_note(session, (uintptr_t)*kernel, (uintptr_t)library, name);
    return result;
}

/* The function of a kernel goes with the kernel's library. Its name is asked for when it is launched, or was told. */
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

static CUresult unloaded(uintptr_t owner, CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS)
        ct_functions_forget(session, owner);
    return result;
}

#define UNLOAD(symbol, type, held_as)                                                                                  \
    CT_EXPORT CUresult symbol(type handle)                                                                             \
    {                                                                                                                  \
        struct ct_memory *memory = ct_memory();                                                                        \
        struct ct_holding holding;                                                                                     \
        ct_memory_begin(memory);                                                                                       \
        int was_held = ct_holding_take(memory, held_as, (uintptr_t)handle, &holding);                                  \
        CUresult result = unloaded((uintptr_t)handle, CT_NEXT(symbol)(handle));                                        \
        return ct_memory_settle_free(memory, &holding, was_held, result);                                              \
    }

UNLOAD(cuModuleUnload, CUmodule, CT_HELD_MODULE)
UNLOAD(cuLibraryUnload, CUlibrary, CT_HELD_LIBRARY)

CT_EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph)
{
    ct_graph_ended(graph);
    return unloaded((uintptr_t)graph, CT_NEXT(cuGraphExecDestroy)(graph));
}

/* -- graphs ------------------------------------------------------------------------------------------------------- */

/* Only the call with parameters knows of uploading: the others have no stream to do it in. */
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
        ct_graph_leave(&growth, result);                                                                               \
        if (result == CUDA_SUCCESS && a) {                                                                             \
            ct_graph_made(*a, &sum);                                                                                   \
            ct_graph_name(*a, b);                                                                                         \
        }                                                                                                              \
        return result;                                                                                                 \
    }
#define BODY_OWN(...)
#define BODY_ALONE(...)
#define BODY_UNNAMED(...)
#define BODY_CAPTURE(...)
#define BODY_SYNC(...)
#define BODY_QUERY(...)
#define BODY_ENDS(...)
#define BODY_RELEASES(...)
#define BODY_ENGINE(...)
#define BODY_ALLOC(...)
#define BODY_FREE(...)
#define BODY_DETACHES(...)
#define BODY_RESETS(...)
#define BODY_WITHERS(...)
#define CT_EACH_HOOK(what, symbol, ...) BODY_##what(symbol, __VA_ARGS__)
#define ASKED(symbol, ...)
#include "hook/hooked.def"

/* cuGetProcAddress: selects a symbol by name, version and flags as the real driver does. */
#include "softgpu/driver/internal.h"
#include "softgpu/abi/names.h"

#include <string.h>

/* The names are sorted by symbol. All symbols of a base share it as a prefix, but other bases may lie between them
 * (cuMemcpy, cuMemcpy2D, cuMemcpyAsync, cuMemcpy_ptds). A hash of bases would be faster, but a client makes about 500
 * lookups in its lifetime and a scan takes microseconds. */
struct choice {
    const struct sg_name *best;
    int base_exists;
    int per_thread_exists;
};

static struct choice choose(const char *base, int version, int want_per_thread)
{
    /* A driver has nothing newer than its own version, so a client that requests a newer version gets the newest
     * variant up to it. A call that is newer than the driver still gets an address, so that its use can be counted. */
    struct choice choice = {NULL, 0, 0};
    for (int i = 0; i < SG_NAME_COUNT; i++) {
        const struct sg_name *name = &sg_names[i];
        if (strcmp(name->base, base) != 0)
            continue;
        choice.base_exists = 1;
        if (name->per_thread)
            choice.per_thread_exists = 1;
        if (name->per_thread != want_per_thread || name->since == 0 || name->since > version)
            continue;
        int is_ahead = name->since > SG_DRIVER_VERSION;
        int best_is_ahead = choice.best && choice.best->since > SG_DRIVER_VERSION;
        if (!choice.best || is_ahead < best_is_ahead || (is_ahead == best_is_ahead && name->since > choice.best->since))
            choice.best = name;
    }
    return choice;
}

static CUresult find(const char *symbol, void **function, int version, cuuint64_t flags, int *status)
{
    if (!symbol || !function || version < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return CUDA_ERROR_INVALID_VALUE;
    *function = NULL;
    struct choice choice = {NULL, 0, 0};
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        choice = choose(symbol, version, 1);
    if (!choice.per_thread_exists) /* a call without a stream has only one variant */
        choice = choose(symbol, version, 0);
    if (choice.best) {
        *function = choice.best->address;
        *status = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    *status = choice.base_exists ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    int status;
    return find(symbol, function, version, flags, &status);
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
    int answer = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = find(symbol, function, version, flags, &answer);
    if (status && result != CUDA_ERROR_INVALID_VALUE)
        *status = answer;
    /* The result does not depend on whether a status is requested; the status only gives the reason. */
    return result;
}

API CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status)
{
    if (flags == CU_GET_PROC_ADDRESS_DEFAULT)
        flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    return cuGetProcAddress_v2(symbol, function, version, flags, status);
}

/* cuGetProcAddress by pointer identity: the driver selects the address, and the hook substitutes it if it is a hooked
 * function. */
#include "hook/entry/session.h"

static CUresult route(const char *symbol, void **address, CUdriverProcAddressQueryResult *status)
{
    int is_known;
    void *hook = ct_substitute(*address, &is_known);
    if (is_known || !symbol || !ct_is_hooked_base(symbol)) {
        *address = hook;
        return CUDA_SUCCESS;
    }
    /* A version of a hooked function that the hook does not know: calls through it are not observed. */
    ct_count_unknown_address(symbol);
    if (!ct_unknown_is_refused())
        return CUDA_SUCCESS;
    *address = NULL;
    if (status)
        *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}

CT_EXPORT CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags)
{
    CUresult result = CT_NEXT(cuGetProcAddress)(symbol, address, version, flags);
    return result == CUDA_SUCCESS && address && *address ? route(symbol, address, NULL) : result;
}

CT_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags,
                                       CUdriverProcAddressQueryResult *status)
{
    CUresult result = CT_NEXT(cuGetProcAddress_v2)(symbol, address, version, flags, status);
    return result == CUDA_SUCCESS && address && *address ? route(symbol, address, status) : result;
}

CT_EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **address, int version, cuuint64_t flags,
                                            CUdriverProcAddressQueryResult *status)
{
    CUresult result = CT_NEXT(cuGetProcAddress_v2_ptsz)(symbol, address, version, flags, status);
    return result == CUDA_SUCCESS && address && *address ? route(symbol, address, status) : result;
}

/* The driver's private tables are undocumented; the hook only counts that they are used. */
CT_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    CUresult result = CT_NEXT(cuGetExportTable)(table, id);
    if (result == CUDA_SUCCESS)
        ct_count_export_table();
    return result;
}

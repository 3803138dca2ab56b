/* cuGetProcAddress by pointer identity: the driver chooses the address, we only see whose it is. */
#include "hook/seen.h"

static CUresult route(const char *symbol, void **address, CUdriverProcAddressQueryResult *status)
{
    int is_known;
    void *hook = ct_substitute(*address, &is_known);
    if (is_known || !symbol || !ct_is_hooked_base(symbol)) {
        *address = hook;
        return CUDA_SUCCESS;
    }
    /* A version of the call that we do not know yet: what goes through it is not seen. */
    ct_seen_unknown(symbol);
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

/* Private tables of the driver: we know nothing of what is in them, and say that somebody uses them. */
CT_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    CUresult result = CT_NEXT(cuGetExportTable)(table, id);
    if (result == CUDA_SUCCESS)
        ct_seen_export_table();
    return result;
}

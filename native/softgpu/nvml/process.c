/* Who holds the device, and with how much memory. A process appears with its first context and vanishes with it. */
#include "softgpu/nvml/face.h"

enum { COMPUTE = 0, GRAPHICS = 1, MPS = 2 };

/* Of those observed, the ones that a list names, to the front. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned mode, struct sg_observation *seen)
{
    unsigned kept = 0;
    nvmlReturn_t result = nv_observe(device, SG_LATEST_PERIOD, seen);
    for (unsigned i = 0; result == NVML_SUCCESS && i < seen->client_count; i++) {
        const struct sg_observed *client = &seen->clients[i];
        if (client->contexts && mode != GRAPHICS && (mode == COMPUTE || client->is_group_member))
            seen->clients[kept++] = *client;
    }
    seen->client_count = kept;
    return result;
}

/* Takes the lock and lists; on success the lock is held, *count is what was found and everything fits. */
static nvmlReturn_t begin(nvmlDevice_t device, unsigned mode, unsigned *count, int has_places,
                          struct sg_observation *seen)
{
    ENTER(device);
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = has_places ? *count : 0;
    result = list(device, mode, seen);
    NEED(result == NVML_SUCCESS, result);
    *count = seen->client_count;
    NEED(room >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
    return NVML_SUCCESS;
}

static nvmlReturn_t tell(nvmlDevice_t device, unsigned mode, unsigned *count, nvmlProcessInfo_t *infos)
{
    struct sg_observation seen;
    nvmlReturn_t result = begin(device, mode, count, infos != NULL, &seen);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; i < seen.client_count; i++)
        infos[i] = (nvmlProcessInfo_t){(unsigned)seen.clients[i].pid, seen.clients[i].memory_bytes, NVML_NO_INSTANCE,
                                       NVML_NO_INSTANCE};
    return nv_leave(NVML_SUCCESS);
}

static nvmlReturn_t tell_v1(nvmlDevice_t device, unsigned mode, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    struct sg_observation seen;
    nvmlReturn_t result = begin(device, mode, count, infos != NULL, &seen);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; i < seen.client_count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){(unsigned)seen.clients[i].pid, seen.clients[i].memory_bytes};
    return nv_leave(NVML_SUCCESS);
}

#define LISTS(name, mode)                                                                                              \
    API nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);                        \
    API nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)                         \
    {                                                                                                                  \
        return tell(device, mode, count, infos);                                                                       \
    }                                                                                                                  \
    API nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) ALIAS(name##_v3);       \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos);                          \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)                           \
    {                                                                                                                  \
        return tell_v1(device, mode, count, infos);                                                                    \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *asked);
API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *asked)
{
    struct sg_observation seen;
    ENTER(device);
    NEED(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEED(asked->version == NVML_VERSION(nvmlProcessDetailList_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEED(asked->mode <= MPS, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = asked->procArray ? asked->numProcArrayEntries : 0;
    result = list(device, asked->mode, &seen);
    NEED(result == NVML_SUCCESS, result);
    asked->numProcArrayEntries = seen.client_count;
    NEED(room >= seen.client_count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < seen.client_count; i++)
        asked->procArray[i] =
            (nvmlProcessDetail_v1_t){(unsigned)seen.clients[i].pid, seen.clients[i].memory_bytes, NVML_NO_INSTANCE,
                                     NVML_NO_INSTANCE, 0};
    return nv_leave(NVML_SUCCESS);
}

/* Processes on the device and their memory. A process is listed while it has a context. */
#include "softgpu/nvml/internal.h"

enum { COMPUTE = 0, GRAPHICS = 1, MPS = 2 };

/* Move the observed processes of the requested list to the front. */
static nvmlReturn_t observe_processes(nvmlDevice_t device, unsigned mode, struct sg_observation *observation)
{
    unsigned kept = 0;
    nvmlReturn_t result = nv_observe(device, SG_LATEST_PERIOD, observation);
    for (unsigned i = 0; result == NVML_SUCCESS && i < observation->client_count; i++) {
        const struct sg_process_usage *client = &observation->clients[i];
        if (client->contexts && mode != GRAPHICS && (mode == COMPUTE || client->is_group_member))
            observation->clients[kept++] = *client;
    }
    observation->client_count = kept;
    return result;
}

/* Take the lock and list the processes. On success the lock is held, *count is the number found, and all of them
 * fit. */
static nvmlReturn_t begin_list(nvmlDevice_t device, unsigned mode, unsigned *count, int has_buffer,
                               struct sg_observation *observation)
{
    ENTER(device);
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned capacity = has_buffer ? *count : 0;
    result = observe_processes(device, mode, observation);
    NEED(result == NVML_SUCCESS, result);
    *count = observation->client_count;
    NEED(capacity >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
    return NVML_SUCCESS;
}

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned mode, unsigned *count, nvmlProcessInfo_t *infos)
{
    struct sg_observation observation;
    nvmlReturn_t result = begin_list(device, mode, count, infos != NULL, &observation);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; i < observation.client_count; i++)
        infos[i] = (nvmlProcessInfo_t){(unsigned)observation.clients[i].pid, observation.clients[i].memory_bytes,
                                       NVML_NO_INSTANCE, NVML_NO_INSTANCE};
    return nv_leave(NVML_SUCCESS);
}

static nvmlReturn_t list_processes_v1(nvmlDevice_t device, unsigned mode, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    struct sg_observation observation;
    nvmlReturn_t result = begin_list(device, mode, count, infos != NULL, &observation);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; i < observation.client_count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){(unsigned)observation.clients[i].pid, observation.clients[i].memory_bytes};
    return nv_leave(NVML_SUCCESS);
}

#define LISTS(name, mode)                                                                                              \
    API nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);                        \
    API nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)                         \
    {                                                                                                                  \
        return list_processes(device, mode, count, infos);                                                             \
    }                                                                                                                  \
    API nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) ALIAS(name##_v3);       \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos);                          \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)                           \
    {                                                                                                                  \
        return list_processes_v1(device, mode, count, infos);                                                          \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *asked);
API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *asked)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEED(asked->version == NVML_VERSION(nvmlProcessDetailList_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEED(asked->mode <= MPS, NVML_ERROR_INVALID_ARGUMENT);
    unsigned capacity = asked->procArray ? asked->numProcArrayEntries : 0;
    result = observe_processes(device, asked->mode, &observation);
    NEED(result == NVML_SUCCESS, result);
    asked->numProcArrayEntries = observation.client_count;
    NEED(capacity >= observation.client_count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < observation.client_count; i++)
        asked->procArray[i] =
            (nvmlProcessDetail_v1_t){(unsigned)observation.clients[i].pid, observation.clients[i].memory_bytes,
                                     NVML_NO_INSTANCE, NVML_NO_INSTANCE, 0};
    return nv_leave(NVML_SUCCESS);
}

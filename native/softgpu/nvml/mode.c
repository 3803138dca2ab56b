/* Modes of a device: compute mode, persistence, display, virtualization, MIG and accounting. Most cannot be changed. */
#include "softgpu/nvml/internal.h"

#define OFF 0
#define ON 1
enum { MIG_DEVICES = 7 };

static int has_mig(nvmlDevice_t device)
{
    return device->board->architecture >= CT_AMPERE;
}

ANSWER(nvmlDeviceGetPersistenceMode, int, ON) /* the server runs whether or not the device is used */
ANSWER(nvmlDeviceGetDisplayMode, int, OFF)
ANSWER(nvmlDeviceGetDisplayActive, int, OFF)
ANSWER(nvmlDeviceGetVirtualizationMode, unsigned, 0) /* none: bare metal */
ANSWER(nvmlDeviceGetNumFans, unsigned, 0)            /* passive cooling; fan speeds are not supported */
ANSWER(nvmlDeviceGetAccountingMode, int, OFF)
ANSWER(nvmlDeviceGetAccountingBufferSize, unsigned, 4000)
ANSWER(nvmlDeviceIsMigDeviceHandle, unsigned, 0)
ANSWER(nvmlDeviceGetMaxMigDeviceCount, unsigned, has_mig(device) ? MIG_DEVICES : 0)

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode);
API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(mode, NVML_ERROR_INVALID_ARGUMENT);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS)
        *mode = observation.compute_mode;
    return nv_leave(result);
}

/* A real driver requires root. Here every process that can open the server's socket may set the mode. */
API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode);
API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    enum { EXCLUSIVE_THREAD = 1 };
    struct sg_request request = {.kind = SG_COMPUTE_MODE, .a = 1, .b = mode};
    struct sg_reply reply;
    ENTER(device);
    NEED(mode != EXCLUSIVE_THREAD, NVML_ERROR_NOT_SUPPORTED);
    NEED(mode <= SG_MODE_EXCLUSIVE_PROCESS, NVML_ERROR_INVALID_ARGUMENT);
    result = nv_request(device, &request, &reply);
    if (result == NVML_SUCCESS && reply.result != CT_DEVICE_OK)
        result = NVML_ERROR_INVALID_ARGUMENT;
    return nv_leave(result);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending);
API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending)
{
    ENTER(device);
    NEED(now && pending, NVML_ERROR_INVALID_ARGUMENT);
    NEED(has_mig(device), NVML_ERROR_NOT_SUPPORTED);
    *now = *pending = OFF;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *part);
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *part)
{
    ENTER(device);
    NEED(has_mig(device), NVML_ERROR_NOT_SUPPORTED);
    NEED(part && index < MIG_DEVICES, NVML_ERROR_INVALID_ARGUMENT);
    return nv_leave(NVML_ERROR_NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *fps, unsigned *latency);
API nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *fps, unsigned *latency)
{
    ENTER(device);
    NEED(sessions && fps && latency, NVML_ERROR_INVALID_ARGUMENT);
    *sessions = *fps = *latency = 0;
    return nv_leave(NVML_SUCCESS);
}

/* Clocks: current and supported values, and the reasons for reduced clocks. */
#include "softgpu/nvml/internal.h"

/* Supported clocks are steps of 15 MHz between the idle clock and the maximum. This is a choice of this
 * implementation. */
enum { STEP_MHZ = 15 };

static unsigned max_mhz(nvmlDevice_t device, int type)
{
    return (type == NVML_CLOCK_MEM ? device->config.memory_clock_khz : device->config.clock_khz) / 1000;
}

/* Clocks are raised while a process holds the device. The SM clock follows an injected slowdown. */
unsigned nv_clock_mhz(nvmlDevice_t device, int type, const struct sg_sample *at)
{
    const struct ct_board *board = device->board;
    if (type == NVML_CLOCK_MEM)
        return at->contexts ? max_mhz(device, type) : board->idle_memory_mhz;
    if (!at->contexts)
        return board->idle_sm_mhz;
    return (unsigned)((uint64_t)max_mhz(device, type) * at->clock_ppm / SG_CLOCK_FULL_PPM);
}

static nvmlReturn_t current(nvmlDevice_t device, int type, unsigned *mhz)
{
    struct sg_observation observation;
    nvmlReturn_t result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS)
        *mhz = nv_clock_mhz(device, type, &observation.now);
    return result;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    ENTER(device);
    NEED(mhz && type < NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    return nv_leave(current(device, (int)type, mhz));
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    ENTER(device);
    NEED(mhz && type < NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    *mhz = max_mhz(device, (int)type);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
    ALIAS(nvmlDeviceGetMaxClockInfo);

/* Application clocks cannot be changed, so the default ones are in effect. */
static nvmlReturn_t factory(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    ENTER(device);
    NEED(mhz && type < NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    NEED(type != NVML_CLOCK_VIDEO, NVML_ERROR_NOT_SUPPORTED);
    *mhz = type == NVML_CLOCK_MEM ? max_mhz(device, (int)type) : device->board->base_sm_mhz;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz);
API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    return factory(device, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz);
API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    return factory(device, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned which, unsigned *mhz);
API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned which, unsigned *mhz)
{
    switch (which) {
    case NVML_CLOCK_ID_CURRENT:
        return nvmlDeviceGetClockInfo(device, type, mhz);
    case NVML_CLOCK_ID_APP_TARGET:
    case NVML_CLOCK_ID_APP_DEFAULT:
        return factory(device, type, mhz);
    case NVML_CLOCK_ID_BOOST_MAX:
        return nvmlDeviceGetMaxClockInfo(device, type, mhz);
    default: {
        ENTER(device);
        return nv_leave(NVML_ERROR_INVALID_ARGUMENT);
    }
    }
}

/* In descending order. The memory of some boards has a second, idle clock. */
API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *mhz);
API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *mhz)
{
    ENTER(device);
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned capacity = mhz ? *count : 0, highest = max_mhz(device, NVML_CLOCK_MEM);
    *count = 1 + (device->board->idle_memory_mhz != highest);
    NEED(capacity >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
    mhz[0] = highest;
    if (*count == 2)
        mhz[1] = device->board->idle_memory_mhz;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory_mhz, unsigned *count,
                                                      unsigned *mhz);
API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory_mhz, unsigned *count,
                                                      unsigned *mhz)
{
    ENTER(device);
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    NEED(memory_mhz == max_mhz(device, NVML_CLOCK_MEM) || memory_mhz == device->board->idle_memory_mhz,
         NVML_ERROR_NOT_FOUND);
    unsigned capacity = mhz ? *count : 0, highest = max_mhz(device, NVML_CLOCK_SM), lowest = device->board->idle_sm_mhz;
    *count = (highest - lowest) / STEP_MHZ + 1;
    NEED(capacity >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++)
        mhz[i] = highest - i * STEP_MHZ;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, nvmlWord *reasons);
API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, nvmlWord *reasons)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(reasons, NVML_ERROR_INVALID_ARGUMENT);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS)
        *reasons = !observation.now.contexts                             ? NVML_REASON_IDLE
                   : observation.now.clock_ppm < SG_CLOCK_FULL_PPM ? NVML_REASON_HW_SLOWDOWN
                                                                  : 0;
    return nv_leave(result);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, nvmlWord *reasons)
    ALIAS(nvmlDeviceGetCurrentClocksEventReasons);
ANSWER(nvmlDeviceGetSupportedClocksEventReasons, nvmlWord, NVML_REASONS)
ANSWER(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlWord, NVML_REASONS)

API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state);
API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(state, NVML_ERROR_INVALID_ARGUMENT);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS)
        *state = observation.now.contexts ? 0 : device->board->idle_pstate;
    return nv_leave(result);
}

API nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state) ALIAS(nvmlDeviceGetPerformanceState);

/* The size is in bytes; unused entries are set to NVML_PSTATE_UNKNOWN. */
API nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, unsigned *states, unsigned bytes);
API nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, unsigned *states, unsigned bytes)
{
    ENTER(device);
    unsigned capacity = bytes / sizeof *states, needed = 1 + (device->board->idle_pstate != 0);
    NEED(states, NVML_ERROR_INVALID_ARGUMENT);
    NEED(capacity >= needed, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < capacity; i++)
        states[i] = i == 0 ? 0 : i < needed ? device->board->idle_pstate : NVML_PSTATE_UNKNOWN;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *time);
API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *time)
{
    enum { POLICIES = 12 };
    struct sg_observation observation;
    ENTER(device);
    NEED(time && policy < POLICIES, NVML_ERROR_INVALID_ARGUMENT);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS) /* no policy limits a software GPU */
        *time = (nvmlViolationTime_t){nv_stamp_us(device, observation.now.at_ns), 0};
    return nv_leave(result);
}

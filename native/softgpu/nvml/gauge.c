/* Memory, utilization, power, energy and temperature, computed from the server's counters. */
#include "softgpu/nvml/internal.h"

#include <math.h>

enum { SENSOR_GPU = 0, THRESHOLDS = 8 };

nvmlWord nv_stamp_us(nvmlDevice_t device, uint64_t at_ns)
{
    return (at_ns + device->epoch_ns) / 1000;
}

uint64_t nv_instant_ns(nvmlDevice_t device, nvmlWord stamp_us)
{
    if (stamp_us >= (UINT64_MAX - 1) / 1000 - 1)
        return UINT64_MAX - 1;
    uint64_t wall_ns = stamp_us * 1000 + 999;
    return wall_ns > device->epoch_ns ? wall_ns - device->epoch_ns : 0;
}

unsigned nv_percent(double part, double whole)
{
    double percent = whole > 0 ? 100 * part / whole : 0;
    return percent >= 100 ? 100 : (unsigned)lround(percent);
}

unsigned nv_busy_percent(const struct sg_sample *before, const struct sg_sample *after)
{
    return nv_percent((double)(after->busy_ns - before->busy_ns), (double)(after->at_ns - before->at_ns));
}

unsigned nv_memory_percent(const struct ct_device_config *config, const struct sg_sample *before,
                           const struct sg_sample *after)
{
    double seconds = (double)(after->at_ns - before->at_ns) / 1e9;
    return nv_percent((double)(after->traffic_bytes - before->traffic_bytes),
                      seconds * (double)config->memory_bytes_per_s);
}

unsigned nv_power_mw(nvmlDevice_t device, const struct sg_sample *before, const struct sg_sample *after)
{
    uint64_t passed_ns = after->at_ns - before->at_ns;
    if (!passed_ns)
        return device->board->idle_mw;
    double power_mw = (double)(after->energy_uj - before->energy_uj) * 1e6 / (double)passed_ns;
    return power_mw < device->board->limit_mw ? (unsigned)lround(power_mw) : device->board->limit_mw;
}

/* Read the current counters. *since and *last are the start and end of the last whole sample period. */
static nvmlReturn_t observe(nvmlDevice_t device, struct sg_observation *observation, const struct sg_sample **since,
                            const struct sg_sample **last)
{
    *since = &observation->samples[0];
    nvmlReturn_t result = nv_observe(device, SG_LATEST_PERIOD, observation);
    if (result == NVML_SUCCESS)
        *last = observation->sample_count ? &observation->samples[1] : &observation->now;
    return result;
}

#define OBSERVE(device)                                                                                                \
    struct sg_observation observation;                                                                                 \
    const struct sg_sample *since, *last;                                                                              \
    result = observe(device, &observation, &since, &last);                                                             \
    if (result != NVML_SUCCESS)                                                                                        \
    return nv_leave(result)

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER(device);
    NEED(memory, NVML_ERROR_INVALID_ARGUMENT);
    OBSERVE(device);
    *memory = (nvmlMemory_t){observation.memory_bytes, observation.memory_free_bytes,
                             observation.memory_bytes - observation.memory_free_bytes};
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER(device);
    NEED(memory, NVML_ERROR_INVALID_ARGUMENT);
    NEED(memory->version == NVML_VERSION(nvmlMemory_v2_t, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    OBSERVE(device);
    *memory = (nvmlMemory_v2_t){memory->version, observation.memory_bytes, 0, observation.memory_free_bytes,
                                observation.memory_bytes - observation.memory_free_bytes};
    return nv_leave(NVML_SUCCESS);
}

/* Nothing is mapped through BAR1. */
API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory);
API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER(device);
    NEED(memory, NVML_ERROR_INVALID_ARGUMENT);
    *memory = (nvmlBAR1Memory_t){device->board->bar1_bytes, device->board->bar1_bytes, 0};
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization);
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER(device);
    NEED(utilization, NVML_ERROR_INVALID_ARGUMENT);
    OBSERVE(device);
    utilization->gpu = nv_busy_percent(since, last);
    utilization->memory = nv_memory_percent(&device->config, since, last);
    return nv_leave(NVML_SUCCESS);
}

/* Engines that the model lacks are always idle. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, int is_present, unsigned *utilization, unsigned *period_us)
{
    ENTER(device);
    NEED(utilization && period_us, NVML_ERROR_INVALID_ARGUMENT);
    NEED(is_present || device->board->architecture >= CT_AMPERE, NVML_ERROR_NOT_SUPPORTED);
    *utilization = 0;
    *period_us = (unsigned)(SG_SAMPLE_NS / 1000);
    return nv_leave(NVML_SUCCESS);
}

#define IDLE_ENGINE(name, is_present)                                                                                  \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *utilization, unsigned *period_us);                            \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *utilization, unsigned *period_us)                             \
    {                                                                                                                  \
        return idle_engine(device, is_present, utilization, period_us);                                                \
    }
IDLE_ENGINE(nvmlDeviceGetEncoderUtilization, 1)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization, 1)
IDLE_ENGINE(nvmlDeviceGetJpgUtilization, 0)
IDLE_ENGINE(nvmlDeviceGetOfaUtilization, 0)

/* In KB per second over the last whole sample period. */
API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *value);
API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *value)
{
    ENTER(device);
    NEED(value && counter <= NVML_PCIE_RX, NVML_ERROR_INVALID_ARGUMENT);
    OBSERVE(device);
    uint64_t sent = last->to_host_bytes - since->to_host_bytes;
    uint64_t bytes = counter == NVML_PCIE_TX ? sent : last->host_bytes - since->host_bytes - sent;
    uint64_t passed_ns = last->at_ns - since->at_ns;
    *value = passed_ns ? (unsigned)((double)bytes * 1e6 / (double)passed_ns) : 0;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *power);
API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *power)
{
    ENTER(device);
    NEED(power, NVML_ERROR_INVALID_ARGUMENT);
    OBSERVE(device);
    *power = nv_power_mw(device, since, last);
    return nv_leave(NVML_SUCCESS);
}

/* In millijoules. */
API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, nvmlWord *energy);
API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, nvmlWord *energy)
{
    ENTER(device);
    NEED(energy, NVML_ERROR_INVALID_ARGUMENT);
    OBSERVE(device);
    *energy = observation.now.energy_uj / 1000;
    return nv_leave(NVML_SUCCESS);
}

ANSWER(nvmlDeviceGetPowerManagementMode, int, 1)
ANSWER(nvmlDeviceGetPowerManagementLimit, unsigned, device->board->limit_mw)
ANSWER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, device->board->limit_mw)
ANSWER(nvmlDeviceGetEnforcedPowerLimit, unsigned, device->board->limit_mw)

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *min_mw, unsigned *max_mw);
API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *min_mw, unsigned *max_mw)
{
    ENTER(device);
    NEED(min_mw && max_mw, NVML_ERROR_INVALID_ARGUMENT);
    *min_mw = device->board->least_limit_mw;
    *max_mw = device->board->limit_mw;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *degrees);
API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *degrees)
{
    ENTER(device);
    NEED(degrees && sensor == SENSOR_GPU, NVML_ERROR_INVALID_ARGUMENT);
    OBSERVE(device);
    *degrees = observation.now.temperature_mc / 1000;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *asked);
API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *asked)
{
    ENTER(device);
    NEED(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEED(asked->version == NVML_VERSION(nvmlTemperature_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEED(asked->sensorType == SENSOR_GPU, NVML_ERROR_INVALID_ARGUMENT);
    OBSERVE(device);
    asked->temperature = (int)(observation.now.temperature_mc / 1000);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *asked);
API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *asked)
{
    ENTER(device);
    NEED(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEED(asked->version == NVML_VERSION(nvmlMarginTemperature_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEED(device->board->architecture >= CT_AMPERE, NVML_ERROR_NOT_SUPPORTED);
    OBSERVE(device);
    asked->marginTemperature = (int)device->board->slowdown_c - (int)(observation.now.temperature_mc / 1000);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned type, unsigned *degrees);
API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned type, unsigned *degrees)
{
    ENTER(device);
    const struct ct_board *board = device->board;
    NEED(degrees && type < THRESHOLDS, NVML_ERROR_INVALID_ARGUMENT);
    const unsigned thresholds[THRESHOLDS] = {[NVML_THRESHOLD_SHUTDOWN] = board->shutdown_c,
                                             [NVML_THRESHOLD_SLOWDOWN] = board->slowdown_c,
                                             [NVML_THRESHOLD_MEM_MAX] = board->memory_max_c,
                                             [NVML_THRESHOLD_GPU_MAX] = board->gpu_max_c};
    NEED(thresholds[type], NVML_ERROR_NOT_SUPPORTED);
    *degrees = thresholds[type];
    return nv_leave(NVML_SUCCESS);
}

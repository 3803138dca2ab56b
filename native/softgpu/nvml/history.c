/* Samples of the device and of its processes since an instant. */
#include "softgpu/nvml/internal.h"

static int value_of(nvmlDevice_t device, unsigned type, const struct sg_sample *before, const struct sg_sample *after,
                    unsigned *value)
{
    switch (type) {
    case NVML_SAMPLE_POWER:
        *value = nv_power_mw(device, before, after);
        return 1;
    case NVML_SAMPLE_GPU:
        *value = nv_busy_percent(before, after);
        return 1;
    case NVML_SAMPLE_MEMORY:
        *value = nv_memory_percent(&device->config, before, after);
        return 1;
    case NVML_SAMPLE_ENC:
    case NVML_SAMPLE_DEC:
        *value = 0;
        return 1;
    case NVML_SAMPLE_SM_CLOCK:
        *value = nv_clock_mhz(device, NVML_CLOCK_SM, after);
        return 1;
    case NVML_SAMPLE_MEMORY_CLOCK:
        *value = nv_clock_mhz(device, NVML_CLOCK_MEM, after);
        return 1;
    default:
        return 0;
    }
}

/* Without a buffer only the number of samples is returned. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, nvmlWord last_seen_us, unsigned *value_type,
                                      unsigned *count, nvmlSample_t *samples);
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, nvmlWord last_seen_us, unsigned *value_type,
                                      unsigned *count, nvmlSample_t *samples)
{
    struct sg_observation observation;
    struct sg_sample none = {0};
    unsigned value;
    ENTER(device);
    NEED(count && value_type && type <= NVML_SAMPLE_OFA, NVML_ERROR_INVALID_ARGUMENT);
    NEED(value_of(device, type, &none, &none, &value), NVML_ERROR_NOT_SUPPORTED);
    NEED(!samples || *count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned capacity = *count;
    result = nv_observe(device, nv_instant_ns(device, last_seen_us), &observation);
    NEED(result == NVML_SUCCESS, result);
    NEED(observation.sample_count, NVML_ERROR_NOT_FOUND);
    *count = observation.sample_count;
    *value_type = NVML_VALUE_UINT;
    NEED(samples, NVML_SUCCESS);
    /* If the buffer is too small, return the newest samples. */
    if (*count > capacity)
        *count = capacity;
    for (unsigned i = 0, first = observation.sample_count - *count; i < *count; i++) {
        value_of(device, type, &observation.samples[first + i], &observation.samples[first + i + 1], &value);
        samples[i].timeStamp = nv_stamp_us(device, observation.samples[first + i + 1].at_ns);
        samples[i].sampleValue.ullVal = value;
    }
    return nv_leave(NVML_SUCCESS);
}

/* Move the processes that used the device since the instant to the front. The lock is held. */
static nvmlReturn_t users_since(nvmlDevice_t device, nvmlWord last_seen_us, struct sg_observation *observation)
{
    unsigned kept = 0;
    nvmlReturn_t result = nv_observe(device, nv_instant_ns(device, last_seen_us), observation);
    for (unsigned i = 0; result == NVML_SUCCESS && i < observation->client_count; i++)
        if (observation->clients[i].busy_ns || observation->clients[i].traffic_bytes)
            observation->clients[kept++] = observation->clients[i];
    observation->client_count = kept;
    return result == NVML_SUCCESS && !kept ? NVML_ERROR_NOT_FOUND : result;
}

static nvmlProcessUtilizationInfo_v1_t utilization_of(nvmlDevice_t device, const struct sg_observation *observation,
                                                      unsigned number)
{
    const struct sg_process_usage *client = &observation->clients[number];
    double seconds = (double)client->window_ns / 1e9;
    return (nvmlProcessUtilizationInfo_v1_t){
        .timeStamp = nv_stamp_us(device, observation->samples[observation->sample_count].at_ns),
        .pid = (unsigned)client->pid,
        .smUtil = nv_percent((double)client->busy_ns, (double)client->window_ns),
        .memUtil = nv_percent((double)client->traffic_bytes, seconds * (double)device->config.memory_bytes_per_s),
    };
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                 unsigned *count, nvmlWord last_seen_us);
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                 unsigned *count, nvmlWord last_seen_us)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned capacity = samples ? *count : 0;
    result = users_since(device, last_seen_us, &observation);
    NEED(result == NVML_SUCCESS, result);
    *count = observation.client_count;
    NEED(capacity >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++) {
        nvmlProcessUtilizationInfo_v1_t share = utilization_of(device, &observation, i);
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = share.pid, .timeStamp = share.timeStamp, .smUtil = share.smUtil, .memUtil = share.memUtil};
    }
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *asked);
API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *asked)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEED(asked->version == NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned capacity = asked->procUtilArray ? asked->processSamplesCount : 0;
    result = users_since(device, asked->lastSeenTimeStamp, &observation);
    NEED(result == NVML_SUCCESS, result);
    asked->processSamplesCount = observation.client_count;
    NEED(capacity >= observation.client_count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < observation.client_count; i++)
        asked->procUtilArray[i] = utilization_of(device, &observation, i);
    return nv_leave(NVML_SUCCESS);
}

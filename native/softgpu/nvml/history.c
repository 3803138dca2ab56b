/* What happened since the caller last looked: samples of the device, and the part of each process in them. */
#include "softgpu/nvml/face.h"

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

/* Without places for them it only tells how many there are. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, nvmlWord last_seen_us, unsigned *value_type,
                                      unsigned *count, nvmlSample_t *samples);
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, nvmlWord last_seen_us, unsigned *value_type,
                                      unsigned *count, nvmlSample_t *samples)
{
    struct sg_observation seen;
    struct sg_sample none = {0};
    unsigned value;
    ENTER(device);
    NEED(count && value_type && type <= NVML_SAMPLE_OFA, NVML_ERROR_INVALID_ARGUMENT);
    NEED(value_of(device, type, &none, &none, &value), NVML_ERROR_NOT_SUPPORTED);
    NEED(!samples || *count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = *count;
    result = nv_observe(device, nv_instant_ns(device, last_seen_us), &seen);
    NEED(result == NVML_SUCCESS, result);
    NEED(seen.sample_count, NVML_ERROR_NOT_FOUND);
    *count = seen.sample_count;
    *value_type = NVML_VALUE_UINT;
    NEED(samples, NVML_SUCCESS);
    /* When there is not room for all, the newest are worth most. */
    if (*count > room)
        *count = room;
    for (unsigned i = 0, first = seen.sample_count - *count; i < *count; i++) {
        value_of(device, type, &seen.samples[first + i], &seen.samples[first + i + 1], &value);
        samples[i].timeStamp = nv_stamp_us(device, seen.samples[first + i + 1].at_ns);
        samples[i].sampleValue.ullVal = value;
    }
    return nv_leave(NVML_SUCCESS);
}

/* The processes that used the device after an instant, to the front. The lock is held. */
static nvmlReturn_t users_since(nvmlDevice_t device, nvmlWord last_seen_us, struct sg_observation *seen)
{
    unsigned kept = 0;
    nvmlReturn_t result = nv_observe(device, nv_instant_ns(device, last_seen_us), seen);
    for (unsigned i = 0; result == NVML_SUCCESS && i < seen->client_count; i++)
        if (seen->clients[i].busy_ns || seen->clients[i].traffic_bytes)
            seen->clients[kept++] = seen->clients[i];
    seen->client_count = kept;
    return result == NVML_SUCCESS && !kept ? NVML_ERROR_NOT_FOUND : result;
}

static nvmlProcessUtilizationInfo_v1_t share_of(nvmlDevice_t device, const struct sg_observation *seen, unsigned number)
{
    const struct sg_observed *client = &seen->clients[number];
    double seconds = (double)client->window_ns / 1e9;
    return (nvmlProcessUtilizationInfo_v1_t){
        .timeStamp = nv_stamp_us(device, seen->samples[seen->sample_count].at_ns),
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
    struct sg_observation seen;
    ENTER(device);
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = samples ? *count : 0;
    result = users_since(device, last_seen_us, &seen);
    NEED(result == NVML_SUCCESS, result);
    *count = seen.client_count;
    NEED(room >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++) {
        nvmlProcessUtilizationInfo_v1_t share = share_of(device, &seen, i);
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = share.pid, .timeStamp = share.timeStamp, .smUtil = share.smUtil, .memUtil = share.memUtil};
    }
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *asked);
API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *asked)
{
    struct sg_observation seen;
    ENTER(device);
    NEED(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEED(asked->version == NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned room = asked->procUtilArray ? asked->processSamplesCount : 0;
    result = users_since(device, asked->lastSeenTimeStamp, &seen);
    NEED(result == NVML_SUCCESS, result);
    asked->processSamplesCount = seen.client_count;
    NEED(room >= seen.client_count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < seen.client_count; i++)
        asked->procUtilArray[i] = share_of(device, &seen, i);
    return nv_leave(NVML_SUCCESS);
}

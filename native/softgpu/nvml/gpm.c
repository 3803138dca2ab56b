/* GPU performance monitoring, supported from Hopper on: activity between two samples of the caller. */
#include "softgpu/nvml/internal.h"

#include <stdlib.h>

enum { GPM_VERSION = 1, GPM_METRICS_MAX = 1024 };
enum { GRAPHICS_UTIL = 1, SM_UTIL = 2, SM_OCCUPANCY = 3, DRAM_BW_UTIL = 10, PCIE_TX = 20, PCIE_RX = 21 };

struct nvmlGpmSample_st {
    nvmlDevice_t device; /* NULL: no sample was read */
    struct sg_sample counters;
};

static int is_supported(nvmlDevice_t device)
{
    return device->board->architecture >= CT_HOPPER;
}

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support);
API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER(device);
    NEED(support, NVML_ERROR_INVALID_ARGUMENT);
    NEED(support->version == GPM_VERSION, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    support->isSupportedDevice = (unsigned)is_supported(device);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample);
API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(sample, NVML_ERROR_INVALID_ARGUMENT);
    *sample = calloc(1, sizeof **sample);
    return nv_leave(*sample ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample);
API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(sample, NVML_ERROR_INVALID_ARGUMENT);
    free(sample);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample);
API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(sample, NVML_ERROR_INVALID_ARGUMENT);
    NEED(is_supported(device), NVML_ERROR_NOT_SUPPORTED);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS)
        *sample = (struct nvmlGpmSample_st){device, observation.now};
    return nv_leave(result);
}

static double percent(double part, double whole)
{
    double value = whole > 0 ? 100 * part / whole : 0;
    return value < 100 ? value : 100;
}

static void compute_metric(const struct ct_device_config *config, const struct sg_sample *a, const struct sg_sample *b,
                           nvmlGpmMetric_t *metric)
{
    double passed_ns = (double)(b->at_ns - a->at_ns), sm_ns = (double)(b->sm_ns - a->sm_ns);
    uint64_t sent = b->to_host_bytes - a->to_host_bytes;
    const double mib_per_s = 1e9 / passed_ns / (1 << 20);
    metric->nvmlReturn = NVML_SUCCESS;
    switch (metric->metricId) {
    case GRAPHICS_UTIL:
        metric->value = percent((double)(b->busy_ns - a->busy_ns), passed_ns);
        break;
    case SM_UTIL:
        metric->value = percent(sm_ns, passed_ns * config->sm_count);
        break;
    case SM_OCCUPANCY: /* resident threads relative to the capacity of all SMs */
        metric->value = percent((double)(b->thread_ns - a->thread_ns),
                                passed_ns * config->sm_count * config->threads_per_sm);
        break;
    case DRAM_BW_UTIL:
        metric->value = percent((double)(b->traffic_bytes - a->traffic_bytes),
                                passed_ns / 1e9 * (double)config->memory_bytes_per_s);
        break;
    case PCIE_TX:
        metric->value = (double)sent * mib_per_s;
        break;
    case PCIE_RX:
        metric->value = (double)(b->host_bytes - a->host_bytes - sent) * mib_per_s;
        break;
    default:
        metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
}

API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked);
API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(asked, NVML_ERROR_INVALID_ARGUMENT);
    NEED(asked->version == GPM_VERSION, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlGpmSample_t a = asked->sample1, b = asked->sample2;
    NEED(a && b && a->device && a->device == b->device && asked->numMetrics <= GPM_METRICS_MAX,
         NVML_ERROR_INVALID_ARGUMENT);
    NEED(a->counters.at_ns != b->counters.at_ns, NVML_ERROR_INVALID_ARGUMENT); /* the samples have the same instant */
    if (a->counters.at_ns > b->counters.at_ns) {
        a = asked->sample2;
        b = asked->sample1;
    }
    for (unsigned i = 0; i < asked->numMetrics; i++)
        compute_metric(&a->device->config, &a->counters, &b->counters, &asked->metrics[i]);
    return nv_leave(NVML_SUCCESS);
}

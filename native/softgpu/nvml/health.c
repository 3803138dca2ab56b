/* Health of device memory: ECC errors, retired pages and remapped rows. */
#include "softgpu/nvml/internal.h"

/* All modelled boards have ECC, and it is enabled. */
ANSWER(nvmlDeviceGetDefaultEccMode, int, 1)

enum { CORRECTED, UNCORRECTED, ERROR_TYPES };
enum { VOLATILE, AGGREGATE, COUNTER_TYPES };
enum { DEVICE_MEMORY = 2, LOCATIONS = 9, CAUSES = 2 };

/* Boards from Ampere on remap rows of memory; earlier ones retire pages. */
static int remaps(nvmlDevice_t device)
{
    return device->board->architecture >= CT_AMPERE;
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *now, int *pending);
API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *now, int *pending)
{
    ENTER(device);
    NEED(now && pending, NVML_ERROR_INVALID_ARGUMENT);
    *now = *pending = 1;
    return nv_leave(NVML_SUCCESS);
}

/* Count the errors of one type and counter. All errors of a software GPU are uncorrected memory errors. The lock is
 * held. */
static nvmlReturn_t errors(nvmlDevice_t device, unsigned type, unsigned counter, nvmlWord *count)
{
    struct sg_observation observation;
    nvmlReturn_t result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS)
        *count = type != UNCORRECTED   ? 0
                 : counter == VOLATILE ? observation.ecc_errors_since_reset
                                       : observation.ecc_errors;
    return result;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, nvmlWord *count);
API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, nvmlWord *count)
{
    ENTER(device);
    NEED(count && type < ERROR_TYPES && counter < COUNTER_TYPES, NVML_ERROR_INVALID_ARGUMENT);
    return nv_leave(errors(device, type, counter, count));
}

API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                                nvmlEccErrorCounts_t *counts);
API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                                nvmlEccErrorCounts_t *counts)
{
    ENTER(device);
    NEED(counts && type < ERROR_TYPES && counter < COUNTER_TYPES, NVML_ERROR_INVALID_ARGUMENT);
    *counts = (nvmlEccErrorCounts_t){0, 0, 0, 0};
    return nv_leave(errors(device, type, counter, &counts->deviceMemory));
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter,
                                                 unsigned location, nvmlWord *count);
API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter,
                                                 unsigned location, nvmlWord *count)
{
    ENTER(device);
    NEED(count && type < ERROR_TYPES && counter < COUNTER_TYPES && location < LOCATIONS, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return nv_leave(location == DEVICE_MEMORY ? errors(device, type, counter, count) : NVML_SUCCESS);
}

/* Pages have no address in the model, so none is listed. The pending status reports that one will be retired. */
static nvmlReturn_t no_pages(nvmlDevice_t device, unsigned cause, unsigned *count)
{
    ENTER(device);
    NEED(count && cause < CAUSES, NVML_ERROR_INVALID_ARGUMENT);
    NEED(!remaps(device), NVML_ERROR_NOT_SUPPORTED);
    *count = 0;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, nvmlWord *addresses);
API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, nvmlWord *addresses)
{
    (void)addresses;
    return no_pages(device, cause, count);
}

API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count, nvmlWord *addresses,
                                              nvmlWord *stamps);
API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count, nvmlWord *addresses,
                                              nvmlWord *stamps)
{
    (void)addresses, (void)stamps;
    return no_pages(device, cause, count);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, int *is_pending);
API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, int *is_pending)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(is_pending, NVML_ERROR_INVALID_ARGUMENT);
    NEED(!remaps(device), NVML_ERROR_NOT_SUPPORTED);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    if (result == NVML_SUCCESS)
        *is_pending = observation.rows_since_reset > 0;
    return nv_leave(result);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                           unsigned *pending, unsigned *failed);
API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                           unsigned *pending, unsigned *failed)
{
    ENTER(device);
    NEED(correctable && uncorrectable && pending && failed, NVML_ERROR_INVALID_ARGUMENT);
    NEED(remaps(device), NVML_ERROR_NOT_SUPPORTED);
    struct sg_observation observation;
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    NEED(result == NVML_SUCCESS, result);
    *correctable = *failed = 0;
    *uncorrectable = observation.rows;
    *pending = observation.rows_since_reset > 0;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values);
API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    ENTER(device);
    NEED(values, NVML_ERROR_INVALID_ARGUMENT);
    NEED(remaps(device), NVML_ERROR_NOT_SUPPORTED);
    /* Banks by remaining spare rows: an A100-40 has 640 banks per 40 GiB, 16 per GiB. */
    *values = (nvmlRowRemapperHistogramValues_t){.max = (unsigned)(device->config.memory_bytes >> 26)};
    return nv_leave(NVML_SUCCESS);
}

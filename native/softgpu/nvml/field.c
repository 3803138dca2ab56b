/* nvmlDeviceGetFieldValues: several values by field number, each with its own result. */
#include "softgpu/nvml/internal.h"

enum {
    ECC_CURRENT = 1,
    ECC_PENDING = 2,
    ECC_FIRST_COUNT = 3,
    ECC_UNCORRECTED = 4, /* since the reset */
    ECC_LAST_COUNT = 6,  /* uncorrected, in total */
    RETIRED_FIRST = 29,
    RETIRED_LAST = 31,
    TOTAL_ENERGY = 83,
    NVLINK_COUNT = 91,
    PCIE_REPLAYS = 94,
    PCIE_REPLAY_ROLLOVERS = 95,
    REMAPPED_FIRST = 142,
    REMAPPED_UNCORRECTABLE = 143,
    REMAPPED_PENDING = 144,
    REMAPPED_LAST = 145,
    POWER_AVERAGE = 185,
    POWER_INSTANT = 186,
    POWER_MIN_LIMIT = 187,
    POWER_MAX_LIMIT = 188,
    POWER_DEFAULT_LIMIT = 189,
    POWER_LIMIT = 190,
    POWER_REQUESTED_LIMIT = 192,
};

static int is_within(unsigned number, unsigned first, unsigned last)
{
    return number >= first && number <= last;
}

/* 0: the field is not supported. */
static int field(nvmlDevice_t device, const struct sg_observation *observation, nvmlFieldValue_t *asked)
{
    const struct ct_board *board = device->board;
    const struct sg_sample *last = observation->sample_count ? &observation->samples[1] : &observation->now;
    unsigned number = asked->fieldId;
    int remaps = board->architecture >= CT_AMPERE;
    asked->valueType = NVML_VALUE_UINT;
    asked->value.ullVal = 0;
    if (number == ECC_CURRENT || number == ECC_PENDING)
        asked->value.uiVal = 1;
    else if (is_within(number, ECC_FIRST_COUNT, ECC_LAST_COUNT)) {
        asked->valueType = NVML_VALUE_ULONGLONG;
        asked->value.ullVal = number == ECC_UNCORRECTED  ? observation->ecc_errors_since_reset
                              : number == ECC_LAST_COUNT ? observation->ecc_errors
                                                         : 0;
    }
    else if (is_within(number, RETIRED_FIRST, RETIRED_LAST))
        return !remaps;
    else if (is_within(number, REMAPPED_FIRST, REMAPPED_LAST)) {
        asked->value.uiVal = number == REMAPPED_UNCORRECTABLE ? observation->rows
                             : number == REMAPPED_PENDING     ? observation->rows_since_reset > 0
                                                              : 0;
        return remaps;
    }
    else if (number == TOTAL_ENERGY) {
        asked->valueType = NVML_VALUE_ULONGLONG;
        asked->value.ullVal = observation->now.energy_uj / 1000;
    } else if (number == POWER_AVERAGE || number == POWER_INSTANT)
        asked->value.uiVal = nv_power_mw(device, &observation->samples[0], last);
    else if (number == POWER_MIN_LIMIT)
        asked->value.uiVal = board->least_limit_mw;
    else if (is_within(number, POWER_MAX_LIMIT, POWER_LIMIT) || number == POWER_REQUESTED_LIMIT)
        asked->value.uiVal = board->limit_mw;
    else
        return number == NVLINK_COUNT || number == PCIE_REPLAYS || number == PCIE_REPLAY_ROLLOVERS;
    return 1;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);
API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    NEED(result == NVML_SUCCESS, result);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)nv_stamp_us(device, observation.now.at_ns);
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = field(device, &observation, &values[i]) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    return nv_leave(NVML_SUCCESS);
}

/* nvmlDeviceGetFieldValues: the same answers by number, many at once, each with a result of its own. */
#include "softgpu/nvml/face.h"

enum {
    ECC_CURRENT = 1,
    ECC_PENDING = 2,
    ECC_FIRST_COUNT = 3,
    ECC_UNCORRECTED = 4, /* since the reset */
    ECC_LAST_COUNT = 6,  /* uncorrected, ever */
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
    POWER_LEAST_LIMIT = 187,
    POWER_MOST_LIMIT = 188,
    POWER_DEFAULT_LIMIT = 189,
    POWER_LIMIT = 190,
    POWER_REQUESTED_LIMIT = 192,
};

static int is_within(unsigned number, unsigned first, unsigned last)
{
    return number >= first && number <= last;
}

/* 1: there is such a field. */
static int field(nvmlDevice_t device, const struct sg_observation *seen, nvmlFieldValue_t *asked)
{
    const struct ct_board *board = device->board;
    const struct sg_sample *last = seen->sample_count ? &seen->samples[1] : &seen->now;
    unsigned number = asked->fieldId;
    int remaps = board->architecture >= CT_AMPERE;
    asked->valueType = NVML_VALUE_UINT;
    asked->value.ullVal = 0;
    if (number == ECC_CURRENT || number == ECC_PENDING)
        asked->value.uiVal = 1;
    else if (is_within(number, ECC_FIRST_COUNT, ECC_LAST_COUNT)) {
        asked->valueType = NVML_VALUE_ULONGLONG;
        asked->value.ullVal = number == ECC_UNCORRECTED  ? seen->ecc_errors_since_reset
                              : number == ECC_LAST_COUNT ? seen->ecc_errors
                                                         : 0;
    }
    else if (is_within(number, RETIRED_FIRST, RETIRED_LAST))
        return !remaps;
    else if (is_within(number, REMAPPED_FIRST, REMAPPED_LAST)) {
        asked->value.uiVal = number == REMAPPED_UNCORRECTABLE ? seen->rows
                             : number == REMAPPED_PENDING     ? seen->rows_since_reset > 0
                                                              : 0;
        return remaps;
    }
    else if (number == TOTAL_ENERGY) {
        asked->valueType = NVML_VALUE_ULONGLONG;
        asked->value.ullVal = seen->now.energy_uj / 1000;
    } else if (number == POWER_AVERAGE || number == POWER_INSTANT)
        asked->value.uiVal = nv_power_mw(device, &seen->samples[0], last);
    else if (number == POWER_LEAST_LIMIT)
        asked->value.uiVal = board->least_limit_mw;
    else if (is_within(number, POWER_MOST_LIMIT, POWER_LIMIT) || number == POWER_REQUESTED_LIMIT)
        asked->value.uiVal = board->limit_mw;
    else
        return number == NVLINK_COUNT || number == PCIE_REPLAYS || number == PCIE_REPLAY_ROLLOVERS;
    return 1;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);
API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct sg_observation seen;
    ENTER(device);
    NEED(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    result = nv_observe(device, SG_LATEST_PERIOD, &seen);
    NEED(result == NVML_SUCCESS, result);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)nv_stamp_us(device, seen.now.at_ns);
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = field(device, &seen, &values[i]) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    return nv_leave(NVML_SUCCESS);
}

/* What a device server tells those who only look: the books at the last sample boundaries, and who is there. */
#ifndef COTENANT_SOFTGPU_OBSERVATION_H
#define COTENANT_SOFTGPU_OBSERVATION_H

#include "device/device.h"

#include <stdint.h>

/* Six samples a second and 20 s of them: what NVML keeps for a V100. */
#define SG_LATEST_PERIOD UINT64_MAX /* instead of an instant: since the boundary before the latest */
#define SG_SAMPLE_NS UINT64_C(166666667)
enum { SG_SAMPLES_KEPT = 120, SG_CLOCK_FULL_PPM = 1000000 };

/* The books at one instant; everything counts from the server's start. */
struct sg_sample {
    uint64_t at_ns;
    uint64_t busy_ns, sm_ns, thread_ns, traffic_bytes, host_bytes, to_host_bytes;
    uint64_t energy_uj;
    uint32_t temperature_mc; /* thousandths of a degree */
    uint32_t clock_ppm;      /* of the full clock */
    uint32_t contexts;       /* 0: nobody holds the device, and its clocks are down */
    uint32_t reserved;
};

/* A process on the device, and what it used between two sample boundaries: the first that the asker has not seen (or
 * the last one before the process came), and the latest. */
struct sg_observed {
    int32_t pid;
    uint32_t contexts, is_group_member, reserved;
    uint64_t memory_bytes;
    uint64_t window_ns, busy_ns, sm_ns, traffic_bytes;
};

struct sg_observation {
    int32_t result;
    uint32_t compute_mode; /* enum sg_compute_mode */
    uint32_t sample_count, client_count;
    uint32_t is_lost;
    uint32_t ecc_errors, ecc_errors_since_reset; /* uncorrectable ones of memory */
    uint32_t rows, rows_since_reset;             /* remapped, or pages retired; those since the reset only pending */
    uint32_t reserved;
    uint64_t xids;     /* sequence number of the latest; 0: none ever */
    uint64_t epoch_ns; /* the wall clock's reading at instant 0 */
    uint64_t start_ns; /* when the server started */
    uint64_t memory_bytes, memory_free_bytes;
    struct sg_sample now;
    /* samples[0] is the boundary before the first one asked for, so that every sample has a beginning. */
    struct sg_sample samples[SG_SAMPLES_KEPT + 1];
    struct sg_observed clients[CT_DEVICE_MAX_CLIENTS];
};

#endif

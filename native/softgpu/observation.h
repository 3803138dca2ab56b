/* The reply of a device server to SG_SAMPLES: the counters at the latest sample boundaries, and the processes on the
 * device. */
#ifndef COTENANT_SOFTGPU_OBSERVATION_H
#define COTENANT_SOFTGPU_OBSERVATION_H

#include "device/device.h"

#include <stdint.h>

/* NVML keeps six samples per second and 20 s of samples for a V100. */
#define SG_LATEST_PERIOD UINT64_MAX /* in place of an instant: since the boundary before the latest one */
#define SG_SAMPLE_NS UINT64_C(166666667)
enum { SG_SAMPLES_KEPT = 120, SG_CLOCK_FULL_PPM = 1000000 };

/* The device's counters at one instant; all of them count from the start of the server. */
struct sg_sample {
    uint64_t at_ns;
    uint64_t busy_ns, sm_ns, thread_ns, traffic_bytes, host_bytes, to_host_bytes;
    uint64_t energy_uj;
    uint32_t temperature_mc; /* thousandths of a degree Celsius */
    uint32_t clock_ppm;      /* parts per million of the full clock */
    uint32_t contexts;       /* 0: no process holds the device, and its clocks are at their idle values */
    uint32_t reserved;
};

/* A process on the device and its use of the device between two sample boundaries. The window starts at the first
 * boundary that the requester has not seen, or at the last boundary before the process connected, and ends at the
 * latest one. */
struct sg_process_usage {
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
    uint32_t ecc_errors, ecc_errors_since_reset; /* uncorrectable memory errors */
    uint32_t rows, rows_since_reset;             /* rows remapped or pages retired; those since the reset are pending */
    uint32_t reserved;
    uint64_t xids;     /* sequence number of the latest Xid; 0: there has been none */
    uint64_t epoch_ns; /* wall-clock time at instant 0 */
    uint64_t start_ns; /* instant at which the server started */
    uint64_t memory_bytes, memory_free_bytes;
    struct sg_sample now;
    /* samples[0] is the boundary before the first requested one, so that every sample has a start. */
    struct sg_sample samples[SG_SAMPLES_KEPT + 1];
    struct sg_process_usage clients[CT_DEVICE_MAX_CLIENTS];
};

#endif

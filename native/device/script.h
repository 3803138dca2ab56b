/* Runs whole launch scripts in one call: several clients, each with a sequence of launches and waits. */
#ifndef COTENANT_DEVICE_SCRIPT_H
#define COTENANT_DEVICE_SCRIPT_H

#include "device/device.h"

#define CT_SCRIPT_NO_KERNEL UINT32_MAX

enum { CT_SCRIPT_SYNC = 1 }; /* after this step the host waits until all launches of this client are complete */

struct ct_script_step {
    uint64_t host_ns; /* host time from the end of the previous step to this launch */
    uint32_t kernel;  /* index into the kernels, or CT_SCRIPT_NO_KERNEL */
    uint16_t stream;  /* index into the client's streams */
    uint16_t flags;
};

struct ct_script_stream {
    int32_t kind; /* enum ct_stream_kind */
    int32_t priority;
};

/* Launch k of a client is step k % (launching steps) of repeat k / (launching steps). */
struct ct_script_client {
    /* input */
    const struct ct_script_step *steps;
    size_t step_count;
    uint64_t repeats;
    const uint64_t *arrivals_ns; /* repeat i begins no earlier than this; NULL: when the previous one has ended */
    const struct ct_script_stream *streams;
    uint32_t stream_count;
    uint32_t group_label, sm_cap;
    uint32_t ahead_limit; /* launches in flight at most, then the host waits for the oldest; 0: 1,024 */
    uint64_t start_ns;    /* the host's first instant */
    /* output; arrays may be NULL */
    uint64_t *starts_ns, *ends_ns, *delays_ns; /* by launch; CT_DEVICE_NEVER and 0 if it did not happen in time */
    size_t launch_capacity;
    uint64_t *repeat_ends_ns; /* by repeat: end of the host's part */
    size_t repeat_capacity;
    uint64_t launches, completions;
    uint64_t finished_ns; /* when the host has ended and the last kernel is complete; NEVER if not in time */
    uint64_t blocked_ns;  /* time that the host waited */
    uint32_t client;      /* its handle, for the device's counters */
};

enum { CT_SCRIPT_MAX_CLIENTS = CT_DEVICE_MAX_CLIENTS, CT_SCRIPT_MAX_STREAMS = 64 };

/* Adds the clients to the device, with a context each, and runs them up to until_ns. The device's earlier records are
 * dropped, and afterwards kernels are recorded. Returns CT_DEVICE_OK, or why a client could not be added or a kernel
 * not be launched. */
int ct_script_run(struct ct_device *device, const struct ct_kernel *kernels, size_t kernel_count,
                  struct ct_script_client *clients, size_t client_count, uint64_t until_ns);

#endif

/* A GPU as arithmetic: what runs when, for how long and at whose expense; the instant is always an argument.
 *
 * Nothing here reads a clock, allocates, locks or keeps a global. All state lies in memory the caller gave to
 * ct_device_init() and refers to itself by index, so identical calls give identical answers. Every instant is in
 * nanoseconds on one axis chosen by the owner. One thread at a time.
 *
 * Time only moves forward: every call with `now_ns` first processes all internal changes up to now_ns. An instant
 * before the latest one seen is clamped to it and counted (late_calls). */
#ifndef COTENANT_DEVICE_DEVICE_H
#define COTENANT_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define CT_DEVICE_NEVER UINT64_MAX /* not foreseeable: depends on a host function or on nothing submitted yet */
#define CT_DEVICE_DONE UINT64_C(0) /* a projection of what is complete already */
#define CT_GROUP_OWN UINT32_MAX    /* the client shares its time slices with nobody */
#define CT_DEVICE_FULL_SPEED (UINT32_C(1) << 30)

enum { CT_DEVICE_MAX_CLIENTS = 64, CT_DEVICE_MAX_HANDLES = 65535, CT_DEVICE_WARP_THREADS = 32 };

enum ct_device_result {
    CT_DEVICE_OK = 0,
    CT_DEVICE_INVALID = 1,   /* an argument makes no sense */
    CT_DEVICE_STALE = 2,     /* no such client, context, stream, event or op, or no longer */
    CT_DEVICE_FULL = 3,      /* a limit given at set-up is reached; for ops: advance or wait, then try again */
    CT_DEVICE_NO_MEMORY = 4, /* the device has not that many free bytes */
    CT_DEVICE_NO_FIT = 5,    /* one block of this kernel does not fit an empty SM */
    CT_DEVICE_NOT_READY = 6, /* queries: work is still to be done */
};

/* ---- what a device is ------------------------------------------------------------------------------------- */

struct ct_device_config {
    char name[32]; /* "NVIDIA A100-SXM4-40GB" */
    char key[16];  /* "a100-40" */
    uint32_t compute_major, compute_minor;
    uint32_t sm_count;
    uint32_t threads_per_sm, blocks_per_sm, registers_per_sm, shared_bytes_per_sm;
    uint32_t threads_per_block, registers_per_thread;
    uint32_t shared_bytes_per_block;       /* without opting in */
    uint32_t shared_bytes_per_block_optin; /* with */
    uint32_t shared_reserved_bytes;        /* taken by the system from each block's budget (compute capability 8 on) */
    uint32_t shared_granularity_bytes, register_granularity; /* allocation units: bytes per block, registers per warp */
    uint32_t resident_kernels; /* grids that can be on the device at once, per group */
    uint32_t clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes;
    uint32_t copy_engines; /* 1: both directions share it; otherwise engine 0 is HtoD and engine 1 DtoH */
    uint64_t memory_bytes, memory_bytes_per_s;
    uint64_t host_bytes_per_s; /* to or from the host, each direction */
    int32_t priority_least, priority_greatest; /* a lower number goes first, as in CUDA */
    /* The following are the owner's choice rather than the chip's; presets fill in the defaults. */
    uint64_t slice_ns;        /* time slice between groups: 2 ms */
    uint64_t switch_ns;       /* idle time when another group is switched in: 10 us, our choice */
    uint64_t copy_latency_ns; /* added to each copy to or from the host: 1.5 us, our choice */
    uint64_t context_bytes;   /* device memory taken by each context: 0 */
};

/* "t4", "v100-16", "v100-32", "a100-40", "a100-80", "h100"; "v100", "a100" name the smaller one. NULL: unknown. */
const struct ct_device_config *ct_device_preset(const char *key);
const struct ct_device_config *ct_device_preset_at(uint32_t index); /* NULL past the last */

/* At most this many at once. Clients: 1 to 64. Records: see ct_device_drain(). */
struct ct_device_limits {
    uint32_t clients, contexts, streams, events, ops, records;
};

struct ct_device; /* lies at the start of the memory given */

/* Bytes needed for these limits (state, records, and a second state in which projections run); 0 if invalid. */
size_t ct_device_bytes(const struct ct_device_limits *limits);

/* The memory must be aligned to 64 bytes; what it held is overwritten. */
int ct_device_init(void *memory, size_t bytes, const struct ct_device_config *config,
                   const struct ct_device_limits *limits, uint64_t now_ns, struct ct_device **device);

const struct ct_device_config *ct_device_config(const struct ct_device *device);

/* Blocks of this shape that fit one empty SM at once: the least of what threads, registers, shared memory and the
 * block limit allow. 0: not even one. */
uint32_t ct_device_occupancy(const struct ct_device_config *config, uint32_t threads_per_block,
                             uint32_t registers_per_thread, uint32_t shared_bytes_per_block);

/* ---- who uses it ------------------------------------------------------------------------------------------ */

/* Handles of clients, contexts, streams and events carry a generation: one that outlived its object is STALE. The
 * low 16 bits are the table index. 0 is never a handle. */

/* A process. Clients with the same group label run concurrently (MPS); others take turns by time slice. */
int ct_device_client_add(struct ct_device *device, uint64_t now_ns, uint32_t group_label, uint32_t *client);

/* The process died. Its contexts, streams, events, queued ops and memory vanish at this instant and its running
 * blocks and copies stop at once: the driver evicts the context, which compute preemption allows at any instruction.
 * Waits of other clients for its events are released. Its books can be read until the slot is used again. */
int ct_device_client_kill(struct ct_device *device, uint64_t now_ns, uint32_t client);

/* A fatal fault: as with a kill its queued ops vanish and its running blocks and copies stop at once, but its contexts,
 * streams, events and memory stay until they are destroyed. */
int ct_device_client_stop(struct ct_device *device, uint64_t now_ns, uint32_t client);

/* At most this many SMs' worth of blocks at once for all contexts of the client together; 0: no cap. */
int ct_device_client_cap(struct ct_device *device, uint64_t now_ns, uint32_t client, uint32_t sm_cap);

/* sm_cap: at most this many SMs' worth of blocks at once for the context; 0: no cap. */
int ct_device_context_create(struct ct_device *device, uint64_t now_ns, uint32_t client, uint32_t sm_cap,
                             uint32_t *context);
/* As with a killed client, for this context alone. */
int ct_device_context_destroy(struct ct_device *device, uint64_t now_ns, uint32_t context);
/* Running blocks beyond a lowered cap finish; no further ones start until the context is below it. */
int ct_device_context_cap(struct ct_device *device, uint64_t now_ns, uint32_t context, uint32_t sm_cap);

/* Memory is bytes here; addresses are the caller's. Destroying the context gives all of it back. */
int ct_device_memory_take(struct ct_device *device, uint32_t context, uint64_t bytes);
int ct_device_memory_give(struct ct_device *device, uint32_t context, uint64_t bytes);
uint64_t ct_device_memory_free(const struct ct_device *device);
/* The same for memory of the client itself, which no context takes along when it goes. */
int ct_device_client_take(struct ct_device *device, uint32_t client, uint64_t bytes);
int ct_device_client_give(struct ct_device *device, uint32_t client, uint64_t bytes);
/* What the client has on the device, with all of its contexts; 0 for one that is gone. */
uint64_t ct_device_client_memory(const struct ct_device *device, uint32_t client);
/* All of it leaves the device and comes back as it was, unless there is no room for it: then nothing does. What ends
 * meanwhile does not come back. */
int ct_device_client_park(struct ct_device *device, uint32_t client);
int ct_device_client_unpark(struct ct_device *device, uint32_t client);
uint64_t ct_device_client_parked(const struct ct_device *device, uint32_t client);

enum ct_stream_kind {
    CT_STREAM_BLOCKING = 0,    /* synchronises with the context's legacy stream; also the per-thread default stream */
    CT_STREAM_NONBLOCKING = 1, /* does not */
    CT_STREAM_LEGACY = 2,      /* the NULL stream, at most one per context: an op in it starts when everything submitted
                                  earlier to the context's blocking streams is done, and holds up all they get later */
};

/* A priority outside the device's range is clamped, as CUDA does. */
int ct_device_stream_create(struct ct_device *device, uint64_t now_ns, uint32_t context, int kind, int32_t priority,
                            uint32_t *stream);
/* The handle is stale at once; what is queued still runs. */
int ct_device_stream_destroy(struct ct_device *device, uint64_t now_ns, uint32_t stream);

int ct_device_event_create(struct ct_device *device, uint32_t context, uint32_t *event);
int ct_device_event_destroy(struct ct_device *device, uint32_t event); /* pending records and waits keep their meaning */

/* ---- work ------------------------------------------------------------------------------------------------- */

/* An op id names one submission forever (slot and generation); 0 is none. `tag` comes back in the op's record.
 * `op` may be NULL. Ops of a stream start in the order submitted, each when the one before it is complete. */

struct ct_kernel {
    uint64_t blocks;
    uint64_t block_ns;        /* one block at full rate, at least 1 */
    uint64_t bytes_per_block; /* device memory traffic of one block; 0: none worth counting */
    uint32_t threads_per_block, registers_per_thread, shared_bytes_per_block;
    uint32_t blocks_per_sm; /* 0: from the three above; otherwise taken as given, up to 32 */
};

int ct_device_launch(struct ct_device *device, uint64_t now_ns, uint32_t stream, const struct ct_kernel *kernel,
                     uint64_t tag, uint64_t *op);

enum ct_op_kind {
    CT_OP_KERNEL = 0,
    CT_OP_COPY_HTOD = 1,
    CT_OP_COPY_DTOH = 2,
    CT_OP_COPY_DTOD = 3, /* runs on the SMs as a memory-bound grid: shares bandwidth, is sliced like a kernel */
    CT_OP_MEMSET = 4,    /* likewise */
    CT_OP_HOST = 5,      /* complete when the client says so */
    CT_OP_EVENT_RECORD = 6,
    CT_OP_EVENT_WAIT = 7,
    CT_OP_MARKER = 8, /* no duration: complete in its turn */
    CT_OP_KINDS = 9,
};

/* CT_OP_COPY_HTOD, _DTOH, _DTOD or CT_OP_MEMSET. */
int ct_device_copy(struct ct_device *device, uint64_t now_ns, uint32_t stream, int kind, uint64_t bytes, uint64_t tag,
                   uint64_t *op);
int ct_device_marker(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint64_t tag, uint64_t *op);

/* When its turn comes a CT_RECORD_READY record appears; the client runs its function and calls host_done. */
int ct_device_host(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint64_t tag, uint64_t *op);
int ct_device_host_done(struct ct_device *device, uint64_t now_ns, uint64_t op); /* NOT_READY before its turn */

/* The event stands for its latest record; a wait stands for the latest record at the time of the wait call, and is
 * nothing when there is none. Events may be recorded and waited for in any context or client. */
int ct_device_event_record(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint32_t event, uint64_t tag,
                           uint64_t *op);
int ct_device_event_wait(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint32_t event, uint64_t tag,
                         uint64_t *op);

/* A kernel (or copy on the device, or memset) that is to take no longer: running or first in its stream it is complete at
 * this instant, further behind it will be as soon as it is placed. STALE: complete already; INVALID: of another kind. */
int ct_device_op_cut(struct ct_device *device, uint64_t now_ns, uint64_t op);

/* The device's clocks, of the SMs and of the memory alike: from this instant all grids, running and to come, progress
 * `speed` / CT_DEVICE_FULL_SPEED as fast. Copies to and from the host keep their pace. */
int ct_device_set_speed(struct ct_device *device, uint64_t now_ns, uint32_t speed); /* 1 to CT_DEVICE_FULL_SPEED */
uint32_t ct_device_speed(const struct ct_device *device);

/* ---- what has happened, what will ------------------------------------------------------------------------- */

/* Costs a step per change on the way: two per slice while groups compete, one per wave of blocks where kernels share
 * the SMs. An owner that may be silent for long bounds what one call has to do by calling in between. */
void ct_device_advance(struct ct_device *device, uint64_t now_ns);
uint64_t ct_device_now(const struct ct_device *device);

/* OK: complete (or the op is none of ours any more); NOT_READY: not yet; STALE: no such event or stream. An event
 * never recorded is complete. */
int ct_device_op_query(const struct ct_device *device, uint64_t op);
int ct_device_event_query(const struct ct_device *device, uint32_t event);
int ct_device_stream_query(const struct ct_device *device, uint32_t stream);
int ct_device_context_query(const struct ct_device *device, uint32_t context);

/* The instant of the latest completed record: NOT_READY before it, INVALID when there never was one. */
int ct_device_event_time(const struct ct_device *device, uint32_t event, uint64_t *instant_ns);
uint64_t ct_device_event_op(const struct ct_device *device, uint32_t event);   /* its latest record; 0: none */
uint64_t ct_device_stream_last(const struct ct_device *device, uint32_t stream); /* the last op queued; 0: idle */

/* The earliest instant at which anything changes by itself; NEVER when nothing does. */
uint64_t ct_device_next_change(const struct ct_device *device);

/* The instant of completion if nothing else is submitted, killed or said. DONE, an instant, or NEVER. The first
 * question after a change copies the live state and runs ahead in the copy as far as needed; later ones go on from
 * there, so asking for every op of a queue runs it once. Asking for the op that completes next copies nothing. */
uint64_t ct_device_project_op(struct ct_device *device, uint64_t op);
/* The same, but at most `steps` changes further than before: OK, and the instant; or NOT_READY, and an instant before
 * which it is not complete. The next question goes on from there. For owners who must answer at once: competing groups
 * change every slice, so the price of a long kernel's end is its length in slices. */
int ct_device_project_within(struct ct_device *device, uint64_t op, uint64_t steps, uint64_t *instant_ns);
uint64_t ct_device_project_event(struct ct_device *device, uint32_t event);
uint64_t ct_device_project_stream(struct ct_device *device, uint32_t stream);
uint64_t ct_device_project_context(struct ct_device *device, uint32_t context);

/* Changes whenever something was submitted, killed, created or said, that is: whenever earlier projections may no
 * longer hold. Passing time alone does not change it. */
uint64_t ct_device_epoch(const struct ct_device *device);

/* ---- the books -------------------------------------------------------------------------------------------- */

enum ct_record_what {
    CT_RECORD_DONE = 0,
    CT_RECORD_READY = 1, /* a host function's turn has come: end_ns is 0 */
    CT_RECORD_OFF = 2,   /* running blocks of the client were switched out at start_ns; op and stream are 0 */
    CT_RECORD_ON = 3,    /* and in again */
};

struct ct_device_record {
    uint64_t op, tag;
    uint32_t client, context, stream;
    uint8_t kind, what; /* enum ct_op_kind, enum ct_record_what */
    uint16_t reserved;
    uint64_t submit_ns;
    uint64_t ready_ns; /* first in its stream and everything it waits for complete */
    uint64_t start_ns; /* first block placed, copy begun; for the rest ready_ns */
    uint64_t end_ns;
    uint64_t delayed_ns; /* by other clients, see below */
};

/* Which kinds leave records: a bit per enum ct_op_kind, and CT_RECORD_TURNS. At set-up: all but waits, markers, turns. */
enum { CT_RECORD_TURNS = 1 << CT_OP_KINDS };
void ct_device_record_kinds(struct ct_device *device, uint32_t kinds);

/* Takes up to `capacity` of the oldest records, in the order of completion. When the ring is full the oldest is
 * overwritten and counted (dropped_records). An owner that drains after every call loses none if limits.records is
 * at least twice limits.ops. Ops of killed clients leave none. */
size_t ct_device_drain(struct ct_device *device, struct ct_device_record *records, size_t capacity);

/* The records that are still there, for who does not drain: records are numbered from 0; from that number on (or the
 * oldest there is), as many as lie in one piece. `number` is that of the first of them, or of the next one to come. */
size_t ct_device_records(const struct ct_device *device, uint64_t from, const struct ct_device_record **records,
                         uint64_t *number);

/* What is counted as delay. At every instant each kernel that is ready and unfinished has a service: its running
 * blocks times their rate, 0 while its group is switched out. Its service alone is what it would have at this very
 * instant if the other clients' blocks were gone: its client's running blocks stay where they are, the client's
 * waiting blocks are placed in the usual order into the rest of the device (within the context's cap), and only this
 * client's traffic shares the bandwidth. The kernel's delay is the integral of max(0, 1 - service / service alone) over
 * time, 0 while its service alone is 0 (it waits for its own client). Block boundaries, slices, switches and bandwidth
 * are thereby all covered: exactly between groups; within a group as lost service, which at the end of a grid can be
 * less than the time lost. What is not: delay inherited from an earlier op of the same client, so that delays of one
 * stream add up instead of being counted again by every follower; and waits for copy engines.
 *
 * Each piece of delay is booked on culprits: for a group switched out, on the clients of the group that is on the
 * device (or being switched in; for the group being switched in, on the one before it); within a group, on the
 * other clients. Several share it by the SMs they hold. Sums over culprits equal delayed_ns to the nanosecond. */
struct ct_device_counters {
    uint64_t kernels, blocks; /* complete kernels (without copies and memsets), retired blocks of all grids */
    uint64_t copies, memsets, host_functions;
    uint64_t killed_ops;
    uint64_t busy_ns;      /* at least one block running */
    uint64_t sm_ns;        /* SMs with at least one block, times ns; blocks spread over SMs before they pile up */
    /* Resident threads times ns: achieved occupancy is thread_ns / (threads_per_sm * sm_ns). A full H100 wraps 64 bits
     * in 19 hours; unsigned differences over less than that stay right. */
    uint64_t thread_ns;
    uint64_t traffic_bytes; /* device memory, by retired blocks, finished copies */
    uint64_t host_bytes;   /* to and from the host */
    uint64_t to_host_bytes; /* of these, to the host */
    uint64_t delayed_ns;   /* sum over its kernels, copies on the device and memsets */
    uint64_t memory_bytes, memory_peak_bytes;
    /* Of the device as a whole; 0 elsewhere. */
    uint64_t switches, late_calls, dropped_records, merged_chunks;
};

void ct_device_count(struct ct_device *device, struct ct_device_counters *counters);
int ct_device_count_client(struct ct_device *device, uint32_t client, struct ct_device_counters *counters);
int ct_device_count_context(struct ct_device *device, uint32_t context, struct ct_device_counters *counters);

/* Nanoseconds for which kernels of `waiter` were delayed by `culprit`. Cleared when either slot is used again. */
uint64_t ct_device_delay(struct ct_device *device, uint32_t waiter, uint32_t culprit);

/* NULL, or what is wrong with the state. For tests; walks everything. */
const char *ct_device_check(const struct ct_device *device);

#endif

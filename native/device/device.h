/* A model of a GPU: computes what runs when, for how long, and which clients delay each other. The instant is always an
 * argument.
 *
 * Nothing here reads a clock, allocates, locks or has global state. All state is in the memory passed to
 * ct_device_init() and refers to itself by index, so identical calls give identical results. Instants are nanoseconds
 * on one axis chosen by the caller. Not thread-safe.
 *
 * Time only moves forward: every call with `now_ns` first processes all internal changes up to now_ns. An instant
 * before the latest one is clamped to it and counted (late_calls). */
#ifndef COTENANT_DEVICE_DEVICE_H
#define COTENANT_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define CT_DEVICE_NEVER UINT64_MAX /* not predictable: depends on a host function or on nothing submitted yet */
#define CT_DEVICE_DONE UINT64_C(0) /* projection of work that is complete already */
#define CT_GROUP_OWN UINT32_MAX    /* the client shares its time slices with no other client */
#define CT_DEVICE_FULL_SPEED (UINT32_C(1) << 30)

enum { CT_DEVICE_MAX_CLIENTS = 64, CT_DEVICE_MAX_HANDLES = 65535, CT_DEVICE_WARP_THREADS = 32 };

enum ct_device_result {
    CT_DEVICE_OK = 0,
    CT_DEVICE_INVALID = 1,   /* an argument is invalid */
    CT_DEVICE_STALE = 2,     /* no such client, context, stream, event or op, or no longer */
    CT_DEVICE_FULL = 3,      /* a limit given at initialization is reached; for ops: advance or wait, then try again */
    CT_DEVICE_NO_MEMORY = 4, /* the device has fewer free bytes */
    CT_DEVICE_NO_FIT = 5,    /* one block of this kernel does not fit an empty SM */
    CT_DEVICE_NOT_READY = 6, /* of queries: work is pending */
};

/* ---- configuration ------------------------------------------------------------------------------------------------ */

struct ct_device_config {
    char name[32]; /* "NVIDIA A100-SXM4-40GB" */
    char key[16];  /* "a100-40" */
    uint32_t compute_major, compute_minor;
    uint32_t sm_count;
    uint32_t threads_per_sm, blocks_per_sm, registers_per_sm, shared_bytes_per_sm;
    uint32_t threads_per_block, registers_per_thread;
    uint32_t shared_bytes_per_block;                         /* without opting in */
    uint32_t shared_bytes_per_block_optin;                   /* with opting in */
    uint32_t shared_reserved_bytes;                          /* reserved by the system from each block's budget (compute
                                                              * capability 8 on) */
    uint32_t shared_granularity_bytes, register_granularity; /* allocation units: bytes per block, registers per warp */
    uint32_t resident_kernels;                               /* grids that can be on the device at once, per group */
    uint32_t clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes;
    uint32_t copy_engines; /* 1: both directions share it; otherwise engine 0 is HtoD and engine 1 DtoH */
    uint64_t memory_bytes, memory_bytes_per_s;
    uint64_t host_bytes_per_s; /* to or from the host, each direction */
    int32_t priority_least, priority_greatest; /* a lower number has precedence, as in CUDA */
    /* The following are chosen by the user rather than by the chip; presets contain the defaults. */
    uint64_t slice_ns;        /* time slice between groups: 2 ms */
    uint64_t switch_ns;       /* idle time when another group is switched in: 10 us, chosen */
    uint64_t copy_latency_ns; /* added to each copy to or from the host: 1.5 us, chosen */
    uint64_t context_bytes;   /* device memory used by each context: 0 */
    uint64_t launch_ns;       /* from submission to the earliest start of a kernel or copy: 0 */
    /* Contention among kernels that run at the same time, in millionths; all 0 in the presets: none. rate.c has the
     * law. */
    uint32_t issue_full_ppm;       /* part of an SM's slots that, when filled, uses all its issue slots; 0: no contention
                                    * for issue slots */
    uint32_t cache_contention_ppm; /* slowdown by other kernels in L2 and on the way to it */
    uint32_t dram_contention_ppm;  /* additional slowdown when others use the whole bandwidth */
    uint32_t clock_drop_ppm;       /* fall of the clocks at full power */
    uint32_t priority_effect_ppm;  /* part of the kernels that overtake those of clients of lower priority; 1000000 in
                                    * the presets: all */
    uint32_t reserved;
};

/* "t4", "v100-16", "v100-32", "a100-40", "a100-80", "h100"; "v100", "a100" name the smaller one. NULL: unknown. */
const struct ct_device_config *ct_device_preset(const char *key);
const struct ct_device_config *ct_device_preset_at(uint32_t index); /* NULL past the last */

/* Upper limits. Clients: 1 to 64. Records: see ct_device_drain(). */
struct ct_device_limits {
    uint32_t clients, contexts, streams, events, ops, records;
};

struct ct_device; /* at the start of the memory passed to ct_device_init() */

/* Bytes needed for these limits (state, records, and a second state in which projections run); 0 if invalid. */
size_t ct_device_bytes(const struct ct_device_limits *limits);

/* The memory must be aligned to 64 bytes; its contents are overwritten. */
int ct_device_init(void *memory, size_t bytes, const struct ct_device_config *config,
                   const struct ct_device_limits *limits, uint64_t now_ns, struct ct_device **device);

const struct ct_device_config *ct_device_config(const struct ct_device *device);

/* Returns how many blocks of this shape fit one empty SM: the minimum of what threads, registers, shared memory and the
 * block limit permit. 0: none. */
uint32_t ct_device_occupancy(const struct ct_device_config *config, uint32_t threads_per_block,
                             uint32_t registers_per_thread, uint32_t shared_bytes_per_block);

/* ---- clients, contexts, streams and events ------------------------------------------------------------------------ */

/* Handles of clients, contexts, streams and events contain a generation: the handle of a destroyed object is STALE. The
 * low 16 bits are the table index. 0 is never a handle. */

/* Adds a process. Clients with the same group label run concurrently (MPS); others take turns in time slices. */
int ct_device_client_add(struct ct_device *device, uint64_t now_ns, uint32_t group_label, uint32_t *client);

/* Removes a process that died. Its contexts, streams, events, queued ops and memory are removed at this instant, and
 * its running blocks and copies stop at once: the driver evicts the context, which compute preemption permits at any
 * instruction. Waits of other clients for its events are released. Its counters can be read until the slot is
 * reused. */
int ct_device_client_kill(struct ct_device *device, uint64_t now_ns, uint32_t client);

/* A fatal fault: as with a kill, queued ops are removed and running blocks and copies stop at once, but contexts,
 * streams, events and memory remain until they are destroyed. */
int ct_device_client_stop(struct ct_device *device, uint64_t now_ns, uint32_t client);

/* Limits all contexts of the client together to blocks of this many SMs at once; 0: no cap. */
int ct_device_client_cap(struct ct_device *device, uint64_t now_ns, uint32_t client, uint32_t sm_cap);

/* sm_cap: limits the context to blocks of this many SMs at once; 0: no cap. */
int ct_device_context_create(struct ct_device *device, uint64_t now_ns, uint32_t client, uint32_t sm_cap,
                             uint32_t *context);
/* Like ct_device_client_kill(), for one context. */
int ct_device_context_destroy(struct ct_device *device, uint64_t now_ns, uint32_t context);
/* Running blocks beyond a lowered cap finish; no further ones start until the context is below it. */
int ct_device_context_cap(struct ct_device *device, uint64_t now_ns, uint32_t context, uint32_t sm_cap);

/* Memory is counted in bytes; addresses are managed by the caller. Destroying the context releases all of it. */
int ct_device_memory_take(struct ct_device *device, uint32_t context, uint64_t bytes);
int ct_device_memory_give(struct ct_device *device, uint32_t context, uint64_t bytes);
uint64_t ct_device_memory_free(const struct ct_device *device);
/* The same for memory of the client itself, which is independent of contexts. */
int ct_device_client_take(struct ct_device *device, uint32_t client, uint64_t bytes);
int ct_device_client_give(struct ct_device *device, uint32_t client, uint64_t bytes);
/* Returns what the client has on the device, including its contexts; 0 for a client that has been removed. */
uint64_t ct_device_client_memory(const struct ct_device *device, uint32_t client);
/* Move all of its memory off the device, and back unless there is not enough free memory: then nothing is moved. What
 * is destroyed meanwhile is not moved back. */
int ct_device_client_park(struct ct_device *device, uint32_t client);
int ct_device_client_unpark(struct ct_device *device, uint32_t client);
uint64_t ct_device_client_parked(const struct ct_device *device, uint32_t client);

enum ct_stream_kind {
    CT_STREAM_BLOCKING = 0,    /* synchronizes with the context's legacy stream; also the per-thread default stream */
    CT_STREAM_NONBLOCKING = 1, /* does not */
    CT_STREAM_LEGACY = 2,      /* the NULL stream, at most one per context: an op in it starts when everything submitted
                                * earlier to the context's blocking streams is complete, and delays everything submitted
                                * to them later */
};

/* A priority outside the device's range is clamped, as CUDA does. */
int ct_device_stream_create(struct ct_device *device, uint64_t now_ns, uint32_t context, int kind, int32_t priority,
                            uint32_t *stream);
/* The handle becomes stale at once; queued ops still run. */
int ct_device_stream_destroy(struct ct_device *device, uint64_t now_ns, uint32_t stream);

int ct_device_event_create(struct ct_device *device, uint32_t context, uint32_t *event);
int ct_device_event_destroy(struct ct_device *device, uint32_t event); /* pending records and waits remain valid */

/* ---- submission --------------------------------------------------------------------------------------------------- */

/* An op id identifies one submission forever (slot and generation); 0 is none. `tag` is returned in the op's record.
 * `op` may be NULL. Ops of a stream start in submission order, each when the previous one is complete. */

struct ct_kernel {
    uint64_t blocks;
    uint64_t block_ns;        /* time of one block at full rate, at least 1 */
    uint64_t bytes_per_block; /* device memory traffic of one block */
    uint32_t threads_per_block, registers_per_thread, shared_bytes_per_block;
    uint32_t blocks_per_sm; /* 0: computed from the three above; otherwise used as given, up to 32 */
    /* Limits this kernel to blocks of this many SMs at once; 0, or all SMs: no cap. Kernels of a client with such caps
     * share SMs as if each ran in a partition of the device with that many, and each partition contained the smaller
     * ones: for every cap, the kernels with this cap or a smaller one hold no more SMs than that together. Kernels
     * without caps of their own run in none of these partitions. */
    uint32_t sm_cap;
    uint32_t reserved;
};

int ct_device_launch(struct ct_device *device, uint64_t now_ns, uint32_t stream, const struct ct_kernel *kernel,
                     uint64_t tag, uint64_t *op);

enum ct_op_kind {
    CT_OP_KERNEL = 0,
    CT_OP_COPY_HTOD = 1,
    CT_OP_COPY_DTOH = 2,
    CT_OP_COPY_DTOD = 3, /* runs on the SMs as a memory-bound grid: shares bandwidth, and is subject to time slices */
    CT_OP_MEMSET = 4,    /* likewise */
    CT_OP_HOST = 5,      /* complete when the client reports it */
    CT_OP_EVENT_RECORD = 6,
    CT_OP_EVENT_WAIT = 7,
    CT_OP_MARKER = 8, /* no duration */
    CT_OP_KINDS = 9,
};

/* CT_OP_COPY_HTOD, _DTOH, _DTOD or CT_OP_MEMSET. */
int ct_device_copy(struct ct_device *device, uint64_t now_ns, uint32_t stream, int kind, uint64_t bytes, uint64_t tag,
                   uint64_t *op);
int ct_device_marker(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint64_t tag, uint64_t *op);

/* When it is the first in its stream a CT_RECORD_READY record appears; the client runs its function and calls
 * ct_device_host_done(). */
int ct_device_host(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint64_t tag, uint64_t *op);
int ct_device_host_done(struct ct_device *device, uint64_t now_ns, uint64_t op); /* NOT_READY before that */

/* An event represents its latest record; a wait refers to the latest record at the time of the wait call, and has no
 * effect if there is none. Events may be recorded and waited for in any context or client. */
int ct_device_event_record(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint32_t event, uint64_t tag,
                           uint64_t *op);
int ct_device_event_wait(struct ct_device *device, uint64_t now_ns, uint32_t stream, uint32_t event, uint64_t tag,
                         uint64_t *op);

/* Shortens a kernel (or copy on the device, or memset): if it is running or first in its stream it is complete at this
 * instant, otherwise as soon as it is placed. STALE: complete already; INVALID: of another kind. */
int ct_device_op_cut(struct ct_device *device, uint64_t now_ns, uint64_t op);

/* Sets the clocks of the SMs and of the memory: from this instant all grids progress at `speed` / CT_DEVICE_FULL_SPEED.
 * Copies to and from the host are not affected. */
int ct_device_set_speed(struct ct_device *device, uint64_t now_ns, uint32_t speed); /* 1 to CT_DEVICE_FULL_SPEED */
uint32_t ct_device_speed(const struct ct_device *device);
/* Sets the length of time slices, from the present one on, which ends at once if it has lasted as long. */
int ct_device_set_slice(struct ct_device *device, uint64_t now_ns, uint64_t slice_ns);
uint64_t ct_device_slice_ns(const struct ct_device *device);

/* ---- queries and projections -------------------------------------------------------------------------------------- */

/* Takes one step per internal change: two per slice while groups compete, one per wave of blocks where kernels share
 * the SMs. A caller that is idle for long limits the work of one call by calling in between. */
void ct_device_advance(struct ct_device *device, uint64_t now_ns);
uint64_t ct_device_now(const struct ct_device *device);

/* OK: complete (or the op is not known any more); NOT_READY: not yet; STALE: no such event or stream. An event that was
 * never recorded is complete. */
int ct_device_op_query(const struct ct_device *device, uint64_t op);
/* How many blocks of a kernel that is not complete have begun: 0: none, 1: some, 2: all, and its group has the SMs. */
int ct_device_op_begun(const struct ct_device *device, uint64_t op);
int ct_device_event_query(const struct ct_device *device, uint32_t event);
int ct_device_stream_query(const struct ct_device *device, uint32_t stream);
int ct_device_context_query(const struct ct_device *device, uint32_t context);

/* Returns the instant of the latest completed record: NOT_READY before it, INVALID if there was none. */
int ct_device_event_time(const struct ct_device *device, uint32_t event, uint64_t *instant_ns);
uint64_t ct_device_event_op(const struct ct_device *device, uint32_t event);   /* its latest record; 0: none */
uint64_t ct_device_stream_last(const struct ct_device *device, uint32_t stream); /* the last op queued; 0: idle */

/* Returns the earliest instant at which anything changes without a call; NEVER if nothing does. */
uint64_t ct_device_next_change(const struct ct_device *device);

/* Returns when an op will complete if nothing else is submitted, killed or reported: DONE, an instant, or NEVER. The
 * first query after a change copies the state and runs ahead in the copy as far as needed; later queries continue
 * from there, so querying every op of a queue runs it once. A query of the op that completes next copies nothing. */
uint64_t ct_device_project_op(struct ct_device *device, uint64_t op);
/* The same, limited to `steps` further changes: OK and the instant, or NOT_READY and a lower bound. The next query
 * continues from there. For callers that must answer at once: competing groups change every slice, so the cost of
 * projecting a long kernel is its length in slices. */
int ct_device_project_within(struct ct_device *device, uint64_t op, uint64_t steps, uint64_t *instant_ns);
uint64_t ct_device_project_event(struct ct_device *device, uint32_t event);
uint64_t ct_device_project_stream(struct ct_device *device, uint32_t stream);
uint64_t ct_device_project_context(struct ct_device *device, uint32_t context);

/* Changes whenever something was submitted, killed, created or reported, that is whenever earlier projections may be
 * invalid. The passage of time alone does not change it. */
uint64_t ct_device_epoch(const struct ct_device *device);

/* ---- counters and records ----------------------------------------------------------------------------------------- */

enum ct_record_what {
    CT_RECORD_DONE = 0,
    CT_RECORD_READY = 1, /* a host function may run: end_ns is 0 */
    CT_RECORD_OFF = 2,   /* running blocks of the client were switched out at start_ns; op and stream are 0 */
    CT_RECORD_ON = 3,    /* and switched in again */
};

struct ct_device_record {
    uint64_t op, tag;
    uint32_t client, context, stream;
    uint8_t kind, what; /* enum ct_op_kind, enum ct_record_what */
    uint16_t reserved;
    uint64_t submit_ns;
    uint64_t ready_ns; /* first in its stream, with everything it waits for complete */
    uint64_t start_ns; /* first block placed, or copy begun; for other kinds ready_ns */
    uint64_t end_ns;
    uint64_t delayed_ns; /* by other clients, see below */
};

/* The kinds that are recorded: a bit per enum ct_op_kind, and CT_RECORD_TURNS. Initially all but waits, markers and
 * time-slice switches. */
enum { CT_RECORD_TURNS = 1 << CT_OP_KINDS };
void ct_device_record_kinds(struct ct_device *device, uint32_t kinds);

/* Returns up to `capacity` of the oldest records, in the order of completion. When the ring is full the oldest is
 * overwritten and counted (dropped_records). A caller that drains after every call loses none if limits.records is at
 * least twice limits.ops. Ops of killed clients have no records. */
size_t ct_device_drain(struct ct_device *device, struct ct_device_record *records, size_t capacity);

/* Reads records without removing them. Records are numbered from 0; returns those from the given number (or the oldest
 * available) on that are contiguous. `number` receives the number of the first of them, or of the next one to come. */
size_t ct_device_records(const struct ct_device *device, uint64_t from, const struct ct_device_record **records,
                         uint64_t *number);

/* Definition of delay. At every instant each kernel that is ready and not complete has a service rate: its running
 * blocks times their rate, 0 while its group is switched out. Its solo rate is what it would have at this instant
 * without the blocks of other clients: its client's running blocks stay where they are, the client's waiting blocks are
 * placed in the usual order into the rest of the device (within their caps), and only this client's traffic
 * shares the bandwidth. The kernel's delay is the integral of max(0, 1 - rate / solo rate) over time, 0 while its solo
 * rate is 0 (it waits for its own client). This covers block boundaries, slices, switches and bandwidth: exactly
 * between groups; within a group as lost service, which at the end of a grid can be less than the time lost. It does
 * not cover delay inherited from an earlier op of the same client, so that delays of one stream add up instead of being
 * counted again by every following op, nor waits for copy engines.
 *
 * Each delay is attributed to culprits: for a group that is switched out, to the clients of the group on the device (or
 * being switched in; for the group being switched in, to the previous one); within a group, to the other clients.
 * Several culprits share it in proportion to the SMs they hold. Sums over culprits equal delayed_ns to the
 * nanosecond. */
struct ct_device_counters {
    uint64_t kernels, blocks; /* completed kernels (without copies and memsets), retired blocks of all grids */
    uint64_t copies, memsets, host_functions;
    uint64_t killed_ops;
    uint64_t busy_ns; /* at least one block running */
    uint64_t sm_ns;   /* SMs with at least one block, times ns; blocks are distributed over all SMs first */
    /* Resident threads times ns: achieved occupancy is thread_ns / (threads_per_sm * sm_ns). It wraps after 19 hours on
     * a full H100; unsigned differences over less than that are correct. */
    uint64_t thread_ns;
    uint64_t traffic_bytes; /* device memory, by retired blocks, finished copies */
    uint64_t host_bytes;    /* to and from the host */
    uint64_t to_host_bytes; /* of these, to the host */
    uint64_t delayed_ns;    /* sum over its kernels, copies on the device and memsets */
    uint64_t memory_bytes, memory_peak_bytes;
    /* Of the device as a whole; 0 in other counters. */
    uint64_t switches, late_calls, dropped_records, merged_chunks;
};

void ct_device_count(struct ct_device *device, struct ct_device_counters *counters);
int ct_device_count_client(struct ct_device *device, uint32_t client, struct ct_device_counters *counters);
int ct_device_count_context(struct ct_device *device, uint32_t context, struct ct_device_counters *counters);

/* Returns for how many nanoseconds kernels of `waiter` were delayed by `culprit`. Reset when either slot is reused. */
uint64_t ct_device_delay(struct ct_device *device, uint32_t waiter, uint32_t culprit);

/* Returns NULL, or a description of what is inconsistent. For tests; checks the whole state. */
const char *ct_device_check(const struct ct_device *device);

#endif

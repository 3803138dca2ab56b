/* The internal state of the device model: tables of plain structs that refer to each other by index. */
#ifndef COTENANT_DEVICE_STATE_H
#define COTENANT_DEVICE_STATE_H

#include "device/device.h"

typedef unsigned __int128 ct_u128; /* products of two 64-bit quantities, never stored */

#define CT_NONE UINT32_MAX
/* A block claims 1/occupancy of an SM. In units of 1/lcm(1..32) SM every such claim is an integer, so that claimed and
 * free units add up exactly; 132 SMs stay far below 2^64. */
#define CT_SM_UNITS UINT64_C(144403552893600)
#define CT_RATE_FULL (UINT64_C(1) << 30)

enum {
    CT_MAX_OCCUPANCY = 32,
    CT_GROUP_CHUNKS = 256, /* chunks in flight per group; more are merged */
    CT_KERNEL_CHUNKS = 16, /* and per kernel */
    CT_RESIDENT_LIMIT = 128,
    CT_ENGINES = 2,
    CT_PPM = 1000000,
    CT_CONTENTION_MAX_PPM = 4 * CT_PPM,
};

enum ct_op_state {
    CT_OP_FREE = 0,
    CT_OP_QUEUED = 1, /* behind others in its stream, or waiting for an event or the legacy stream */
    CT_OP_READY = 2,  /* first: a grid in its group's list, a copy in its engine's queue, a host function running */
};

/* What is on the SMs now, and since when it has not been added to the counters. */
struct ct_usage {
    uint64_t blocks, sms, threads;
    uint64_t settled_ns;
    uint32_t sm_limit;
    uint16_t is_capped; /* the limit is a cap of its own */
    uint16_t on;
};

struct ct_op {
    uint32_t generation;
    uint32_t next; /* in its stream; of a free op: in the free list */
    uint32_t stream;
    uint8_t kind, state;
    uint16_t chunks;
    uint32_t ready_prev, ready_next; /* in the group's list of grids, or the engine's queue */
    int32_t priority;
    uint32_t threads_per_block;
    uint32_t sm_cap; /* of this kernel; 0: none */
    uint64_t order;  /* in its context, by submission */
    uint64_t tag;
    uint64_t submit_ns, ready_ns, start_ns, delayed_ns;
    /* of grids */
    uint64_t pending_blocks, running_blocks;
    uint64_t block_ns, bytes_per_block;
    uint64_t share;  /* SM units claimed by one block */
    uint64_t demand; /* bytes per second requested by one running block */
    uint64_t rate, next_rate;
    /* of copies */
    uint64_t bytes;
    /* of events: a record's event, a wait's record; waits are listed at their record */
    uint64_t awaits;
    uint32_t event, first_waiter, next_waiter;
    uint32_t resident;
    uint32_t is_deferred, next_deferred; /* first in its stream, but not on the device yet */
    uint64_t projected_ns, projected_epoch;
};

/* Blocks of one kernel that started together and therefore retire together. `waves` > 1: the same kernel refills the
 * same slots that many times, without interruption. end_ns is relative while switched out. */
struct ct_chunk {
    uint32_t op, blocks;
    uint64_t waves;
    uint64_t end_ns;
};

struct ct_stream {
    uint16_t generation;
    uint8_t used, open, kind, in_work;
    uint16_t reserved;
    int32_t priority;
    uint32_t context;
    uint32_t first, last; /* ops */
    uint32_t next;        /* stream of the same context; of a free slot: the free list */
    uint32_t next_work;
    uint32_t handle;
};

struct ct_event {
    uint16_t generation;
    uint8_t used, done;
    uint32_t context;
    uint32_t next; /* event of the same context, or free list */
    uint64_t record; /* op id of the latest record */
    uint64_t instant_ns;
};

struct ct_context {
    uint16_t generation;
    uint8_t used;
    uint32_t client;
    uint32_t next; /* context of the same client, or free list */
    uint32_t first_stream, first_event, legacy;
    uint32_t sm_cap;
    uint32_t is_capped;    /* itself or by its client's cap */
    uint64_t blocking_ops; /* queued or running in blocking streams */
    uint64_t legacy_ops;
    uint64_t next_order;
    uint64_t held_share;
    uint64_t parked_bytes; /* part of its memory that is not on the device at present */
    struct ct_usage usage;
    struct ct_device_counters counters;
};

struct ct_client {
    uint16_t generation;
    uint8_t used;
    uint32_t group;
    uint32_t sm_cap; /* of all its contexts together; 0: none */
    uint32_t priority_credit_ppm; /* see ct_grid_ready() */
    uint32_t first_context;
    uint64_t ready_grids;
    uint64_t held_share;
    uint64_t loose_bytes; /* device memory that belongs to no context */
    uint64_t parked_bytes; /* likewise, not on the device at present */
    struct ct_usage usage;
    struct ct_device_counters counters;
    uint64_t delayed_by_ns[CT_DEVICE_MAX_CLIENTS];
};

/* Clients that may be on the device together. */
struct ct_group {
    uint32_t label, members;
    uint64_t member_mask; /* clients, by index */
    uint64_t blame_mask;  /* the same, but keeps the last one after its removal */
    uint64_t ready_mask;  /* clients with a grid ready */
    uint32_t first_ready, last_ready, ready_grids;
    uint32_t chunk_count, resident_grids;
    uint32_t running_grids; /* with blocks on the SMs */
    uint32_t slowed;        /* some kernel runs below its full rate */
    uint64_t held_share, demand;
    uint64_t next_end_ns; /* of its chunks; NEVER while switched out */
    uint64_t delays_settled_ns;
};

struct ct_engine {
    uint32_t first, last; /* ops; the first one is being copied */
    uint64_t end_ns;
};

/* Number of slots, the list of free ones, and how many were ever used: only those are copied for a projection. */
struct ct_table {
    uint32_t slots, free, touched, used;
    size_t offset;
};

struct ct_device {
    struct ct_device_config config;
    struct ct_device_limits limits;
    struct ct_table contexts, streams, events, ops;
    size_t groups_offset, clients_offset, chunks_offset, records_offset, ahead_offset; /* ahead: of the projection, from the live state */
    uint64_t now_ns, epoch;
    uint64_t ready_count; /* grids that ever became ready; determines their order */
    uint64_t capacity_share;
    uint32_t work_first, work_last; /* streams whose first op may have become ready */
    uint32_t dispatch_due, in_step;
    uint32_t first_deferred; /* ops by the instant at which they are on the device */
    uint64_t speed; /* of CT_DEVICE_FULL_SPEED */
    uint32_t contends; /* kernels that run together slow each other */
    /* time slices */
    uint32_t active, resident, outgoing, switching;
    uint64_t runnable_mask;
    uint64_t switch_end_ns, slice_start_ns, slice_end_ns;
    struct ct_engine engines[CT_ENGINES];
    struct ct_usage usage;
    struct ct_device_counters counters;
    uint32_t record_kinds;
    uint32_t is_ahead; /* this is the copy in which projections run */
    uint64_t ahead_epoch;
    uint64_t record_first, record_count, records_ever;
};

static inline void *ct_at(const struct ct_device *d, size_t offset)
{
    return (char *)(uintptr_t)d + offset;
}

static inline struct ct_op *ct_ops(const struct ct_device *d) { return ct_at(d, d->ops.offset); }
static inline struct ct_stream *ct_streams(const struct ct_device *d) { return ct_at(d, d->streams.offset); }
static inline struct ct_event *ct_events(const struct ct_device *d) { return ct_at(d, d->events.offset); }
static inline struct ct_context *ct_contexts(const struct ct_device *d) { return ct_at(d, d->contexts.offset); }
static inline struct ct_client *ct_clients(const struct ct_device *d) { return ct_at(d, d->clients_offset); }
static inline struct ct_group *ct_groups(const struct ct_device *d) { return ct_at(d, d->groups_offset); }

static inline struct ct_chunk *ct_chunks(const struct ct_device *d, uint32_t group)
{
    return (struct ct_chunk *)ct_at(d, d->chunks_offset) + (size_t)group * CT_GROUP_CHUNKS;
}

static inline struct ct_context *ct_context_of(const struct ct_device *d, const struct ct_op *op)
{
    return &ct_contexts(d)[ct_streams(d)[op->stream].context];
}

static inline uint64_t ct_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t ct_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t ct_lowest(uint64_t mask) { return (uint32_t)__builtin_ctzll(mask); }

/* Returns a * b / c with a 128-bit product, limited to UINT64_MAX. */
static inline uint64_t ct_scale(uint64_t a, uint64_t b, uint64_t c, uint64_t round)
{
    ct_u128 quotient = ((ct_u128)a * b + round) / c;
    return quotient > UINT64_MAX ? UINT64_MAX : (uint64_t)quotient;
}

static inline uint64_t ct_instant_after(uint64_t instant_ns, uint64_t ns)
{
    return instant_ns > CT_DEVICE_NEVER - 1 - ns ? CT_DEVICE_NEVER - 1 : instant_ns + ns;
}

/* Returns the progress rate of a kernel's blocks, of CT_RATE_FULL: its part of the bandwidth at the device's speed. */
static inline uint64_t ct_pace(const struct ct_device *d, uint64_t rate)
{
    return d->speed == CT_DEVICE_FULL_SPEED ? rate : ct_max(1, rate * d->speed / CT_DEVICE_FULL_SPEED);
}

static inline int ct_group_is_on(const struct ct_device *d, uint32_t group)
{
    return d->active == group && !d->switching;
}

/* tables.c: convert handles to slots; return a slot or CT_NONE. Taking a slot keeps its generation. */
void ct_memory_free_client(struct ct_device *d, struct ct_client *client); /* frees what belongs to the client itself */
uint32_t ct_slot_client(const struct ct_device *d, uint32_t handle);
uint32_t ct_slot_context(const struct ct_device *d, uint32_t handle);
uint32_t ct_slot_stream(const struct ct_device *d, uint32_t handle);
uint32_t ct_slot_event(const struct ct_device *d, uint32_t handle);
uint32_t ct_slot_op(const struct ct_device *d, uint64_t op);
uint32_t ct_take_op(struct ct_device *d);
void ct_free_op(struct ct_device *d, uint32_t op);
void ct_stream_close_if_drained(struct ct_device *d, uint32_t stream);

static inline uint64_t ct_op_id(const struct ct_device *d, uint32_t op)
{
    return ((uint64_t)ct_ops(d)[op].generation << 32) | op;
}

/* stream_order.c: the order within and between streams. */
void ct_order_append(struct ct_device *d, uint32_t stream, uint32_t op);
void ct_order_touch(struct ct_device *d, uint32_t stream);
void ct_order_run(struct ct_device *d);
uint64_t ct_order_next_deferred(const struct ct_device *d);
void ct_order_arrive(struct ct_device *d); /* ops whose latency has passed */
void ct_order_complete(struct ct_device *d, uint32_t op);
void ct_order_discard(struct ct_device *d, uint32_t op); /* the same without a record, for killed clients */

/* engine.c: copies to and from the host. */
void ct_engine_enter(struct ct_device *d, uint32_t op);
void ct_engine_remove(struct ct_device *d, uint32_t op);
void ct_engine_finish(struct ct_device *d, uint32_t engine);

/* grid.c: assignment of blocks to SMs. */
void ct_grid_ready(struct ct_device *d, uint32_t op);
void ct_grid_remove(struct ct_device *d, uint32_t op);
int ct_grid_refill(struct ct_device *d, uint32_t group);
void ct_grid_retire(struct ct_device *d, uint32_t group);
void ct_grid_dispatch(struct ct_device *d, uint32_t group);
void ct_grid_split_waves(struct ct_device *d, uint32_t group);
void ct_grid_stop_waves(struct ct_device *d, uint32_t group);
void ct_grid_finish(struct ct_device *d, uint32_t op); /* completes it at once */

/* rate.c: contention and bandwidth among running kernels. */
struct ct_flow {
    uint64_t held;   /* SM units */
    uint64_t demand; /* bytes per second */
    uint64_t sms;    /* SMs with blocks of this kernel */
    uint64_t is_capped;
    uint64_t contended_rate, rate; /* of CT_RATE_FULL: by contention, and with the part of the bandwidth */
};
void ct_flow_add(const struct ct_device *d, struct ct_flow *flow, const struct ct_op *op, uint64_t blocks);
void ct_rate_compute(const struct ct_device *d, struct ct_flow *flows, uint32_t count);
void ct_rate_update(struct ct_device *d, uint32_t group);

/* timeslice.c: which group is on the device. */
void ct_timeslice_update(struct ct_device *d);
void ct_timeslice_expired(struct ct_device *d);
void ct_timeslice_switched(struct ct_device *d);

/* counters.c: counters and records. */
void ct_counters_blocks(struct ct_device *d, const struct ct_op *op, uint64_t before, uint64_t after);
/* Called after a change of the cap. */
void ct_counters_context_cap(struct ct_device *d, struct ct_context *context);
void ct_counters_client_cap(struct ct_device *d, struct ct_client *client);
void ct_counters_retired(struct ct_device *d, const struct ct_op *op, uint64_t blocks);
void ct_counters_done(struct ct_device *d, const struct ct_op *op);
void ct_counters_group_on(struct ct_device *d, uint32_t group, uint32_t on);
void ct_counters_settle(struct ct_device *d);
void ct_counters_record(struct ct_device *d, uint32_t op, int what);

/* delay.c: delays between clients. */
void ct_delay_settle(struct ct_device *d, uint32_t group);
void ct_delay_settle_all(struct ct_device *d);

/* time.c */
uint64_t ct_time_enter(struct ct_device *d, uint64_t now_ns); /* clamps, advances, opens a new epoch */
void ct_time_settle(struct ct_device *d); /* after a change from outside: readiness, time slices, dispatch */

/* cap.c: caps of clients, contexts and kernels. */

/* A number of blocks of a kernel on the SMs that may differ from the present one. */
struct ct_placement {
    uint32_t op;
    uint64_t blocks;
};

static inline int ct_is_capped(const struct ct_device *d, const struct ct_op *op)
{
    return (op->sm_cap | ct_context_of(d, op)->is_capped) != 0;
}

/* Returns the SM units that the kernel may still claim if the given kernels of its client had these numbers of blocks
 * and all others the present ones; UINT64_MAX: it has no cap. */
uint64_t ct_cap_available(const struct ct_device *d, const struct ct_op *op, const struct ct_placement *placed,
                          uint32_t count);

#endif

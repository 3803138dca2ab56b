/* The session of a process: what the hook has recorded of its GPU work. */
#ifndef COTENANT_HOOK_ENTRY_SESSION_H
#define COTENANT_HOOK_ENTRY_SESSION_H

#include "atomics.h"
#include "gate/forecast.h"
#include "hook/entry/membership.h"
#include "hook/timing/clock.h"
#include "hook/entry/driver.h"
#include "hook/entry/page.h"
#include "hook/timing/kernel_times.h"
#include "hook/timing/record.h"
#include "hook/entry/route.h"
#include "hook/timing/trace.h"

#include <stdint.h>

struct ct_slice;

/* A function, graph or copy engine under one handle. Its memory is reused, but never freed, because handles may be looked
 * up concurrently. */
struct ct_function {
    uintptr_t handle, owner; /* owner: the module or library that it is unloaded with; 0: unknown */
    _Atomic int is_alive;
    int is_collective; /* its name is that of a collective, or it is a graph that contains one */
    uint32_t free_ppm; /* of a graph: mean fraction of the device that its kernels leave free; 0 if unknown */
    uint64_t used_ticks;
    uint64_t name_hash; /* of the whole name, which may be longer than what is kept of it */
    _Atomic(struct ct_slice *) slice; /* how to launch it in parts; NULL: its text was not read */
    struct ct_function *next;
    char name[CT_RECORD_NAME_BYTES];
};

struct ct_shape {
    uint32_t grid[3], block[3], shared_bytes;
};

struct ct_identity {
    uintptr_t handle; /* 0: not in use */
    struct ct_shape shape;
    uint32_t number;        /* index of its kernel time */
    uint32_t record_number; /* index of the kernel in the record; CT_NO_RECORD: the record is full */
    uint32_t generation;    /* incremented when the entry is reused */
    int is_collective;      /* as that of the function */
    uint64_t used_ticks;    /* its latest launch */
    struct ct_function *function;
    struct ct_kernel_time *kernel_time;
    struct ct_record_kernel *kernel; /* NULL: the record is full */
    _Atomic(struct ct_identity *) next;
};

/* A history of launches and its usual successor. */
struct ct_step {
    uint32_t after[CT_RECORD_HISTORY];
    uint32_t next_number; /* index plus one */
    int is_used;
    uint64_t used_ticks;
    struct ct_record_interval *interval; /* NULL: the record has none for it */
    struct ct_step *next_step;
    struct ct_forecast next, after_sync; /* interval to the next launch, after this launch and after a synchronization
                                          * in between */
};

enum { CT_IDENTITY_BUCKETS = 4096, CT_IDENTITIES = 8192, CT_FUNCTIONS = 8192, CT_STEPS = 8192, CT_STEP_BUCKETS = 16384,
       CT_NAME_BUCKETS = 4096, CT_WAITING_STREAMS = 16, CT_CAPTURES = 64 };

#define CT_NO_RECORD UINT32_MAX

/* A stream that is being captured, and the context that was current when that began. */
struct ct_capture {
    uintptr_t stream; /* 0: not in use */
    CUcontext context;
};

struct ct_timing;
struct ct_gateway;
struct ct_memory;

struct ct_session {
    /* Accessed by every launch. */
    _Atomic int lock;
    _Atomic int time_next; /* whether the next launch is timed */
    _Atomic int captures;  /* number of streams being captured */
    uint32_t sample_every, until_sample; /* every 0: no launch is sampled, and the other one only counts down */
    uint64_t last_ticks, rng;
    struct ct_step *step;
    struct ct_gateway *gateway; /* NULL: there is no gate */
    struct ct_clock clock;
    struct ct_record record;
    struct ct_trace trace;
    const struct ct_membership *membership; /* NULL: the process is unmanaged */
    uint64_t attachments;                   /* their number when the gate was opened */
    struct ct_timing *timing;
    int is_measuring;
    uint32_t waiting_stream_count; /* streams that wait for a value, see launch/stream_values.h */
    /* Accessed rarely. */
    struct ct_capture capture_storage[CT_CAPTURES];
    uintptr_t waiting_streams[CT_WAITING_STREAMS]; /* by ct_stream_key(); 0: unused */
    _Atomic uint64_t calls_when_idle; /* number of calls when the program last waited for all work */
    _Atomic int is_device_named;
    uint32_t identity_count, function_count, step_count, time_count; /* entries that were ever in use */
    struct ct_identity *identity_free;                               /* evicted entries; linked by `next` */
    struct ct_function *function_free;
    struct ct_step *step_free; /* linked by `next_step` */
    uint32_t time_free;        /* index plus one; linked by `next_of_name` */
    struct ct_kernel_time kernel_times[CT_IDENTITIES]; /* each belongs to one identity or more */
    struct ct_record_kernel unrecorded; /* describes a kernel that the record has no entry for */
    struct ct_kernel_time_file kernel_time_file;
    struct ct_sms sms;
    _Atomic(struct ct_identity *) identities[CT_IDENTITY_BUCKETS];
    struct ct_function *functions[CT_IDENTITY_BUCKETS];
    uint32_t time_buckets[2 * CT_IDENTITIES]; /* indexes of kernel times plus one, hashed by name and shape */
    uint32_t name_buckets[CT_NAME_BUCKETS];   /* the same, hashed by name alone: the first of a list */
    struct ct_step *step_buckets[CT_STEP_BUCKETS];
    struct ct_identity identity_storage[CT_IDENTITIES];
    struct ct_step step_storage[CT_STEPS];
    struct ct_function function_storage[CT_FUNCTIONS];
};

/* Returns the session of the device on which the call acts, created at the first GPU call there; NULL if nothing is
 * recorded. */
struct ct_session *ct_session_open(void);

/* Adapts the gate and the memory accounting of a device after the process has been attached there again. Called by the hook's
 * thread. */
void ct_session_reattached(const struct ct_membership *membership);

static inline struct ct_session *ct_session(void)
{
    struct ct_page *page = load_acquire(&ct_page);
    struct ct_device *device = CT_UNLIKELY(!page) ? NULL : ct_device_of(page);
    struct ct_session *session = device ? load_acquire(&device->session) : NULL;
    if (CT_UNLIKELY(!session) && (!device || !load_relaxed(&device->is_tried)))
        return ct_session_open();
    return session;
}

/* Waits for a lock. The holder of the session's lock is within a few stores, or allocating a new entry. */
void ct_lock_slow(_Atomic int *lock);

static inline void ct_lock(struct ct_session *session)
{
    if (CT_UNLIKELY(exchange_acquire(&session->lock, 1)))
        ct_lock_slow(&session->lock);
}

static inline void ct_unlock(struct ct_session *session)
{
    store_release(&session->lock, 0);
}

static inline unsigned ct_hash(uintptr_t handle, const struct ct_shape *shape)
{
    uint64_t hash = (uint64_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= ((uint64_t)shape->grid[0] << 32 | shape->grid[1]) * UINT64_C(0xd6e8feb86659fd93);
    hash ^= ((uint64_t)shape->block[0] << 32 | shape->shared_bytes) * UINT64_C(0xa0761d6478bd642f);
    hash += (uint64_t)shape->grid[2] + ((uint64_t)shape->block[1] << 20) + ((uint64_t)shape->block[2] << 40);
    return (unsigned)(hash * UINT64_C(0xe7037ed1a0b428db) >> 52);
}

static inline int ct_same_shape(const struct ct_shape *left, const struct ct_shape *right)
{
    uint32_t differ = left->shared_bytes ^ right->shared_bytes;
    for (int i = 0; i < 3; i++)
        differ |= (left->grid[i] ^ right->grid[i]) | (left->block[i] ^ right->block[i]);
    return !differ;
}

/* Returns the identity of a function and shape that were launched before, or NULL; lock-free. */
static inline struct ct_identity *ct_identity(struct ct_session *session, uintptr_t handle,
                                              const struct ct_shape *shape)
{
    _Static_assert(CT_IDENTITY_BUCKETS == 1 << 12, "ct_hash gives twelve bits");
    struct ct_identity *identity =
        load_acquire(&session->identities[ct_hash(handle, shape)]);
    while (identity && !(identity->handle == handle && ct_same_shape(&identity->shape, shape) &&
                         load_relaxed(&identity->function->is_alive)))
        identity = load_acquire(&identity->next);
    return identity;
}

/* Evict the entries that were used least recently, one half of all, with everything that refers to them. Called with the
 * lock held. */
void ct_identities_evict(struct ct_session *session);
void ct_functions_evict(struct ct_session *session);
void ct_steps_evict(struct ct_session *session);

/* Creates the identity of a launch that succeeded; NULL if it cannot be named. */
struct ct_identity *ct_identity_make(struct ct_session *session, enum ct_work work, uintptr_t handle,
                                     const struct ct_shape *shape);

/* Counts a launch and the interval since the last one. */
void ct_count_launch(struct ct_session *session, struct ct_identity *identity, uint64_t ticks, uintptr_t stream);
/* Reverts ct_count_launch() for a launch that failed. */
void ct_uncount_launch(struct ct_session *session, const struct ct_identity *identity);

/* Returns the step that follows, by its history. Called with the lock held. */
struct ct_step *ct_step_after(struct ct_session *session, struct ct_step *from, uint32_t number);
/* Returns a pseudorandom number; the sequence is the same in every run. Called with the lock held. */
uint64_t ct_random(struct ct_session *session);
void ct_sample_next(struct ct_session *session);

/* Returns the time since the last counted launch. Called with the lock held. */
static inline uint64_t ct_interval_ns(const struct ct_session *session, uint64_t ticks)
{
    return ct_clock_between_ns(&session->clock, session->last_ticks, ticks);
}

/* Counts a launch, `interval_ns` after the previous one. Called with the lock held. */
static inline void ct_advance(struct ct_session *session, struct ct_identity *identity, uint64_t ticks,
                              uint64_t interval_ns)
{
    struct ct_step *step = session->step;
    if (step->interval)
        ct_histogram_add(&step->interval->host, interval_ns);
    session->last_ticks = ticks;
    if (CT_UNLIKELY(!identity->kernel)) {
        fetch_add_relaxed(&session->record.header->uncounted, 1);
    } else {
        add_single_writer(&session->record.header->calls, 1);
        add_single_writer(&identity->kernel->launches, 1);
    }
    identity->used_ticks = step->used_ticks = ticks;
    session->step = CT_UNLIKELY(step->next_number != identity->number + 1)
                        ? ct_step_after(session, step, identity->number)
                        : step->next_step;
    if (CT_UNLIKELY(--session->until_sample == 0))
        ct_sample_next(session);
}

/* Records the name of a handle, until its owner or its context is destroyed. */
void ct_function_note(struct ct_session *session, uintptr_t handle, uintptr_t owner, const char *name);
/* Names an instantiated graph after its contents. */
void ct_graph_name(CUgraphExec exec, CUgraph graph);
void ct_function_set_free(struct ct_session *session, uintptr_t handle, uint32_t free_ppm);
void ct_function_set_collective(struct ct_session *session, uintptr_t handle);
/* Returns how many blocks of a kernel fit on an SM; 0: unknown. */
uint32_t ct_blocks_per_sm(uintptr_t handle, const struct ct_shape *shape);
uintptr_t ct_function_owner(struct ct_session *session, uintptr_t handle);
/* Returns how to launch the function in parts; NULL: unknown. */
struct ct_slice *ct_function_slice(struct ct_session *session, uintptr_t handle);
/* Returns whether the handle's name is known. The name stays readable after the handle is destroyed. */
int ct_function_name(struct ct_session *session, uintptr_t handle, const char **name);
/* Forgets the functions of this owner and those of unknown owner; owner 0: all except copy engines. */
void ct_functions_forget(struct ct_session *session, uintptr_t owner);

/* Counts an unknown address that was looked up under a hooked name; the call is passed on, or refused if configured. */
void ct_count_unknown_address(const char *name);
int ct_unknown_is_refused(void);
void ct_count_export_table(void);
void ct_count_memory_call(int is_free, CUresult result);

#endif

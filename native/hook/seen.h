/* Who launches what, and when? What one process has seen of its own GPU work. */
#ifndef COTENANT_HOOK_SEEN_H
#define COTENANT_HOOK_SEEN_H

#include "gate/forecast.h"
#include "hook/beside.h"
#include "hook/clock.h"
#include "hook/driver.h"
#include "hook/known.h"
#include "hook/record.h"
#include "hook/route.h"
#include "hook/trace.h"

#include <stdatomic.h>
#include <stdint.h>

/* A function, a graph or an engine under one handle. Never freed: handles may be looked up while they end. */
struct ct_function {
    uintptr_t handle, owner; /* owner: the module or library it goes with; 0: unknown */
    _Atomic int is_alive;
    uint32_t free_ppm; /* of a graph: what its kernels leave of the device in the mean; 0 also if nobody knows */
    struct ct_function *next;
    char name[CT_RECORD_NAME_BYTES];
};

struct ct_shape {
    uint32_t grid[3], block[3], shared_bytes;
};

struct ct_identity {
    uintptr_t handle;
    struct ct_shape shape;
    uint32_t number; /* of the kernel in the record */
    const struct ct_function *function;
    struct ct_record_kernel *kernel; /* NULL: there was no room, and nobody asks again */
    struct ct_identity *next;
};

/* The last launches, and what comes after them; most of the time the same as last time. */
struct ct_step {
    uint32_t after[CT_RECORD_HISTORY];
    uint32_t next_number; /* plus one */
    struct ct_record_interval *interval;
    struct ct_step *next_step;
    struct ct_forecast next, rested; /* the next launch, since this one, and since a wait that came in between */
};

enum { CT_IDENTITY_BUCKETS = 4096, CT_IDENTITIES = 8192, CT_FUNCTIONS = 8192, CT_STEP_PLACES = 16384 };

struct ct_timing;
struct ct_gateway;
struct ct_memory;

struct ct_session {
    /* What every launch touches. */
    _Atomic int lock;
    _Atomic int time_next; /* whether the next launch gets a pair of events */
    _Atomic int captures;  /* streams that are being captured */
    uint32_t sample_every, until_sample;
    uint64_t last_ticks, dice;
    struct ct_step *step;
    struct ct_gateway *gateway; /* NULL: there is no gate */
    struct ct_clock clock;
    struct ct_record record;
    struct ct_trace trace;
    struct ct_beside beside;
    struct ct_timing *timing;
    int is_measuring;
    /* What is rarely touched. */
    _Atomic uint64_t calls_when_idle; /* how many there were when the program last waited for all of them */
    _Atomic int is_device_named;
    uint32_t identity_count, function_count, step_count;
    struct ct_step overflow;
    struct ct_known known[CT_RECORD_KERNELS]; /* by the kernel's number */
    struct ct_known_file known_file;
    struct ct_sms sms;
    _Atomic(struct ct_identity *) identities[CT_IDENTITY_BUCKETS];
    struct ct_function *functions[CT_IDENTITY_BUCKETS];
    uint32_t kernel_places[2 * CT_RECORD_KERNELS]; /* numbers plus one, by name and shape */
    struct ct_step *step_places[CT_STEP_PLACES];
    struct ct_identity identity_room[CT_IDENTITIES];
    struct ct_step step_room[CT_RECORD_INTERVALS + 1];
    struct ct_function function_room[CT_FUNCTIONS];
};

/* One page that is empty again in a forked child: no lock, file or context of the parent is the child's. */
struct ct_page {
    _Atomic(struct ct_session *) session;
    _Atomic int is_tried;
    _Atomic(struct ct_memory *) memory; /* apart from the session, for a quota must not depend on a record */
    _Atomic int is_memory_tried, memory_lock;
};
extern _Atomic(struct ct_page *) ct_page;
struct ct_page *ct_page_open(void); /* NULL: this process has no memory left */

/* The session of this process, made at its first work; NULL if nothing is to be recorded. */
struct ct_session *ct_session_open(void);

static inline struct ct_session *ct_session(void)
{
    struct ct_page *page = atomic_load_explicit(&ct_page, memory_order_acquire);
    struct ct_session *session = page ? atomic_load_explicit(&page->session, memory_order_acquire) : NULL;
    if (CT_UNLIKELY(!session) && (!page || !atomic_load_explicit(&page->is_tried, memory_order_relaxed)))
        return ct_session_open();
    return session;
}

/* Waits for a lock; whoever holds the session's is between a few memory writes, or making room for a new entry. */
void ct_hold_late(_Atomic int *lock);

static inline void ct_lock(struct ct_session *session)
{
    if (CT_UNLIKELY(atomic_exchange_explicit(&session->lock, 1, memory_order_acquire)))
        ct_hold_late(&session->lock);
}

static inline void ct_unlock(struct ct_session *session)
{
    atomic_store_explicit(&session->lock, 0, memory_order_release);
}

static inline unsigned ct_hash(uintptr_t handle, const struct ct_shape *shape)
{
    uint64_t mixed = (uint64_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    mixed ^= ((uint64_t)shape->grid[0] << 32 | shape->grid[1]) * UINT64_C(0xd6e8feb86659fd93);
    mixed ^= ((uint64_t)shape->block[0] << 32 | shape->shared_bytes) * UINT64_C(0xa0761d6478bd642f);
    mixed += (uint64_t)shape->grid[2] + ((uint64_t)shape->block[1] << 20) + ((uint64_t)shape->block[2] << 40);
    return (unsigned)(mixed * UINT64_C(0xe7037ed1a0b428db) >> 52);
}

static inline int ct_same_shape(const struct ct_shape *one, const struct ct_shape *other)
{
    uint32_t differ = one->shared_bytes ^ other->shared_bytes;
    for (int i = 0; i < 3; i++)
        differ |= (one->grid[i] ^ other->grid[i]) | (one->block[i] ^ other->block[i]);
    return !differ;
}

/* The identity of a launch, if it was seen before: reads only, without a lock. */
static inline struct ct_identity *ct_identity(struct ct_session *session, uintptr_t handle,
                                              const struct ct_shape *shape)
{
    _Static_assert(CT_IDENTITY_BUCKETS == 1 << 12, "ct_hash gives twelve bits");
    struct ct_identity *found =
        atomic_load_explicit(&session->identities[ct_hash(handle, shape)], memory_order_acquire);
    while (found && !(found->handle == handle && ct_same_shape(&found->shape, shape) &&
                      atomic_load_explicit(&found->function->is_alive, memory_order_relaxed)))
        found = found->next;
    return found;
}

/* Gives a launch that succeeded an identity; NULL when there is no room for another. */
struct ct_identity *ct_identity_make(struct ct_session *session, enum ct_work work, uintptr_t handle,
                                     const struct ct_shape *shape);

/* Counts a launch and the interval since the last one. */
void ct_book(struct ct_session *session, const struct ct_identity *identity, uint64_t ticks, uintptr_t stream);
/* Takes it back: the launch failed. */
void ct_unbook(struct ct_session *session, const struct ct_identity *identity);

/* What comes after a step, looked up by its history. Under the lock. */
struct ct_step *ct_step_after(struct ct_session *session, struct ct_step *from, uint32_t number);
/* A number by chance, the same in every run of the same program. Under the lock. */
uint64_t ct_dice(struct ct_session *session);
void ct_sample_next(struct ct_session *session);

/* The same under the lock, for an identity that has a place in the record. */
static inline void ct_advance(struct ct_session *session, const struct ct_identity *identity, uint64_t ticks)
{
    struct ct_step *step = session->step;
    if (step->interval)
        ct_histogram_add(&step->interval->host, ct_clock_between_ns(&session->clock, session->last_ticks, ticks));
    session->last_ticks = ticks;
    CT_ADD(session->record.header->calls, 1);
    CT_ADD(identity->kernel->launches, 1);
    session->step = CT_UNLIKELY(step->next_number != identity->number + 1)
                        ? ct_step_after(session, step, identity->number)
                        : step->next_step;
    if (CT_UNLIKELY(session->until_sample && --session->until_sample == 0))
        ct_sample_next(session);
}

/* Names come with the handles, and go when their owner or its context does. */
void ct_function_note(struct ct_session *session, uintptr_t handle, uintptr_t owner, const char *name);
/* Names a graph that was made of this, after what is in it. */
void ct_graph_name(CUgraphExec made, CUgraph graph);
void ct_function_leaves(struct ct_session *session, uintptr_t handle, uint32_t free_ppm);
/* Blocks of a kernel that an SM holds; 0: nobody knows. */
uint32_t ct_blocks_per_sm(uintptr_t handle, const struct ct_shape *shape);
uintptr_t ct_function_owner(struct ct_session *session, uintptr_t handle);
/* The name of a handle, which stays readable whatever becomes of it; 0 if we were not told. */
int ct_function_name(struct ct_session *session, uintptr_t handle, const char **name);
/* Forgets what went with this owner, and what came from nobody knows where; 0: everything but engines. */
void ct_functions_forget(struct ct_session *session, uintptr_t owner);

/* One capture fewer; never fewer than none. */
void ct_capture_ended(void);

/* An address under a hooked name that we know nothing of: passed on, or refused if it is to be. */
void ct_seen_unknown(const char *name);
int ct_unknown_is_refused(void);
void ct_seen_export_table(void);
void ct_seen_memory(int is_free, CUresult result);

#endif

/* Identities of launches and the intervals between them: created once and then looked up. A table that is full evicts the
 * entries that were used least recently (see eviction.c). */
#define _GNU_SOURCE
#include "hook/entry/session.h"

#include "hook/launch/collective.h"
#include "hook/slice/modules.h"
#include "hook/timing/timing.h"

#include <string.h>

/* A thread that does not get the lock after this many attempts does not wait: its launch is counted without its
 * identity. */
enum { LOCK_ATTEMPTS = 2000, NAME_END = CT_RECORD_NAME_BYTES - 1 };

/* Copies into zeroed memory; a name that is too long is truncated. */
static void copy_name(char *to, const char *name)
{
    memcpy(to, name, strnlen(name, NAME_END));
}

/* -- functions (called with the lock held) -------------------------------------------------------------------------- */

static unsigned function_bucket(uintptr_t handle)
{
    return (unsigned)((uint64_t)handle * UINT64_C(0x9e3779b97f4a7c15) >> 52);
}

static struct ct_function *function_of(const struct ct_session *session, uintptr_t handle)
{
    struct ct_function *function = session->functions[function_bucket(handle)];
    while (function && !(function->handle == handle && load_relaxed(&function->is_alive)))
        function = function->next;
    return function;
}

static uint64_t hash_of_name(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return hash;
}

static struct ct_function *function_add(struct ct_session *session, uintptr_t handle, uintptr_t owner, const char *name)
{
    struct ct_function **bucket = &session->functions[function_bucket(handle)];
    const uint64_t name_hash = hash_of_name(name);
    /* A function that was unloaded and loaded again at the same address under the same name is the same function. */
    for (struct ct_function *function = *bucket; function; function = function->next)
        if (function->handle == handle && function->owner == owner && function->name_hash == name_hash) {
            store_relaxed(&function->is_alive, 1);
            return function;
        }
    if (!session->function_free && session->function_count >= CT_FUNCTIONS)
        ct_functions_evict(session);
    struct ct_function *created = session->function_free;
    if (created)
        session->function_free = created->next;
    else
        created = &session->function_storage[session->function_count++];
    created->handle = handle;
    created->owner = owner;
    created->name_hash = name_hash;
    store_relaxed(&created->slice, NULL);
    created->free_ppm = 0;
    created->is_collective = owner != CT_ENGINES && ct_name_is_collective(name);
    created->used_ticks = ct_clock_ticks(&session->clock);
    memset(created->name, 0, strnlen(created->name, NAME_END));
    copy_name(created->name, name);
    store_relaxed(&created->is_alive, 1);
    created->next = *bucket;
    return *bucket = created;
}

void ct_function_note(struct ct_session *session, uintptr_t handle, uintptr_t owner, const char *name)
{
    struct ct_slice *slice = ct_slice_find(owner, name);
    ct_lock(session);
    struct ct_function *existing = function_of(session, handle);
    if (existing && (existing->owner != owner || existing->name_hash != hash_of_name(name))) {
        /* The handle was reused; a thread that looked it up before launched the old function. */
        store_relaxed(&existing->is_alive, 0);
        existing = NULL;
    }
    if (!existing)
        existing = function_add(session, handle, owner, name);
    store_relaxed(&existing->slice, slice);
    ct_unlock(session);
}

void ct_function_set_free(struct ct_session *session, uintptr_t handle, uint32_t free_ppm)
{
    ct_lock(session);
    struct ct_function *existing = function_of(session, handle);
    if (existing)
        existing->free_ppm = free_ppm;
    ct_unlock(session);
}

void ct_function_set_collective(struct ct_session *session, uintptr_t handle)
{
    ct_lock(session);
    struct ct_function *existing = function_of(session, handle);
    if (existing)
        existing->is_collective = 1;
    ct_unlock(session);
}

uintptr_t ct_function_owner(struct ct_session *session, uintptr_t handle)
{
    ct_lock(session);
    const struct ct_function *existing = function_of(session, handle);
    uintptr_t owner = existing ? existing->owner : 0;
    ct_unlock(session);
    return owner;
}

struct ct_slice *ct_function_slice(struct ct_session *session, uintptr_t handle)
{
    ct_lock(session);
    const struct ct_function *existing = function_of(session, handle);
    struct ct_slice *slice = existing ? load_relaxed(&existing->slice) : NULL;
    ct_unlock(session);
    return slice;
}

int ct_function_name(struct ct_session *session, uintptr_t handle, const char **name)
{
    ct_lock(session);
    const struct ct_function *existing = function_of(session, handle);
    *name = existing ? existing->name : NULL;
    ct_unlock(session);
    return existing != NULL;
}

void ct_functions_forget(struct ct_session *session, uintptr_t owner)
{
    ct_lock(session);
    for (uint32_t i = 0; i < session->function_count; i++) {
        struct ct_function *function = &session->function_storage[i];
        int is_graph = function->owner == function->handle; /* a graph that replaces it will be noted */
        if (function->owner != CT_ENGINES && (owner ? !function->owner || function->owner == owner : !is_graph)) {
            store_relaxed(&function->is_alive, 0);
            store_relaxed(&function->slice, NULL);
        }
    }
    ct_unlock(session);
    ct_slice_unload(owner); /* nothing refers to its kernels any more */
}

/* -- identities ----------------------------------------------------------------------------------------------------- */

/* Asks the driver for the name of an unknown handle, which newer drivers support. The launch succeeded, so the handle
 * is valid. */
static const char *query_name(enum ct_work work, uintptr_t handle)
{
    const char *name = NULL;
    if (work == CT_WORK_GRAPH)
        return "graph";
    if (CT_NEXT(cuFuncGetName)(&name, (CUfunction)handle) == CUDA_SUCCESS && name)
        return name;
    if (CT_NEXT(cuKernelGetName)(&name, (CUkernel)handle) == CUDA_SUCCESS && name)
        return name;
    return "unnamed";
}

uint32_t ct_blocks_per_sm(uintptr_t handle, const struct ct_shape *shape)
{
    int blocks = 0;
    uint64_t threads = (uint64_t)shape->block[0] * shape->block[1] * shape->block[2];
    if (!threads || threads > INT32_MAX)
        return 0;
    CUresult result = CT_NEXT(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, (CUfunction)handle, (int)threads,
                                                                           shape->shared_bytes);
    return result == CUDA_SUCCESS && blocks > 0 ? (uint32_t)blocks : 0;
}

/* Describes a kernel in an entry of the record, or in the session's own if the record is full. */
static struct ct_record_kernel *describe(struct ct_session *session, struct ct_record_kernel *kernel,
                                         const struct ct_function *function, enum ct_work work,
                                         const struct ct_shape *shape, uint32_t blocks_per_sm)
{
    struct ct_record_kernel *described = kernel ? kernel : &session->unrecorded;
    if (!kernel)
        memset(described->name, 0, sizeof described->name);
    copy_name(described->name, function->name);
    memcpy(described->grid, shape->grid, sizeof described->grid);
    memcpy(described->block, shape->block, sizeof described->block);
    described->shared_bytes = shape->shared_bytes;
    described->work = work;
    described->blocks_per_sm = blocks_per_sm;
    return described;
}

/* Returns the hash of a kernel's whole name, its shape and its kind, by which it is identified. */
static uint64_t key_of_kernel(const struct ct_function *function, enum ct_work work, const struct ct_shape *shape)
{
    uint64_t key = function->name_hash;
    const uint32_t words[] = {shape->grid[0],  shape->grid[1],  shape->grid[2], shape->block[0],
                              shape->block[1], shape->block[2], shape->shared_bytes, work};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        key = (key ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ (key >> 29);
    return key ? key : 1; /* 0 means not in use */
}

/* Returns the index of the kernel time of this key, which several handles may share, or where to put it. */
static int find_time(const struct ct_session *session, uint64_t key, unsigned *bucket)
{
    const unsigned bucket_count = sizeof session->time_buckets / sizeof session->time_buckets[0];
    for (*bucket = (unsigned)(key >> 32) % bucket_count; session->time_buckets[*bucket];
         *bucket = (*bucket + 1) % bucket_count)
        if (session->kernel_times[session->time_buckets[*bucket] - 1].key == key)
            return 1;
    return 0;
}

/* Adds a kernel time with what is known beforehand: its profile, its layout, and other shapes of the function. */
static uint32_t time_add(struct ct_session *session, uint64_t key, const struct ct_function *function,
                         enum ct_work work, const struct ct_shape *shape, uint32_t blocks_per_sm)
{
    const uint32_t number = session->time_free ? session->time_free - 1 : session->time_count;
    struct ct_kernel_time *time = &session->kernel_times[number];
    uint32_t *name_bucket = &session->name_buckets[function->name_hash % CT_NAME_BUCKETS], record_number = CT_NO_RECORD;
    if (session->time_free)
        session->time_free = time->next_of_name;
    else
        session->time_count++;
    struct ct_record_kernel *kernel = ct_record_kernel(&session->record, &record_number);
    const struct ct_record_kernel *described = describe(session, kernel, function, work, shape, blocks_per_sm);
    *time = (struct ct_kernel_time){.key = key, .name_hash = function->name_hash,
                                    .record_number = kernel ? record_number : CT_NO_RECORD};
    if (kernel)
        ct_record_publish_kernel(&session->record);
    ct_kernel_time_find(&session->kernel_time_file, session->record.header->device, described, time);
    ct_kernel_time_set_layout(time, described, &session->sms);
    if (work == CT_WORK_KERNEL && !time->is_known)
        ct_kernel_time_estimate(time, session->kernel_times, *name_bucket);
    time->next_of_name = *name_bucket;
    *name_bucket = number + 1;
    return number;
}

static struct ct_identity *identity_add(struct ct_session *session, enum ct_work work, struct ct_function *function,
                                        const struct ct_shape *shape, uint32_t blocks_per_sm)
{
    if (!session->identity_free && session->identity_count >= CT_IDENTITIES)
        ct_identities_evict(session);
    const uint64_t key = key_of_kernel(function, work, shape);
    unsigned bucket;
    if (!find_time(session, key, &bucket)) {
        const uint32_t added = time_add(session, key, function, work, shape, blocks_per_sm);
        session->time_buckets[bucket] = added + 1;
    }
    const uint32_t number = session->time_buckets[bucket] - 1;
    struct ct_kernel_time *time = &session->kernel_times[number];
    if (work == CT_WORK_GRAPH && function->free_ppm)
        time->free_ppm = function->free_ppm;
    struct ct_record_kernel *kernels = (void *)((char *)session->record.header + CT_RECORD_KERNELS_AT);
    struct ct_record_kernel *kernel = time->record_number == CT_NO_RECORD ? NULL : &kernels[time->record_number];
    if (kernel && blocks_per_sm)
        kernel->blocks_per_sm = blocks_per_sm;
    struct ct_identity *identity = session->identity_free;
    if (identity)
        session->identity_free = load_relaxed(&identity->next);
    else
        identity = &session->identity_storage[session->identity_count++];
    function->used_ticks = ct_clock_ticks(&session->clock);
    identity->handle = function->handle;
    identity->shape = *shape;
    identity->number = number;
    identity->kernel_time = time;
    identity->record_number = time->record_number;
    identity->function = function;
    identity->is_collective = function->is_collective;
    identity->kernel = kernel;
    identity->used_ticks = function->used_ticks;
    _Atomic(struct ct_identity *) *head = &session->identities[ct_hash(function->handle, shape)];
    store_relaxed(&identity->next, load_relaxed(head));
    store_release(head, identity);
    return identity;
}

struct ct_identity *ct_identity_make(struct ct_session *session, enum ct_work work, uintptr_t handle,
                                     const struct ct_shape *shape)
{
    /* The driver is called before the lock is taken: it may block, and may call back. */
    ct_lock(session);
    struct ct_function *function = function_of(session, handle);
    ct_unlock(session);
    const char *queried_name = function ? NULL : query_name(work, handle);
    uint32_t blocks_per_sm = work == CT_WORK_KERNEL ? ct_blocks_per_sm(handle, shape) : 0;
    if (!load_acquire(&session->is_device_named))
        ct_timing_name_device(session); /* possibly by two threads: neither continues before the device has a name */
    ct_lock(session);
    struct ct_identity *identity = ct_identity(session, handle, shape); /* another thread may have created it
                                                                         * meanwhile */
    if (!identity) {
        function = function_of(session, handle); /* another thread may have evicted it meanwhile */
        if (!function && !queried_name)
            queried_name = "unnamed";
        if (!function)
            function = function_add(session, handle, 0, queried_name);
        identity = identity_add(session, work, function, shape, blocks_per_sm);
    }
    ct_unlock(session);
    return identity;
}

/* -- launches and the intervals between them ------------------------------------------------------------------------ */

/* Returns a new interval of the record for this history, or NULL if the record is full or lacks one of its kernels. */
static struct ct_record_interval *interval_of(struct ct_session *session, const uint32_t after[CT_RECORD_HISTORY])
{
    uint32_t recorded[CT_RECORD_HISTORY];
    for (int i = 0; i < CT_RECORD_HISTORY; i++) {
        recorded[i] = after[i] ? session->kernel_times[after[i] - 1].record_number + 1 : 0;
        if (after[i] && !recorded[i])
            return NULL;
    }
    struct ct_record_interval *interval = ct_record_interval(&session->record);
    if (!interval)
        return NULL;
    memcpy(interval->after, recorded, sizeof recorded);
    ct_record_publish_interval(&session->record);
    return interval;
}

static struct ct_step *find_step(struct ct_session *session, const struct ct_step *from, uint32_t number)
{
    const uint32_t after[CT_RECORD_HISTORY] = {from->after[1], from->after[2], number + 1};
    uint64_t hash = 0;
    for (int i = 0; i < CT_RECORD_HISTORY; i++)
        hash = (hash + after[i]) * UINT64_C(0x9e3779b97f4a7c15);
    unsigned bucket = (unsigned)(hash >> 40) % CT_STEP_BUCKETS;
    for (; session->step_buckets[bucket]; bucket = (bucket + 1) % CT_STEP_BUCKETS)
        if (memcmp(session->step_buckets[bucket]->after, after, sizeof after) == 0)
            return session->step_buckets[bucket];
    if (!session->step_free && session->step_count >= CT_STEPS) {
        ct_steps_evict(session);
        return find_step(session, from, number);
    }
    struct ct_step *step = session->step_free;
    if (step)
        session->step_free = step->next_step;
    else
        step = &session->step_storage[session->step_count++];
    *step = (struct ct_step){.is_used = 1, .used_ticks = session->last_ticks};
    memcpy(step->after, after, sizeof after);
    step->interval = interval_of(session, after);
    return session->step_buckets[bucket] = step;
}

struct ct_step *ct_step_after(struct ct_session *session, struct ct_step *from, uint32_t number)
{
    struct ct_step *next = find_step(session, from, number);
    from->next_number = number + 1;
    from->next_step = next;
    return next;
}

static int try_lock(struct ct_session *session)
{
    for (int i = 0; i < LOCK_ATTEMPTS; i++)
        if (!load_relaxed(&session->lock) &&
            !exchange_acquire(&session->lock, 1))
            return 1;
    return 0;
}

uint64_t ct_random(struct ct_session *session)
{
    session->rng = session->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return session->rng >> 33;
}

void ct_sample_next(struct ct_session *session)
{
    if (!session->sample_every)
        return;
    /* Not every n-th launch: in a periodic program this would always be the same kernel. */
    session->until_sample = 1 + (uint32_t)(ct_random(session) % (2 * (uint64_t)session->sample_every - 1));
    store_relaxed(&session->time_next, 1);
}

void ct_count_launch(struct ct_session *session, struct ct_identity *identity, uint64_t ticks, uintptr_t stream)
{
    if (CT_UNLIKELY(!identity || !try_lock(session))) {
        fetch_add_relaxed(&session->record.header->uncounted, 1);
        return;
    }
    ct_advance(session, identity, ticks, ct_interval_ns(session, ticks));
    if (session->trace.header)
        ct_trace_launch(&session->trace, &session->record, ct_trace_instant(&session->trace, &session->clock, ticks),
                        identity->record_number, stream, identity->kernel_time->expect_ns, 0);
    ct_unlock(session);
}

void ct_uncount_launch(struct ct_session *session, const struct ct_identity *identity)
{
    ct_lock(session);
    if (identity->kernel) {
        add_single_writer(&session->record.header->calls, -UINT64_C(1));
        add_single_writer(&identity->kernel->launches, -UINT64_C(1));
    } else {
        fetch_sub_relaxed(&session->record.header->uncounted, 1);
    }
    ct_unlock(session);
}

/* Identities of launches and the intervals between them: created once and then looked up. What does not fit the tables
 * is counted as such. */
#define _GNU_SOURCE
#include "hook/entry/session.h"

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

static struct ct_function *function_add(struct ct_session *session, uintptr_t handle, uintptr_t owner, const char *name)
{
    struct ct_function **bucket = &session->functions[function_bucket(handle)];
    /* A function that was unloaded and loaded again at the same address under the same name is the same function. */
    for (struct ct_function *function = *bucket; function; function = function->next)
        if (function->handle == handle && function->owner == owner && strncmp(function->name, name, NAME_END) == 0) {
            store_relaxed(&function->is_alive, 1);
            return function;
        }
    if (session->function_count >= CT_FUNCTIONS)
        return NULL;
    struct ct_function *created = &session->function_storage[session->function_count++];
    created->handle = handle;
    created->owner = owner;
    copy_name(created->name, name);
    store_relaxed(&created->is_alive, 1);
    created->next = *bucket;
    return *bucket = created;
}

void ct_function_note(struct ct_session *session, uintptr_t handle, uintptr_t owner, const char *name)
{
    ct_lock(session);
    struct ct_function *existing = function_of(session, handle);
    if (existing && (existing->owner != owner || strncmp(existing->name, name, NAME_END) != 0)) {
        /* The handle was reused; a thread that looked it up before launched the old function. */
        store_relaxed(&existing->is_alive, 0);
        existing = NULL;
    }
    if (!existing)
        function_add(session, handle, owner, name);
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

uintptr_t ct_function_owner(struct ct_session *session, uintptr_t handle)
{
    ct_lock(session);
    const struct ct_function *existing = function_of(session, handle);
    uintptr_t owner = existing ? existing->owner : 0;
    ct_unlock(session);
    return owner;
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
        if (function->owner != CT_ENGINES && (owner ? !function->owner || function->owner == owner : !is_graph))
            store_relaxed(&function->is_alive, 0);
    }
    ct_unlock(session);
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

static int is_same_kernel(const struct ct_record_kernel *kernel, enum ct_work work, const char *name,
                          const struct ct_shape *shape)
{
    return kernel->work == work && memcmp(kernel->grid, shape->grid, sizeof kernel->grid) == 0 &&
           memcmp(kernel->block, shape->block, sizeof kernel->block) == 0 &&
           kernel->shared_bytes == shape->shared_bytes && strncmp(kernel->name, name, NAME_END) == 0;
}

/* Returns the record's entry for this name and shape, which several handles may share. */
static struct ct_record_kernel *kernel_of(struct ct_session *session, enum ct_work work, const char *name,
                                          const struct ct_shape *shape, uint32_t *number)
{
    struct ct_record_kernel *kernels = (void *)((char *)session->record.header + CT_RECORD_KERNELS_AT);
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ ct_hash(work, shape);
    for (int i = 0; i < NAME_END && name[i]; i++)
        hash = (hash ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
    const unsigned bucket_count = sizeof session->kernel_buckets / sizeof session->kernel_buckets[0];
    unsigned bucket = (unsigned)(hash >> 32) % bucket_count;
    for (; session->kernel_buckets[bucket]; bucket = (bucket + 1) % bucket_count) {
        *number = session->kernel_buckets[bucket] - 1;
        if (is_same_kernel(&kernels[*number], work, name, shape))
            return &kernels[*number];
    }
    struct ct_record_kernel *kernel = ct_record_kernel(&session->record, number);
    if (!kernel)
        return NULL;
    copy_name(kernel->name, name);
    memcpy(kernel->grid, shape->grid, sizeof kernel->grid);
    memcpy(kernel->block, shape->block, sizeof kernel->block);
    kernel->shared_bytes = shape->shared_bytes;
    kernel->work = work;
    session->kernel_buckets[bucket] = *number + 1;
    return kernel;
}

struct ct_identity *ct_identity_make(struct ct_session *session, enum ct_work work, uintptr_t handle,
                                     const struct ct_shape *shape)
{
    /* The driver is called before the lock is taken: it may block, and may call back. */
    ct_lock(session);
    struct ct_function *function = function_of(session, handle);
    int has_capacity = session->identity_count < CT_IDENTITIES && (function || session->function_count < CT_FUNCTIONS);
    ct_unlock(session);
    if (!has_capacity)
        return NULL; /* the tables stay full, so the driver is not asked at every launch */
    const char *queried_name = function ? NULL : query_name(work, handle);
    uint32_t blocks_per_sm = work == CT_WORK_KERNEL ? ct_blocks_per_sm(handle, shape) : 0, number = 0;
    if (!load_acquire(&session->is_device_named))
        ct_timing_name_device(session); /* possibly by two threads: neither continues before the device has a name */
    ct_lock(session);
    struct ct_identity *identity = ct_identity(session, handle, shape); /* another thread may have created it
                                                                         * meanwhile */
    if (!identity && session->identity_count < CT_IDENTITIES) {
        if (!function)
            function = function_of(session, handle);
        if (!function)
            function = function_add(session, handle, 0, queried_name);
        uint32_t before = load_relaxed(&session->record.header->kernels);
        struct ct_record_kernel *kernel = function ? kernel_of(session, work, function->name, shape, &number) : NULL;
        if (kernel && blocks_per_sm)
            kernel->blocks_per_sm = blocks_per_sm;
        if (kernel && number == before)
            ct_record_publish_kernel(&session->record);
        if (kernel) {
            ct_kernel_time_find(&session->kernel_time_file, session->record.header->device, kernel,
                                &session->kernel_times[number]);
            ct_kernel_time_set_layout(&session->kernel_times[number], kernel, &session->sms);
            if (work == CT_WORK_GRAPH && function->free_ppm)
                session->kernel_times[number].free_ppm = function->free_ppm;
        }
        if (function) {
            identity = &session->identity_storage[session->identity_count++];
            *identity = (struct ct_identity){.handle = handle, .shape = *shape, .number = number, .function = function,
                                             .kernel = kernel};
            _Atomic(struct ct_identity *) *bucket = &session->identities[ct_hash(handle, shape)];
            identity->next = load_relaxed(bucket);
            store_release(bucket, identity);
        }
    }
    ct_unlock(session);
    return identity;
}

/* -- launches and the intervals between them ------------------------------------------------------------------------ */

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
    struct ct_record_interval *interval = ct_record_interval(&session->record);
    if (!interval || session->step_count > CT_RECORD_INTERVALS) {
        memcpy(session->overflow.after, after, sizeof after);
        return &session->overflow;
    }
    memcpy(interval->after, after, sizeof after);
    ct_record_publish_interval(&session->record);
    struct ct_step *step = session->step_buckets[bucket] = &session->step_storage[session->step_count++];
    memcpy(step->after, after, sizeof after);
    step->interval = interval;
    return step;
}

struct ct_step *ct_step_after(struct ct_session *session, struct ct_step *from, uint32_t number)
{
    struct ct_step *next = find_step(session, from, number);
    if (next != &session->overflow) {
        from->next_number = number + 1;
        from->next_step = next;
    }
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
    /* Not every n-th launch: in a periodic program this would always be the same kernel. */
    session->until_sample = 1 + (uint32_t)(ct_random(session) % (2 * (uint64_t)session->sample_every - 1));
    store_relaxed(&session->time_next, 1);
}

void ct_count_launch(struct ct_session *session, const struct ct_identity *identity, uint64_t ticks, uintptr_t stream)
{
    if (CT_UNLIKELY(!identity || !identity->kernel || !try_lock(session))) {
        fetch_add_relaxed(&session->record.header->uncounted, 1);
        return;
    }
    ct_advance(session, identity, ticks);
    if (session->trace.header)
        ct_trace_launch(&session->trace, &session->record, ct_trace_instant(&session->trace, &session->clock, ticks),
                        identity->number, stream, session->kernel_times[identity->number].expect_ns, 0);
    ct_unlock(session);
}

void ct_uncount_launch(struct ct_session *session, const struct ct_identity *identity)
{
    ct_lock(session);
    add_single_writer(&session->record.header->calls, -UINT64_C(1));
    add_single_writer(&identity->kernel->launches, -UINT64_C(1));
    ct_unlock(session);
}

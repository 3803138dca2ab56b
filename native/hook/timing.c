/* Pairs of events: made as they are needed, recorded around a launch in its own stream, read when both are complete.
 *
 * Nothing here waits for the device, and nothing is done while anything is captured: a capture would take our events
 * in, or be spoiled by our questions. The driver is never called with our lock held. */
#define _GNU_SOURCE
#include "hook/timing.h"

#include <string.h>
#include <sys/mman.h>

/* An event takes a place in the device's queues as a kernel does: a program that fills them must not block because of
 * us, so few pairs are under way at a time, and what finds none is not timed. */
enum { CLOSE_NS = 50, NEAR_NS = 500, CONTEXTS = 16, PAIRS = 256, SAMPLED_PAIRS = 16, HARVEST_EVERY = 16 };

struct ct_pair {
    CUevent begin, end;
    const struct ct_identity *identity;
    uint64_t untimed_before; /* a gap is one only if nothing unseen ran in it */
    uint64_t begin_ticks;    /* 0: the stream was busy, and the work follows its begin at once */
    double late_ns;          /* the host's own delay from the begin to the launch, which counts if the stream stood idle */
    double host_ns;          /* from the begin to the end as the host marked them, likewise */
    unsigned generation;
    int context;
    struct ct_pair *next;
};

struct context {
    CUcontext handle;
    unsigned generation; /* counts the contexts that had this place */
    int is_broken;       /* the driver refused something: the program will hear of it soon enough */
    struct ct_pair *spare, *first, *last; /* ready; recorded, oldest first */
    struct ct_pair *reference;            /* the last one read: the next is placed in time by its end */
    double reference_end_ns, covered_until_ns;
    const struct ct_identity *covered_by;
};

struct ct_timing {
    _Atomic int lock;
    _Atomic int is_harvesting;
    _Atomic unsigned waiting; /* recorded and not read */
    struct context contexts[CONTEXTS];
    struct ct_pair *unused;
    struct ct_pair room[PAIRS];
};

struct ct_timing *ct_timing_make(void)
{
    struct ct_timing *timing =
        mmap(NULL, sizeof *timing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (timing == MAP_FAILED)
        return NULL;
    for (int i = 0; i < PAIRS; i++) {
        timing->room[i].next = timing->unused;
        timing->unused = &timing->room[i];
    }
    return timing;
}

void ct_timing_unmake(struct ct_timing *timing)
{
    if (timing)
        munmap(timing, sizeof *timing);
}

static void hold(_Atomic int *lock)
{
    while (atomic_exchange_explicit(lock, 1, memory_order_acquire))
        ;
}

static void let_go(_Atomic int *lock)
{
    atomic_store_explicit(lock, 0, memory_order_release);
}

static CUcontext current(void)
{
    CUcontext context = NULL;
    return CT_NEXT(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static struct context *place_of(struct ct_timing *timing, CUcontext handle)
{
    struct context *empty = NULL;
    for (int i = 0; i < CONTEXTS; i++) {
        if (timing->contexts[i].handle == handle)
            return &timing->contexts[i];
        if (!timing->contexts[i].handle && !empty)
            empty = &timing->contexts[i];
    }
    return empty;
}

/* A pair for this context: one that was used before, or an empty one. */
static struct ct_pair *take(struct ct_timing *timing, CUcontext handle)
{
    struct ct_pair *pair = NULL;
    hold(&timing->lock);
    struct context *context = place_of(timing, handle);
    if (context && !context->is_broken) {
        context->handle = handle;
        struct ct_pair **from = context->spare ? &context->spare : &timing->unused;
        pair = *from;
        if (pair) {
            *from = pair->next;
            pair->context = (int)(context - timing->contexts);
            pair->generation = context->generation;
        }
    }
    let_go(&timing->lock);
    return pair;
}

static void give_back(struct ct_timing *timing, struct ct_pair *pair, int is_broken)
{
    hold(&timing->lock);
    struct context *context = &timing->contexts[pair->context];
    if (context->generation == pair->generation) {
        pair->next = context->spare;
        context->spare = pair;
        context->is_broken |= is_broken;
    } else { /* its context ended meanwhile, and its events with it */
        pair->begin = pair->end = NULL;
        pair->next = timing->unused;
        timing->unused = pair;
    }
    let_go(&timing->lock);
}

static int is_capturing(struct ct_session *session, CUstream stream, int is_twin)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (atomic_load_explicit(&session->captures, memory_order_relaxed))
        return 1;
    CUresult result = is_twin ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
                              : CT_NEXT(cuStreamIsCapturing)(stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult mark(CUevent event, CUstream stream, int is_twin)
{
    return is_twin ? CT_NEXT(cuEventRecord_ptsz)(event, stream) : CT_NEXT(cuEventRecord)(event, stream);
}

/* While measuring, the events tell afterwards. Otherwise only what is known for nothing counts: that nothing was launched
 * since the program last waited for everything. */
static int may_be_idle(struct ct_session *session)
{
    return session->is_measuring || atomic_load_explicit(&session->calls_when_idle, memory_order_relaxed) ==
                                        atomic_load_explicit(&session->record.header->calls, memory_order_relaxed);
}

struct ct_pair *ct_timing_begin(struct ct_session *session, CUstream stream, int is_twin)
{
    struct ct_record_header *header = session->record.header;
    struct ct_timing *timing = session->timing;
    if (!session->is_measuring) {
        atomic_store_explicit(&session->time_next, 0, memory_order_relaxed);
        if (atomic_load_explicit(&header->crowded, memory_order_relaxed))
            return NULL; /* what a neighbour slows down says nothing of the kernel */
        if (atomic_load_explicit(&timing->waiting, memory_order_relaxed) >= SAMPLED_PAIRS)
            return NULL; /* the next call that waits will read them */
    }
    CUcontext context = current();
    if (!context || is_capturing(session, stream, is_twin))
        return NULL;
    struct ct_pair *pair = take(timing, context);
    if (!pair) {
        ct_timing_harvest(session);
        pair = take(timing, context);
    }
    if (!pair)
        return NULL;
    pair->begin_ticks = 0;
    if ((!pair->begin && CT_NEXT(cuEventCreate)(&pair->begin, CU_EVENT_DEFAULT) != CUDA_SUCCESS) ||
        (!pair->end && CT_NEXT(cuEventCreate)(&pair->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS)) {
        give_back(timing, pair, 1);
        return NULL;
    }
    pair->untimed_before = atomic_load_explicit(&header->untimed, memory_order_relaxed);
    if (may_be_idle(session))
        pair->begin_ticks = ct_clock_ticks(&session->clock);
    if (mark(pair->begin, stream, is_twin) != CUDA_SUCCESS) {
        give_back(timing, pair, 1);
        return NULL;
    }
    return pair;
}

void ct_timing_end(struct ct_session *session, struct ct_pair *pair, const struct ct_identity *identity,
                   uint64_t launch_ticks, CUstream stream, int is_twin)
{
    struct ct_timing *timing = session->timing;
    const uint64_t begin_ticks = pair->begin_ticks;
    pair->late_ns = begin_ticks ? (double)ct_clock_between_ns(&session->clock, begin_ticks, launch_ticks) : 0;
    pair->host_ns =
        begin_ticks ? (double)ct_clock_between_ns(&session->clock, begin_ticks, ct_clock_ticks(&session->clock)) : 0;
    if (!identity || mark(pair->end, stream, is_twin) != CUDA_SUCCESS) {
        give_back(timing, pair, identity != NULL);
        return;
    }
    atomic_fetch_add_explicit(&session->record.header->timed, 1, memory_order_relaxed);
    pair->identity = identity;
    pair->next = NULL;
    hold(&timing->lock);
    struct context *context = &timing->contexts[pair->context];
    int is_there = context->generation == pair->generation;
    if (is_there) {
        *(context->first ? &context->last->next : &context->first) = pair;
        context->last = pair;
    }
    let_go(&timing->lock);
    if (!is_there)
        give_back(timing, pair, 0);
    else if (atomic_fetch_add_explicit(&timing->waiting, 1, memory_order_relaxed) % HARVEST_EVERY == HARVEST_EVERY - 1)
        ct_timing_harvest(session);
}

/* -- reading them: one thread at a time -------------------------------------------------------------------------- */

static uint64_t whole_ns(double ns)
{
    return ns > 0 ? (uint64_t)(ns + 0.5) : 0;
}

/* When the begin was marked, by the device's own time; whether the device stood idle then. */
static int place_begin(const struct context *context, const struct ct_pair *pair, double *begin_ns, int *is_idle)
{
    float since_ms = 0;
    const struct ct_pair *reference = context->reference;
    if (reference && CT_NEXT(cuEventElapsedTime)(&since_ms, reference->end, pair->begin) != CUDA_SUCCESS)
        return 0;
    *begin_ns = context->reference_end_ns + 1e6 * (double)since_ms;
    *is_idle = !reference || *begin_ns > context->covered_until_ns + CLOSE_NS;
    return 1;
}

/* Where this work lies on the device's own time, and what the device did before it. */
static void place_in_time(struct ct_session *session, struct context *context, const struct ct_pair *pair,
                          double begin_ns, double length_ns)
{
    struct ct_record_header *header = session->record.header;
    const struct ct_pair *reference = context->reference;
    double end_ns = begin_ns + length_ns;
    int is_next = reference && reference->untimed_before == pair->untimed_before;
    if (!reference || begin_ns >= context->covered_until_ns) {
        uint64_t gap_ns = reference ? whole_ns(begin_ns - context->covered_until_ns) : 0;
        if (is_next)
            ct_histogram_add(&context->covered_by->kernel->gap, gap_ns);
        CT_ADD(header->span_ns, gap_ns + whole_ns(length_ns));
        CT_ADD(header->busy_ns, whole_ns(length_ns));
    } else { /* it ran beside what came before */
        uint64_t more_ns = whole_ns(end_ns - context->covered_until_ns);
        if (is_next)
            ct_histogram_add(&context->covered_by->kernel->gap, 0);
        CT_ADD(header->span_ns, more_ns);
        CT_ADD(header->busy_ns, more_ns);
    }
    if (!reference || end_ns > context->covered_until_ns) {
        context->covered_until_ns = end_ns;
        context->covered_by = pair->identity;
    }
    context->reference_end_ns = end_ns;
}

/* Begun on an idle stream, and its end marked by the device as soon as by the host: such a kernel was over before the
 * mark, which shows only a bound of its time. The least bound is the best that is known, until a run that was marked
 * in time tells better. */
static void add_length(struct ct_record_kernel *kernel, uint64_t length_ns, int is_bound)
{
    uint64_t count = atomic_load_explicit(&kernel->device.count, memory_order_relaxed);
    if (is_bound && count &&
        (!kernel->is_bound || atomic_load_explicit(&kernel->device.lowest, memory_order_relaxed) <= length_ns))
        return;
    if (kernel->is_bound || is_bound) {
        atomic_store_explicit(&kernel->device.count, 0, memory_order_relaxed);
        atomic_store_explicit(&kernel->device.total, 0, memory_order_relaxed);
        atomic_store_explicit(&kernel->device.highest, 0, memory_order_relaxed);
        for (unsigned i = 0; count && i < CT_RECORD_BUCKETS; i++)
            atomic_store_explicit(&kernel->device.buckets[i], 0, memory_order_relaxed);
    }
    kernel->is_bound = (uint32_t)is_bound;
    ct_histogram_add(&kernel->device, length_ns);
}

/* Reads the oldest pair; 0 when it is not complete or cannot be read. */
static int read_oldest(struct ct_session *session, struct context *context)
{
    struct ct_timing *timing = session->timing;
    float length_ms = 0;
    hold(&timing->lock);
    struct ct_pair *pair = context->first;
    let_go(&timing->lock);
    if (!pair)
        return 0;
    CUresult result = CT_NEXT(cuEventElapsedTime)(&length_ms, pair->begin, pair->end);
    if (result == CUDA_ERROR_NOT_READY)
        return 0;
    int is_read = result == CUDA_SUCCESS, is_idle = 1;
    double marked_ns = 1e6 * (double)length_ms, begin_ns = 0;
    if (is_read && session->is_measuring)
        is_read = place_begin(context, pair, &begin_ns, &is_idle);
    is_idle = is_idle && pair->begin_ticks;
    double late_ns = is_idle ? pair->late_ns : 0, length_ns = marked_ns > late_ns ? marked_ns - late_ns : 0;
    if (is_read && session->is_measuring)
        place_in_time(session, context, pair, begin_ns + late_ns, length_ns);
    if (is_read && !atomic_load_explicit(&session->record.header->crowded, memory_order_relaxed))
        add_length(pair->identity->kernel, whole_ns(length_ns), is_idle && marked_ns <= pair->host_ns + NEAR_NS);
    hold(&timing->lock);
    context->first = pair->next;
    context->is_broken |= !is_read;
    struct ct_pair *done = context->reference;
    context->reference = pair;
    let_go(&timing->lock);
    atomic_fetch_sub_explicit(&timing->waiting, 1, memory_order_relaxed);
    if (done)
        give_back(timing, done, 0);
    return is_read;
}

static struct context *known(struct ct_timing *timing, CUcontext handle)
{
    hold(&timing->lock);
    struct context *context = place_of(timing, handle);
    if (context && context->handle != handle)
        context = NULL;
    let_go(&timing->lock);
    return context;
}

void ct_timing_harvest(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    if (!atomic_load_explicit(&timing->waiting, memory_order_relaxed) ||
        atomic_load_explicit(&session->captures, memory_order_relaxed) ||
        atomic_exchange_explicit(&timing->is_harvesting, 1, memory_order_acquire))
        return;
    CUcontext handle = current();
    struct context *context = handle ? known(timing, handle) : NULL;
    if (context && !context->is_broken)
        while (read_oldest(session, context))
            ;
    let_go(&timing->is_harvesting);
}

static void destroy_all(struct ct_timing *timing, struct ct_pair *pairs)
{
    while (pairs) {
        struct ct_pair *pair = pairs;
        pairs = pair->next;
        if (pair->begin)
            CT_NEXT(cuEventDestroy_v2)(pair->begin);
        if (pair->end)
            CT_NEXT(cuEventDestroy_v2)(pair->end);
        hold(&timing->lock);
        pair->begin = pair->end = NULL;
        pair->next = timing->unused;
        timing->unused = pair;
        let_go(&timing->lock);
    }
}

void ct_timing_drop(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    ct_timing_harvest(session);
    hold(&timing->is_harvesting);
    for (int i = 0; i < CONTEXTS; i++) {
        hold(&timing->lock);
        struct context *context = &timing->contexts[i], old = *context;
        memset(context, 0, sizeof *context);
        context->generation = old.generation + 1;
        let_go(&timing->lock);
        for (struct ct_pair *pair = old.first; pair; pair = pair->next)
            atomic_fetch_sub_explicit(&timing->waiting, 1, memory_order_relaxed);
        if (old.reference)
            old.reference->next = NULL;
        destroy_all(timing, old.spare);
        destroy_all(timing, old.first);
        destroy_all(timing, old.reference);
    }
    let_go(&timing->is_harvesting);
}

void ct_timing_name_device(struct ct_session *session)
{
    CUdevice device;
    char name[sizeof session->record.header->device] = {0};
    if (CT_NEXT(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        CT_NEXT(cuDeviceGetName)(name, sizeof name - 1, device) != CUDA_SUCCESS)
        return;
    ct_lock(session);
    memcpy(session->record.header->device, name, sizeof name);
    ct_unlock(session);
}

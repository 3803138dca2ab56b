/* Pairs of events: created on demand, recorded around a launch in its stream, and read when both are complete.
 *
 * Nothing here waits for the device. Nothing is done during a capture, which would include the events or be invalidated
 * by the queries. The driver is never called with the lock held. */
#define _GNU_SOURCE
#include "hook/timing/timing.h"

#include "hook/launch/capture_mode.h"
#include "hook/launch/partition.h"
#include "hook/timing/pairs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* An event occupies the device's queues like a kernel: so that a program that fills them does not block because of the
 * hook, few pairs are in flight at a time, and launches without one are not timed. */
enum { SAMPLED_PAIRS = 16, COLLECT_EVERY = 16, POLLS = 500, POLL_NS = 50 * 1000, FAILED_WAITS_MAX = 4 };
static const double MIN_PERCENT = 0.01; /* smaller settings are treated as this */

struct ct_timing *ct_timing_make(void)
{
    struct ct_timing *timing =
        mmap(NULL, sizeof *timing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (timing == MAP_FAILED)
        return NULL;
    for (int i = 0; i < CT_PAIRS; i++) {
        timing->storage[i].next = timing->unused;
        timing->unused = &timing->storage[i];
    }
    return timing;
}

void ct_timing_destroy(struct ct_timing *timing)
{
    if (timing)
        munmap(timing, sizeof *timing);
}

static struct ct_timed_context *context_slot(struct ct_timing *timing, CUcontext handle)
{
    struct ct_timed_context *empty = NULL;
    for (int i = 0; i < CT_TIMED_CONTEXTS; i++) {
        if (timing->contexts[i].handle == handle)
            return &timing->contexts[i];
        if (!timing->contexts[i].handle && !empty)
            empty = &timing->contexts[i];
    }
    return empty;
}

/* Returns a pair for this context: a used one, or an empty one. */
static struct ct_pair *take_pair(struct ct_timing *timing, CUcontext handle)
{
    struct ct_pair *pair = NULL;
    ct_timing_lock(&timing->lock);
    struct ct_timed_context *context = context_slot(timing, handle);
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
    ct_timing_unlock(&timing->lock);
    return pair;
}

void ct_pair_give_back(struct ct_timing *timing, struct ct_pair *pair, int is_broken)
{
    ct_timing_lock(&timing->lock);
    struct ct_timed_context *context = &timing->contexts[pair->context];
    if (context->generation == pair->generation) {
        pair->next = context->spare;
        context->spare = pair;
        context->is_broken |= is_broken;
    } else { /* its context was destroyed meanwhile, and its events with it */
        pair->begin = pair->end = NULL;
        pair->next = timing->unused;
        timing->unused = pair;
    }
    ct_timing_unlock(&timing->lock);
}

/* Returns whether the stream may be idle. While measuring, the events show it afterwards. Otherwise the stream is idle
 * only if nothing was launched since the program last waited for everything. */
static int may_be_idle(struct ct_session *session)
{
    return session->is_measuring || load_relaxed(&session->calls_when_idle) ==
                                        load_relaxed(&session->record.header->calls);
}

/* Returns whether a pair is available, or none will ever be. */
static int has_pair(struct ct_timing *timing, CUcontext handle)
{
    ct_timing_lock(&timing->lock);
    const struct ct_timed_context *context = context_slot(timing, handle);
    int is_available = !context || context->is_broken || context->spare || timing->unused;
    ct_timing_unlock(&timing->lock);
    return is_available;
}

void ct_timing_await_pair(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    CUcontext context = ct_current_context();
    const int saved_errno = errno;
    for (int polls = 0; context && !has_pair(timing, context); polls++) {
        const struct timespec interval = {.tv_nsec = POLL_NS};
        if (load_relaxed(&session->captures) ||
            load_relaxed(&timing->failed_waits) >= FAILED_WAITS_MAX)
            break;
        if (polls == POLLS) {
            fetch_add_relaxed(&timing->failed_waits, 1);
            break;
        }
        if (polls)
            nanosleep(&interval, NULL);
        ct_timing_collect(session);
    }
    errno = saved_errno;
}

int ct_timing_must_wait(struct ct_session *session, CUstream stream, int is_per_thread)
{
    CUstreamCaptureMode mode;
    if (session->gateway->gate.is_mps || ct_membership_alone_since(session->membership) ||
        ct_others_quiescent(session).launches)
        return 0;
    int was_relaxed = ct_capture_relax(&mode);
    const int is_idle = !ct_is_capturing(session, stream, is_per_thread) &&
                        (is_per_thread ? CT_NEXT(cuStreamQuery_ptsz)(stream)
                         : CT_NEXT(cuStreamQuery)(stream)) == CUDA_SUCCESS;
    ct_capture_restore(was_relaxed, mode);
    return is_idle;
}

static struct ct_pair *begin_relaxed(struct ct_session *session, CUstream stream, int is_per_thread,
                                     uint64_t alone_since,
                                     const struct ct_quiescence *quiescence)
{
    struct ct_record_header *header = session->record.header;
    struct ct_timing *timing = session->timing;
    CUcontext context = ct_current_context();
    if (!context || ct_is_capturing(session, stream, is_per_thread))
        return NULL;
    struct ct_pair *pair = take_pair(timing, context);
    if (!pair) {
        ct_timing_collect(session);
        pair = take_pair(timing, context);
    }
    if (!pair)
        return NULL;
    pair->begin_ticks = 0;
    pair->charges = 0;
    pair->part_blocks = 0;
    pair->is_variant = 0;
    pair->has_waited = 0;
    pair->alone_since = alone_since;
    pair->quiescence = *quiescence;
    if ((!pair->begin && CT_NEXT(cuEventCreate)(&pair->begin, CU_EVENT_DEFAULT) != CUDA_SUCCESS) ||
        (!pair->end && CT_NEXT(cuEventCreate)(&pair->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS)) {
        ct_pair_give_back(timing, pair, 1);
        return NULL;
    }
    pair->untimed_before = load_relaxed(&header->untimed);
    if (may_be_idle(session))
        pair->begin_ticks = ct_clock_ticks(&session->clock);
    pair->begin_event_ticks = ct_clock_ticks(&session->clock);
    if (ct_record_event(pair->begin, stream, is_per_thread) != CUDA_SUCCESS) {
        ct_pair_give_back(timing, pair, 0); /* possibly a stream of another context; then the launch will fail as
                                             * well */
        return NULL;
    }
    return pair;
}

struct ct_pair *ct_timing_begin(struct ct_session *session, CUstream stream, int is_per_thread, int must_bound)
{
    struct ct_timing *timing = session->timing;
    const uint64_t alone_since = ct_membership_alone_since(session->membership);
    const struct ct_quiescence quiescence = session->gateway ? ct_others_quiescent(session) : (struct ct_quiescence){0};
    CUstreamCaptureMode mode;
    if (!session->is_measuring) {
        store_relaxed(&session->time_next, 0);
        if (!alone_since && !quiescence.launches && !must_bound)
            return NULL; /* a measurement next to an active neighbour does not show the kernel's own time */
        if (load_relaxed(&timing->waiting) >= SAMPLED_PAIRS)
            ct_timing_collect(session); /* a program that never waits would use them up */
        if (load_relaxed(&timing->waiting) >= SAMPLED_PAIRS)
            return NULL;
    }
    int was_relaxed = ct_capture_relax(&mode);
    struct ct_pair *pair = begin_relaxed(session, stream, is_per_thread, alone_since, &quiescence);
    ct_capture_restore(was_relaxed, mode);
    return pair;
}

void ct_timing_end(struct ct_session *session, struct ct_pair *pair, const struct ct_identity *identity,
                   uint64_t launch_ticks, CUstream stream, int is_per_thread)
{
    struct ct_timing *timing = session->timing;
    const uint64_t begin_ticks = pair->begin_ticks;
    pair->gap_ns = (double)ct_clock_between_ns(&session->clock, pair->begin_event_ticks,
                                               ct_clock_ticks(&session->clock));
    pair->late_ns = begin_ticks ? (double)ct_clock_between_ns(&session->clock, begin_ticks, launch_ticks) : 0;
    pair->host_ns =
        begin_ticks ? (double)ct_clock_between_ns(&session->clock, begin_ticks, ct_clock_ticks(&session->clock)) : 0;
    if (!identity || ct_record_event(pair->end, stream, is_per_thread) != CUDA_SUCCESS) {
        ct_pair_give_back(timing, pair, identity != NULL);
        return;
    }
    fetch_add_relaxed(&session->record.header->timed, 1);
    pair->identity = identity;
    pair->identity_generation = identity->generation;
    pair->next = NULL;
    ct_timing_lock(&timing->lock);
    struct ct_timed_context *context = &timing->contexts[pair->context];
    int is_valid = context->generation == pair->generation;
    if (is_valid) {
        *(context->first ? &context->last->next : &context->first) = pair;
        context->last = pair;
    }
    ct_timing_unlock(&timing->lock);
    if (!is_valid)
        ct_pair_give_back(timing, pair, 0);
    else if (fetch_add_relaxed(&timing->waiting, 1) % COLLECT_EVERY == COLLECT_EVERY - 1)
        ct_timing_collect(session);
}

static struct ct_timed_context *find_context(struct ct_timing *timing, CUcontext handle)
{
    ct_timing_lock(&timing->lock);
    struct ct_timed_context *context = context_slot(timing, handle);
    if (context && context->handle != handle)
        context = NULL;
    ct_timing_unlock(&timing->lock);
    return context;
}

void ct_timing_collect(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    if (!load_relaxed(&timing->waiting) ||
        load_relaxed(&session->captures) ||
        exchange_acquire(&timing->is_collecting, 1))
        return;
    CUcontext handle = ct_current_context();
    struct ct_timed_context *context = handle ? find_context(timing, handle) : NULL;
    if (context && !context->is_broken) {
        CUstreamCaptureMode mode;
        int was_relaxed = ct_capture_relax(&mode);
        while (ct_pair_read_oldest(session, context))
            ;
        ct_capture_restore(was_relaxed, mode);
    }
    ct_timing_unlock(&timing->is_collecting);
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
        ct_timing_lock(&timing->lock);
        pair->begin = pair->end = NULL;
        pair->next = timing->unused;
        timing->unused = pair;
        ct_timing_unlock(&timing->lock);
    }
}

void ct_timing_drop(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    ct_timing_collect(session);
    ct_timing_lock(&timing->is_collecting);
    for (int i = 0; i < CT_TIMED_CONTEXTS; i++) {
        ct_timing_lock(&timing->lock);
        struct ct_timed_context *context = &timing->contexts[i], old = *context;
        memset(context, 0, sizeof *context);
        context->generation = old.generation + 1;
        ct_timing_unlock(&timing->lock);
        for (struct ct_pair *pair = old.first; pair; pair = pair->next)
            fetch_sub_relaxed(&timing->waiting, 1);
        if (old.reference)
            old.reference->next = NULL;
        destroy_all(timing, old.spare);
        destroy_all(timing, old.first);
        destroy_all(timing, old.reference);
    }
    ct_timing_unlock(&timing->is_collecting);
}

static int is_under_mps(CUdevice device)
{
    int is_mps = 0;
    return CT_NEXT(cuDeviceGetAttribute)(&is_mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) == CUDA_SUCCESS && is_mps;
}

/* Under MPS the device reports as many SMs as the client may use. Blocks of a client below normal priority give way to
 * those of others. */
static struct ct_sms sms_of(CUdevice device, int is_mps)
{
    const char *priority = getenv("CUDA_MPS_CLIENT_PRIORITY"),
        *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const double percent = is_mps && percentage ? strtod(percentage, NULL) : 100;
    int sm_count = 0;
    struct ct_sms sms = {0};
    if (CT_NEXT(cuDeviceGetAttribute)(&sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
        sm_count <= 0)
        return sms;
    sms.usable = sms.total = (uint32_t)sm_count;
    if (percent > 0 && percent < 100)
        sms.total = (uint32_t)(100 * sm_count / (percent > MIN_PERCENT ? percent : MIN_PERCENT));
    if (is_mps && priority && strcmp(priority, "1") == 0)
        sms.yielding = sms.usable;
    return sms;
}

void ct_timing_name_device(struct ct_session *session)
{
    CUdevice device;
    char name[sizeof session->record.header->device] = {0};
    if (CT_NEXT(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        CT_NEXT(cuDeviceGetName)(name, sizeof name - 1, device) != CUDA_SUCCESS)
        return; /* there is no context yet: the next launch tries again */
    const int is_mps = is_under_mps(device);
    const struct ct_sms sms = sms_of(device, is_mps);
    const uint32_t sm_step_ppm = is_mps && session->gateway ? ct_partition_step(device) : 0;
    ct_lock(session);
    session->sms = sms;
    if (session->gateway) {
        session->gateway->gate.is_mps = is_mps;
        session->gateway->sm_step_ppm = sm_step_ppm;
    }
    memcpy(session->record.header->device, name, sizeof name);
    ct_unlock(session);
    store_release(&session->is_device_named, 1);
}

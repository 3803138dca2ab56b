/* Pairs of events: made as they are needed, recorded around a launch in its own stream, read when both are complete.
 *
 * Nothing here waits for the device, and nothing is done while anything is captured: a capture would take our events
 * in, or be spoiled by our questions. The driver is never called with our lock held. */
#define _GNU_SOURCE
#include "hook/timing.h"

#include "hook/asking.h"
#include "hook/gateway.h"
#include "hook/pairs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* An event takes a place in the device's queues as a kernel does: a program that fills them must not block because of
 * us, so few pairs are under way at a time, and what finds none is not timed. */
enum { SAMPLED_PAIRS = 16, HARVEST_EVERY = 16, LOOKS = 500, LOOK_NS = 50 * 1000, IN_VAIN = 4 };
static const double LEAST_PERCENT = 0.01; /* less is no part of any device */

struct ct_timing *ct_timing_make(void)
{
    struct ct_timing *timing =
        mmap(NULL, sizeof *timing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (timing == MAP_FAILED)
        return NULL;
    for (int i = 0; i < CT_PAIRS; i++) {
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

static struct ct_timed_context *place_of(struct ct_timing *timing, CUcontext handle)
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

/* A pair for this context: one that was used before, or an empty one. */
static struct ct_pair *take(struct ct_timing *timing, CUcontext handle)
{
    struct ct_pair *pair = NULL;
    ct_timing_hold(&timing->lock);
    struct ct_timed_context *context = place_of(timing, handle);
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
    ct_timing_let_go(&timing->lock);
    return pair;
}

void ct_pair_give_back(struct ct_timing *timing, struct ct_pair *pair, int is_broken)
{
    ct_timing_hold(&timing->lock);
    struct ct_timed_context *context = &timing->contexts[pair->context];
    if (context->generation == pair->generation) {
        pair->next = context->spare;
        context->spare = pair;
        context->is_broken |= is_broken;
    } else { /* its context ended meanwhile, and its events with it */
        pair->begin = pair->end = NULL;
        pair->next = timing->unused;
        timing->unused = pair;
    }
    ct_timing_let_go(&timing->lock);
}

/* While measuring, the events tell afterwards. Otherwise only what is known for nothing counts: that nothing was launched
 * since the program last waited for everything. */
static int may_be_idle(struct ct_session *session)
{
    return session->is_measuring || atomic_load_explicit(&session->calls_when_idle, memory_order_relaxed) ==
                                        atomic_load_explicit(&session->record.header->calls, memory_order_relaxed);
}

static int has_pair(struct ct_timing *timing, CUcontext handle)
{
    ct_timing_hold(&timing->lock);
    const struct ct_timed_context *context = place_of(timing, handle);
    int is_there = !context || context->is_broken || context->spare || timing->unused;
    ct_timing_let_go(&timing->lock);
    return is_there;
}

void ct_timing_await_pair(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    CUcontext context = ct_current_context();
    const int kept_errno = errno;
    for (int looks = 0; context && !has_pair(timing, context); looks++) {
        const struct timespec moment = {.tv_nsec = LOOK_NS};
        if (atomic_load_explicit(&session->captures, memory_order_relaxed) ||
            atomic_load_explicit(&timing->in_vain, memory_order_relaxed) >= IN_VAIN)
            break;
        if (looks == LOOKS) {
            atomic_fetch_add_explicit(&timing->in_vain, 1, memory_order_relaxed);
            break;
        }
        if (looks)
            nanosleep(&moment, NULL);
        ct_timing_harvest(session);
    }
    errno = kept_errno;
}

int ct_timing_must_wait(struct ct_session *session, CUstream stream, int is_twin)
{
    CUstreamCaptureMode mode;
    if (session->gateway->gate.is_mps || ct_alone_since(&session->beside) || ct_others_still(session).launches)
        return 0;
    int is_relaxed = ct_relax(&mode);
    const int is_idle = !ct_is_capturing(session, stream, is_twin) &&
                        (is_twin ? CT_NEXT(cuStreamQuery_ptsz)(stream) : CT_NEXT(cuStreamQuery)(stream)) == CUDA_SUCCESS;
    ct_tighten(is_relaxed, mode);
    return is_idle;
}

static struct ct_pair *begin_relaxed(struct ct_session *session, CUstream stream, int is_twin, uint64_t alone_since,
                                     const struct ct_still *still)
{
    struct ct_record_header *header = session->record.header;
    struct ct_timing *timing = session->timing;
    CUcontext context = ct_current_context();
    if (!context || ct_is_capturing(session, stream, is_twin))
        return NULL;
    struct ct_pair *pair = take(timing, context);
    if (!pair) {
        ct_timing_harvest(session);
        pair = take(timing, context);
    }
    if (!pair)
        return NULL;
    pair->begin_ticks = 0;
    pair->charges = 0;
    pair->has_waited = 0;
    pair->alone_since = alone_since;
    pair->still = *still;
    if ((!pair->begin && CT_NEXT(cuEventCreate)(&pair->begin, CU_EVENT_DEFAULT) != CUDA_SUCCESS) ||
        (!pair->end && CT_NEXT(cuEventCreate)(&pair->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS)) {
        ct_pair_give_back(timing, pair, 1);
        return NULL;
    }
    pair->untimed_before = atomic_load_explicit(&header->untimed, memory_order_relaxed);
    if (may_be_idle(session))
        pair->begin_ticks = ct_clock_ticks(&session->clock);
    pair->marked_ticks = ct_clock_ticks(&session->clock);
    if (ct_mark(pair->begin, stream, is_twin) != CUDA_SUCCESS) {
        ct_pair_give_back(timing, pair, 0); /* perhaps no stream of this context, and the launch will fail as well */
        return NULL;
    }
    return pair;
}

struct ct_pair *ct_timing_begin(struct ct_session *session, CUstream stream, int is_twin, int must_bound)
{
    struct ct_timing *timing = session->timing;
    const uint64_t alone_since = ct_alone_since(&session->beside);
    const struct ct_still still = session->gateway ? ct_others_still(session) : (struct ct_still){0};
    CUstreamCaptureMode mode;
    if (!session->is_measuring) {
        atomic_store_explicit(&session->time_next, 0, memory_order_relaxed);
        if (!alone_since && !still.launches && !must_bound)
            return NULL; /* what a neighbour slows down says nothing of the kernel */
        if (atomic_load_explicit(&timing->waiting, memory_order_relaxed) >= SAMPLED_PAIRS)
            ct_timing_harvest(session); /* a program that never waits would fill them for good */
        if (atomic_load_explicit(&timing->waiting, memory_order_relaxed) >= SAMPLED_PAIRS)
            return NULL;
    }
    int is_relaxed = ct_relax(&mode);
    struct ct_pair *pair = begin_relaxed(session, stream, is_twin, alone_since, &still);
    ct_tighten(is_relaxed, mode);
    return pair;
}

void ct_timing_end(struct ct_session *session, struct ct_pair *pair, const struct ct_identity *identity,
                   uint64_t launch_ticks, CUstream stream, int is_twin)
{
    struct ct_timing *timing = session->timing;
    const uint64_t begin_ticks = pair->begin_ticks;
    pair->gap_ns = (double)ct_clock_between_ns(&session->clock, pair->marked_ticks, ct_clock_ticks(&session->clock));
    pair->late_ns = begin_ticks ? (double)ct_clock_between_ns(&session->clock, begin_ticks, launch_ticks) : 0;
    pair->host_ns =
        begin_ticks ? (double)ct_clock_between_ns(&session->clock, begin_ticks, ct_clock_ticks(&session->clock)) : 0;
    if (!identity || !identity->kernel || ct_mark(pair->end, stream, is_twin) != CUDA_SUCCESS) {
        ct_pair_give_back(timing, pair, identity != NULL);
        return;
    }
    atomic_fetch_add_explicit(&session->record.header->timed, 1, memory_order_relaxed);
    pair->identity = identity;
    pair->next = NULL;
    ct_timing_hold(&timing->lock);
    struct ct_timed_context *context = &timing->contexts[pair->context];
    int is_there = context->generation == pair->generation;
    if (is_there) {
        *(context->first ? &context->last->next : &context->first) = pair;
        context->last = pair;
    }
    ct_timing_let_go(&timing->lock);
    if (!is_there)
        ct_pair_give_back(timing, pair, 0);
    else if (atomic_fetch_add_explicit(&timing->waiting, 1, memory_order_relaxed) % HARVEST_EVERY == HARVEST_EVERY - 1)
        ct_timing_harvest(session);
}

static struct ct_timed_context *known(struct ct_timing *timing, CUcontext handle)
{
    ct_timing_hold(&timing->lock);
    struct ct_timed_context *context = place_of(timing, handle);
    if (context && context->handle != handle)
        context = NULL;
    ct_timing_let_go(&timing->lock);
    return context;
}

void ct_timing_harvest(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    if (!atomic_load_explicit(&timing->waiting, memory_order_relaxed) ||
        atomic_load_explicit(&session->captures, memory_order_relaxed) ||
        atomic_exchange_explicit(&timing->is_harvesting, 1, memory_order_acquire))
        return;
    CUcontext handle = ct_current_context();
    struct ct_timed_context *context = handle ? known(timing, handle) : NULL;
    if (context && !context->is_broken) {
        CUstreamCaptureMode mode;
        int is_relaxed = ct_relax(&mode);
        while (ct_pair_read_oldest(session, context))
            ;
        ct_tighten(is_relaxed, mode);
    }
    ct_timing_let_go(&timing->is_harvesting);
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
        ct_timing_hold(&timing->lock);
        pair->begin = pair->end = NULL;
        pair->next = timing->unused;
        timing->unused = pair;
        ct_timing_let_go(&timing->lock);
    }
}

void ct_timing_drop(struct ct_session *session)
{
    struct ct_timing *timing = session->timing;
    ct_timing_harvest(session);
    ct_timing_hold(&timing->is_harvesting);
    for (int i = 0; i < CT_TIMED_CONTEXTS; i++) {
        ct_timing_hold(&timing->lock);
        struct ct_timed_context *context = &timing->contexts[i], old = *context;
        memset(context, 0, sizeof *context);
        context->generation = old.generation + 1;
        ct_timing_let_go(&timing->lock);
        for (struct ct_pair *pair = old.first; pair; pair = pair->next)
            atomic_fetch_sub_explicit(&timing->waiting, 1, memory_order_relaxed);
        if (old.reference)
            old.reference->next = NULL;
        destroy_all(timing, old.spare);
        destroy_all(timing, old.first);
        destroy_all(timing, old.reference);
    }
    ct_timing_let_go(&timing->is_harvesting);
}

static int is_under_mps(CUdevice device)
{
    int is_mps = 0;
    return CT_NEXT(cuDeviceGetAttribute)(&is_mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) == CUDA_SUCCESS && is_mps;
}

/* Under MPS the device shows as many SMs as this client was given. Its blocks give way to those of others as those of a
 * client below normal priority. */
static struct ct_sms sms_of(CUdevice device, int is_mps)
{
    const char *priority = getenv("CUDA_MPS_CLIENT_PRIORITY"), *given = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const double percent = is_mps && given ? strtod(given, NULL) : 100;
    int seen = 0;
    struct ct_sms sms = {0};
    if (CT_NEXT(cuDeviceGetAttribute)(&seen, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS || seen <= 0)
        return sms;
    sms.seen = sms.whole = (uint32_t)seen;
    if (percent > 0 && percent < 100)
        sms.whole = (uint32_t)(100 * seen / (percent > LEAST_PERCENT ? percent : LEAST_PERCENT));
    if (is_mps && priority && strcmp(priority, "1") == 0)
        sms.yielding = sms.seen;
    return sms;
}

void ct_timing_name_device(struct ct_session *session)
{
    CUdevice device;
    char name[sizeof session->record.header->device] = {0};
    if (CT_NEXT(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        CT_NEXT(cuDeviceGetName)(name, sizeof name - 1, device) != CUDA_SUCCESS)
        return; /* there is no context yet: the next one asks again */
    const int is_mps = is_under_mps(device);
    const struct ct_sms sms = sms_of(device, is_mps);
    ct_lock(session);
    session->sms = sms;
    if (session->gateway)
        session->gateway->gate.is_mps = is_mps;
    memcpy(session->record.header->device, name, sizeof name);
    ct_unlock(session);
    atomic_store_explicit(&session->is_device_named, 1, memory_order_release);
}

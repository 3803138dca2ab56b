/* Waiting for the device: ask when it will be done, sleep until then, ask again only if something was submitted. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 60000, /* the end of a wait: a sleeper wakes some 30 us late, so it wakes early and looks at the clock */
    EARLY_NS = 150000,   /* when to look whether the projection still holds, if the wait is longer than that */
    LOOK_NS = 500000000, /* how long to sleep without looking whether the server still lives */
};

static void nap(struct sg_link *link, uint32_t wake, uint64_t at_ns)
{
    static __thread int slack_set;
    if (!slack_set) {
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
        slack_set = 1;
    }
    struct timespec until = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)};
    syscall(SYS_futex, &link->ring->wake, FUTEX_WAIT_BITSET, wake, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

void sg_wake(struct sg_link *link)
{
    atomic_fetch_add(&link->ring->wake, 1);
    syscall(SYS_futex, &link->ring->wake, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int is_dead(struct sg_link *link)
{
    struct pollfd line = {.fd = link->socket, .events = POLLRDHUP};
    return link->lost || (poll(&line, 1, 0) > 0 && (line.revents & (POLLRDHUP | POLLHUP | POLLERR)));
}

/* Signals find the thread in the futex, with no lock of ours in hand. */
static void wait_while_held(struct sg_link *link)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    while (!link->lost && atomic_load(&link->ring->held)) {
        sg_unlock();
        syscall(SYS_futex, &link->ring->held, FUTEX_WAIT, 1, &look, NULL, 0);
        int is_gone = is_dead(link);
        sg_relock();
        link->lost |= is_gone;
    }
}

void sg_wait_while_held(void)
{
    /* Another device's may be held by the time that the first is free. */
    for (int i = 0; i < sg_device_count; i++)
        if (atomic_load_explicit(&sg_devices[i].link.ring->held, memory_order_relaxed) && !sg_devices[i].link.lost) {
            wait_while_held(&sg_devices[i].link);
            i = -1;
        }
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Until the instant, or the wake word changes, or the server dies (which the next question finds out). Not under the
 * lock. */
void sg_sleep_until(struct sg_link *link, uint32_t wake, uint64_t at_ns, int may_spin)
{
    uint64_t spin_ns = may_spin ? SPIN_NS : 0;
    for (;;) {
        uint64_t now_ns = sg_clock_ns();
        if (now_ns >= at_ns || atomic_load_explicit(&link->ring->wake, memory_order_acquire) != wake)
            return;
        uint64_t left_ns = at_ns - now_ns;
        if (left_ns <= spin_ns) {
            relax();
        } else if (left_ns - spin_ns <= LOOK_NS) {
            nap(link, wake, at_ns - spin_ns);
        } else {
            nap(link, wake, now_ns + LOOK_NS);
            if (is_dead(link)) {
                link->lost = 1;
                return;
            }
        }
    }
}

static int is_fresh(const struct sg_question *question)
{
    return atomic_load_explicit(&question->device->link.bulletin->submissions, memory_order_acquire) == question->count;
}

CUresult sg_foresee(struct sg_question *question)
{
    struct sg_link *link = &question->device->link;
    struct sg_request request = {.kind = SG_PROJECT, .a = question->target, .b = question->number, .c = question->slot};
    struct sg_reply reply;
    CUresult trouble = sg_trouble(link);
    if (trouble != CUDA_SUCCESS)
        return trouble;
    if (sg_ask(link, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (reply.result != CT_DEVICE_OK)
        return sg_result(reply.result);
    question->at_ns = reply.a;
    question->count = reply.behind ? reply.c - 1 : reply.c; /* behind: never fresh, so that it is asked again */
    question->done = !reply.behind && reply.a == CT_DEVICE_DONE;
    if (reply.b && question->target != SG_TARGET_HOST) {
        question->target = SG_TARGET_OP;
        question->number = reply.b;
    }
    return CUDA_SUCCESS;
}

CUresult sg_await(struct sg_question *question)
{
    struct sg_link *link = &question->device->link;
    for (;;) {
        uint32_t wake = atomic_load_explicit(&link->ring->wake, memory_order_acquire);
        CUresult result = sg_foresee(question);
        if (result != CUDA_SUCCESS || question->done)
            return result;
        sg_unlock();
        uint64_t now_ns = sg_clock_ns();
        int is_long = question->at_ns != CT_DEVICE_NEVER && question->at_ns > now_ns + 2 * EARLY_NS;
        /* Somebody's submission mostly means that it will take longer: better learnt before than at the end. */
        if (is_long)
            sg_sleep_until(link, wake, question->at_ns - EARLY_NS, 0);
        if (!is_long || is_fresh(question))
            sg_sleep_until(link, wake, question->at_ns, question->may_spin);
        int done = sg_clock_ns() >= question->at_ns && is_fresh(question);
        sg_relock();
        if (link->lost)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (done) {
            question->done = 1;
            sg_passed(link, question->count);
            return CUDA_SUCCESS;
        }
    }
}

CUresult sg_stream_wait(CUstream stream)
{
    struct sg_device *device = stream->context->device;
    uint64_t order = stream->order, id = stream->object.id;
    if (sg_stream_known(stream) > 0) {
        stream->done_order = order;
    } else {
        struct sg_question question = {
            .device = device,
            .target = SG_TARGET_STREAM,
            .number = stream->model,
            .slot = stream->slot,
            .may_spin = !(stream->context->flags & CU_CTX_SCHED_BLOCKING_SYNC),
        };
        CUresult result = sg_await(&question);
        if (result != CUDA_SUCCESS)
            return result;
        if (stream->object.id == id && stream->done_order < order)
            stream->done_order = order;
    }
    sg_effects_apply(order);
    sg_pools_settle();
    CUresult trouble = sg_trouble(&device->link);
    if (stream->object.id == id && stream->object.alive && stream->is_ending && stream->done_order >= stream->order)
        sg_stream_end(stream);
    return trouble;
}

CUresult sg_stream_ready(CUstream stream)
{
    struct sg_device *device = stream->context->device;
    CUresult trouble = sg_trouble(&device->link);
    if (trouble != CUDA_SUCCESS)
        return trouble;
    int answer = sg_stream_known(stream);
    if (answer < 0) {
        struct sg_question question = {
            .device = device, .target = SG_TARGET_STREAM, .number = stream->model, .slot = stream->slot};
        CUresult result = sg_foresee(&question);
        if (result != CUDA_SUCCESS)
            return result;
        stream->foreseen = (struct sg_foreseen){stream->order, question.at_ns, question.count};
        answer = question.done;
    }
    if (!answer)
        return CUDA_ERROR_NOT_READY;
    stream->done_order = stream->order;
    sg_effects_apply(stream->order);
    trouble = sg_trouble(&device->link);
    if (stream->is_ending)
        sg_stream_end(stream);
    return trouble;
}

/* What stands before the record in its stream is complete too: frees there may wait for that. */
static void saw(CUevent event, uint64_t order)
{
    event->done_order = order;
    if (event->stream && event->stream->object.id == event->stream_id && event->stream->done_order < order)
        event->stream->done_order = order;
}

CUresult sg_event_await(CUevent event)
{
    uint64_t order = event->order, id = event->object.id;
    struct sg_question question = {
        .device = event->context->device,
        .target = SG_TARGET_EVENT,
        .number = event->model,
        .slot = event->slot,
        .may_spin = !(event->flags & CU_EVENT_BLOCKING_SYNC),
    };
    CUresult result = sg_await(&question);
    if (result != CUDA_SUCCESS || event->object.id != id || event->done_order >= order)
        return result;
    if (event->order == order && !event->is_shared)
        saw(event, order);
    else
        event->done_order = order; /* recorded again meanwhile, perhaps elsewhere or by another process */
    return result;
}

CUresult sg_event_wait(CUevent event)
{
    struct sg_device *device = event->context->device;
    uint64_t order = event->order;
    if (sg_event_known(event) > 0) {
        saw(event, order);
    } else {
        CUresult result = sg_event_await(event);
        if (result != CUDA_SUCCESS)
            return result;
    }
    sg_effects_apply(order);
    sg_pools_settle();
    return sg_trouble(&device->link);
}

void sg_event_foresaw(CUevent event, uint64_t at_ns, uint64_t count)
{
    event->foreseen = (struct sg_foreseen){event->order, at_ns, count};
}

CUresult sg_event_seen(CUevent event)
{
    struct sg_device *device = event->context->device;
    if (!event->is_shared)
        saw(event, event->order);
    sg_effects_apply(event->order);
    return sg_trouble(&device->link);
}

CUresult sg_event_ready(CUevent event)
{
    struct sg_device *device = event->context->device;
    CUresult trouble = sg_trouble(&device->link);
    if (trouble != CUDA_SUCCESS)
        return trouble;
    int answer = sg_event_known(event);
    if (answer < 0) {
        struct sg_question question = {
            .device = device, .target = SG_TARGET_EVENT, .number = event->model, .slot = event->slot};
        CUresult result = sg_foresee(&question);
        if (result != CUDA_SUCCESS)
            return result;
        sg_event_foresaw(event, question.at_ns, question.count);
        answer = question.done;
    }
    return answer ? sg_event_seen(event) : CUDA_ERROR_NOT_READY;
}

CUresult sg_context_wait(CUcontext context)
{
    uint64_t id = context->object.id, last = 0;
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream; stream = sg_each(SG_STREAM, stream)) {
        if (stream->context_id != id)
            continue;
        last = stream->order > last ? stream->order : last;
        if (stream->done_order >= stream->order)
            continue;
        CUresult result = sg_stream_wait(stream);
        if (result != CUDA_SUCCESS)
            return result;
        if (!sg_alive(SG_CONTEXT, context) || context->object.id != id)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    sg_effects_apply(last);
    sg_pools_settle();
    return sg_trouble(&context->device->link);
}

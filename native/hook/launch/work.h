/* Code around every launch, copy and memset: identification, admission and timing before it, and counting after it. */
#ifndef COTENANT_HOOK_LAUNCH_WORK_H
#define COTENANT_HOOK_LAUNCH_WORK_H

#include "hook/launch/gateway.h"
#include "hook/memory/memory.h"
#include "hook/entry/session.h"
#include "hook/timing/timing.h"

/* The call waits for its own completion, or uses the default stream: no events are recorded around it. */
#define CT_NO_STREAM ((CUstream)-1)

/* With more tenants of higher priority no launch passes under a lease. */
enum { CT_LEASE_HOLDERS = 4 };

enum ct_passed {
    CT_PASSED_UNGATED = 0, /* there is no gate, or the launch is captured */
    CT_PASSED_ANNOUNCED,   /* announced; admission was not required */
    CT_PASSED_LEASED,      /* passed under a lease; reported only if that no longer holds, or the driver refuses it */
    CT_PASSED_ADMITTED,    /* admitted by the gate; the outcome must be reported to it */
};

struct ct_launch {
    struct ct_session *session;
    struct ct_identity *identity;
    struct ct_pair *pair;
    uint64_t ticks;       /* the instant of the launch */
    CUstream stream;
    enum ct_work work;
    /* Bytes next to each other, which are cleared by one store. */
    uint8_t is_counted;       /* counted already */
    uint8_t must_time;        /* its time is not known yet */
    uint8_t must_check;       /* its time is measured, to correct what was charged to the share */
    uint8_t must_watch;       /* its completion must be seen by an event, see ct_completions_watch() */
    uint8_t is_rest;          /* a part of it was launched before */
    uint8_t is_stuck;         /* it passed because nothing ended for too long */
    uint8_t runs_variant;     /* the variant is launched whole, to measure it */
    uint8_t is_per_thread;
    uint8_t may_record_event; /* whether an event may be recorded after it */
    uint8_t may_limit;        /* it may run on a part of the SMs, or in parts */
    uint8_t is_cooperative;   /* all its blocks run at once and may wait for each other */
    struct ct_slice *slice; /* how to launch it in parts; NULL: it is launched whole */
    CUstream partition;   /* the stream that it is launched into instead, see ct_partition_enter() */
    enum ct_passed passed;
    uint64_t sync_ticks; /* when it began to wait for its own completion, if it does */
    struct ct_launch_request request;
    /* under a lease: the sequence words of the holders, and their values when it passed */
    uint32_t holder_count;
    struct {
        const _Atomic uint64_t *sequence;
        uint64_t seen;
    } holders[CT_LEASE_HOLDERS];
};

/* Traces a counted launch that is now passed to the driver. Called with the lock held. */
static inline void ct_launch_trace(struct ct_launch *launch, uint64_t now_ns, uint32_t reason)
{
    struct ct_session *session = launch->session;
    if (launch->is_counted)
        ct_trace_launch(&session->trace, &session->record, now_ns, launch->identity->record_number,
                        ct_stream_key(launch->stream, launch->is_per_thread), launch->request.expect_ns,
                            (uint8_t)reason);
}

/* Counts the launch, announces it, and waits until it is admitted. Requires a gate, and the present instant in `ticks`. */
void ct_launch_admit(struct ct_launch *launch);

/* Called for launches that are not only counted: the first of its kind, timed, captured, failed, or admitted ones. */
void ct_launch_time(struct ct_launch *launch);
void ct_launch_settle(struct ct_launch *launch, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUresult result);

/* Called around a launch that cannot be identified: it is admitted as one of unknown length, and counted. */
void ct_unidentified_begin(struct ct_launch *launch);
void ct_unidentified_end(struct ct_launch *launch, CUresult result);

/* Identifies a launch that must ask before it is executed for the first time, so that its profile can be used. */
void ct_launch_identify(struct ct_launch *launch, enum ct_work work, uintptr_t handle, const struct ct_shape *shape);

/* Reports to the gate what became of the launch, or of a part of it. */
void ct_launch_report(struct ct_launch *launch, CUresult result);
/* Computes the request of the whole launch. Called with the lock held. */
void ct_launch_predict(struct ct_launch *launch);

/* ---- parts.c: kernels that are launched in parts ------------------------------------------------------------------- */

/* Decides whether the launch may be cut into parts. Called without the lock, because it may call the driver. */
void ct_parts_prepare(struct ct_launch *launch);
/* Lets the gate cut the rest of a launch. Called with the lock held, with the request of the whole launch. */
void ct_parts_request(struct ct_launch *launch, uint64_t blocks_left);
/* Counts a launch that is longer than a part may be and was not cut. Called with the lock held. */
void ct_parts_count_whole(struct ct_launch *launch, uint64_t now_ns);
/* Decides whether a launch that is timed runs the variant, so that it is compared with the kernel. */
int ct_parts_measures_variant(struct ct_launch *launch);

/* What may be done to a launch. An event between two launches that are meant to overlap would serialize them. */
enum ct_permission { CT_MAY_NOTHING, CT_MAY_TIME, CT_MAY_TIME_AND_LIMIT, CT_MAY_TIME_COOPERATIVE };

/* Identifies a launch, admits it, and begins to time it. */
void ct_launch_begin(struct ct_launch *launch, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUstream stream, int is_per_thread, enum ct_permission permission);

/* Called when a launch under a lease was submitted. Returns 0 if its outcome must be reported: a holder has launched
 * before. */
static inline int ct_launch_end_lease(const struct ct_launch *launch)
{
    if (launch->passed != CT_PASSED_LEASED)
        return 0;
    store_release(&launch->session->gateway->is_leased, 0);
    for (uint32_t i = 0; i < launch->holder_count; i++)
        if (load_acquire(launch->holders[i].sequence) != launch->holders[i].seen)
            return 0;
    return 1;
}

static inline CUresult ct_launch_end(struct ct_launch *launch, enum ct_work work, uintptr_t handle,
                                    const struct ct_shape *shape, CUresult result)
{
    struct ct_session *session = launch->session;
    ct_fault_check(result);
    if (CT_UNLIKELY(!session))
        return result;
    if (CT_UNLIKELY(result != CUDA_SUCCESS || !launch->identity || launch->pair || session->is_measuring ||
                    (launch->passed >= CT_PASSED_LEASED && !ct_launch_end_lease(launch)) ||
                    launch->must_watch || load_relaxed(&session->captures)))
        ct_launch_settle(launch, work, handle, shape, result);
    else if (!launch->is_counted)
        ct_count_launch(session, launch->identity, launch->ticks, ct_stream_key(launch->stream, launch->is_per_thread));
    return result;
}

#endif

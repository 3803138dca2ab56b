/* Measures device time with pairs of events around launches. */
#ifndef COTENANT_HOOK_TIMING_TIMING_H
#define COTENANT_HOOK_TIMING_TIMING_H

#include "hook/entry/session.h"

/* The owner of copy engines, which have no handle of the driver and are never unloaded. */
enum { CT_ENGINES = 1 };

struct ct_pair;

struct ct_timing *ct_timing_make(void);
void ct_timing_destroy(struct ct_timing *timing);

/* Waits until a pair is available, before the launch is admitted. Measuring slows the program down on purpose: a host
 * that runs far ahead of its device would otherwise leave the same kernels unmeasured in every run. The wait is
 * bounded, because work in flight may depend on what this thread does next. */
void ct_timing_await_pair(struct ct_session *session);

/* Returns whether the launch would first wait for our time slice, which a measurement would include: neighbours are
 * active, and no work of ours precedes it in its stream. */
int ct_timing_must_wait(struct ct_session *session, CUstream stream, int is_per_thread);

/* Records the begin of a launch in its stream; returns NULL if it is not timed. `must_bound`: time it even if
 * neighbours may slow it down, because its time is unknown. */
struct ct_pair *ct_timing_begin(struct ct_session *session, CUstream stream, int is_per_thread, int must_bound);

/* Records the end, or gives the pair back if the launch failed or has no identity. In an idle stream the begin
 * completes at once but the work starts only when it is launched; this delay of the host is subtracted. */
void ct_timing_end(struct ct_session *session, struct ct_pair *pair, const struct ct_identity *identity,
                   uint64_t launch_ticks, CUstream stream, int is_per_thread);

/* Reads the complete pairs of the current context. Does not block. */
void ct_timing_collect(struct ct_session *session);

/* Called before contexts are destroyed: reads complete pairs, discards the others, and destroys all events. */
void ct_timing_drop(struct ct_session *session);

void ct_timing_name_device(struct ct_session *session);

#endif

/* How long does work take on the device? Pairs of events around launches, looked at when they are complete. */
#ifndef COTENANT_HOOK_TIMING_H
#define COTENANT_HOOK_TIMING_H

#include "hook/seen.h"

/* Engines are functions without a handle of the driver's; their owner never goes. */
enum { CT_ENGINES = 1 };

struct ct_pair;

struct ct_timing *ct_timing_make(void);
void ct_timing_unmake(struct ct_timing *timing);

/* Measuring is slow on purpose: a host that runs far ahead of its device would otherwise leave the same kernels untimed
 * in every run. Waits until there is a pair, before the gate lets anything pass. Not for ever: work that is under way may
 * wait for what this thread does next. */
void ct_timing_await_pair(struct ct_session *session);

/* Whether it would wait for our turn on the device first, and events around it would show that, too: neighbours are active,
 * and nothing of ours is before it in its stream. */
int ct_timing_must_wait(struct ct_session *session, CUstream stream, int is_twin);

/* Marks the beginning of a launch in its stream; NULL if it is not to be timed. `must_bound`: also if neighbours may slow it
 * down, for nothing else is known of it. */
struct ct_pair *ct_timing_begin(struct ct_session *session, CUstream stream, int is_twin, int must_bound);

/* Marks its end, or gives the pair back when the launch failed or has no identity. An idle stream reaches the begin at
 * once and the work only when it is launched: that delay is the host's, and is taken off. */
void ct_timing_end(struct ct_session *session, struct ct_pair *pair, const struct ct_identity *identity,
                   uint64_t launch_ticks, CUstream stream, int is_twin);

/* Takes over what is complete in the current context. Never waits. */
void ct_timing_harvest(struct ct_session *session);

/* Before contexts end: what is complete is taken over, what is not is lost, no event of ours stays behind. */
void ct_timing_drop(struct ct_session *session);

void ct_timing_name_device(struct ct_session *session);

#endif

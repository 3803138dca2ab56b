/* Collectives of a process that uses several devices: it is the ranks of all of them.
 *
 * One thread may launch the kernels of a collective on all devices, one after the other, so a launch cannot wait until the
 * process has launched the others, as ranks of several processes do (gate/gang.h). Instead, a collective passes on the device
 * where it is launched first once the gates of all devices that the process uses would admit it, and the launches that
 * follow on the others pass without asking. */
#ifndef COTENANT_HOOK_LAUNCH_RANKS_H
#define COTENANT_HOOK_LAUNCH_RANKS_H

#include "hook/entry/session.h"

struct ct_launch;

/* Returns whether the process uses another device as well. Called with the session's lock held. */
int ct_ranks_exist(const struct ct_session *session);
/* Returns whether the collective already passed on another device, and counts it as launched here. */
int ct_ranks_take(struct ct_session *session, uint64_t now_ns);
/* Returns whether the gates of all other devices would admit the collective. Called with the session's lock held. */
int ct_ranks_are_open(struct ct_session *session, const struct ct_launch *launch, uint64_t now_ns);
/* Checks whether work on the other devices has ended: their own threads, or this one, may be waiting here. Called without the
 * lock. */
void ct_ranks_collect(const struct ct_session *session);
/* Records that a collective passes on this device: it will be launched on the others too. */
void ct_ranks_passed(struct ct_session *session, uint64_t now_ns);

/* After this time, a collective that passed on another device is assumed not to concern this one. */
#define CT_RANKS_OWED_NS (UINT64_C(250) * 1000 * 1000)
enum { CT_RANKS_RECHECK_NS = 100 * 1000 };

#endif

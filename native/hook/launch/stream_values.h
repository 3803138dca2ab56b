/* Streams that wait for a value in memory, which another device or process writes. What the program launches into such a
 * stream next does not run until the others have come as far, so it is admitted as a collective. */
#ifndef COTENANT_HOOK_LAUNCH_STREAM_VALUES_H
#define COTENANT_HOOK_LAUNCH_STREAM_VALUES_H

#include "hook/entry/session.h"

struct ct_launch;

/* Returns whether the launch is the first one into its stream since that began to wait; it no longer counts as waiting then.
 * Called with the session's lock held. */
int ct_stream_values_take(struct ct_session *session, const struct ct_launch *launch);

#endif

/* Launches that are limited to a part of the SMs. They go through a stream of a green context: behind all earlier work of
 * the program's own stream, and before its later work. */
#ifndef COTENANT_HOOK_LAUNCH_PARTITION_H
#define COTENANT_HOOK_LAUNCH_PARTITION_H

#include "hook/launch/work.h"

/* Returns the smallest part of the SMs that launches on this device can be limited to; larger parts are multiples of it.
 * 0: the driver cannot limit them. */
uint32_t ct_partition_step(CUdevice device);

/* Returns the stream to launch into, so that the launch occupies the part of the SMs that the gate admitted it with: the
 * program's own stream if that is the whole device. */
CUstream ct_partition_enter(struct ct_launch *launch);

/* Orders the later work of the program's stream behind the launch. Returns 0 if the driver refused it in the other stream;
 * then the caller must launch it into the program's own. */
int ct_partition_leave(struct ct_launch *launch, CUresult result);

/* Destroys the green contexts that are idle, because the program needs their memory, and limits no further launches.
 * Returns how many there were. */
int ct_partition_trim(void);

/* Destroys the green contexts, because they keep the primary context alive, which is being released. */
void ct_partition_close(void);

static inline CUstream ct_partition_stream(struct ct_launch *launch, CUstream stream)
{
    if (CT_UNLIKELY(launch->session && launch->request.sm_ppm && launch->passed != CT_PASSED_UNGATED))
        return ct_partition_enter(launch);
    return stream;
}

#endif

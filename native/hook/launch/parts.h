/* Kernels that are launched in parts: the gate admits so many blocks at a time, and the hook launches the kernel's variant
 * over them, in the program's stream. For the program it is one launch. */
#ifndef COTENANT_HOOK_LAUNCH_PARTS_H
#define COTENANT_HOOK_LAUNCH_PARTS_H

#include "hook/launch/work.h"

/* A launch as the program called it. */
struct ct_parts_call {
    CUfunction function;
    CUstream stream;
    int is_per_thread;
    void **params, **extra;
};

static inline int ct_parts_are_due(const struct ct_launch *launch)
{
    return launch->session && (launch->request.part_blocks || launch->runs_variant);
}

/* Launches all parts of a kernel, of which the first is admitted. Its end must be reported by ct_launch_end(). */
CUresult ct_parts_launch(struct ct_launch *launch, const struct ct_shape *shape, const struct ct_parts_call *call);

#endif

/* Recognizes kernels of collective communication by their names. */
#ifndef COTENANT_HOOK_LAUNCH_COLLECTIVE_H
#define COTENANT_HOOK_LAUNCH_COLLECTIVE_H

int ct_name_is_collective(const char *name);

#endif

/* How the processes of one job find each other: the name of their gang, from the environment. */
#ifndef COTENANT_HOOK_ENTRY_GANG_NAME_H
#define COTENANT_HOOK_ENTRY_GANG_NAME_H

#include <stdint.h>

enum { CT_GANG_NAME_BYTES = 256 };

struct ct_gang_name {
    char name[CT_GANG_NAME_BYTES]; /* the same in all ranks of a job, and in no other job of the user */
    uint32_t ranks;                /* ranks of the job on this machine */
};

/* Reads COTENANT_GANG and COTENANT_RANKS, or else the variables of torchrun, Open MPI or Slurm. Returns 0 if the process
 * belongs to no job with several ranks on this machine. */
int ct_gang_name_find(struct ct_gang_name *gang);

#endif

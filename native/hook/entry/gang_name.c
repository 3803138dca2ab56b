/* Finds the name of the gang in the environment. */
#include "hook/entry/gang_name.h"

#include "gate/gang.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The variables of one launcher: those whose values together name the job, and the number of its ranks on this machine. */
static const struct {
    const char *launcher, *names[2], *ranks;
} LAUNCHERS[] = {
    {"", {"COTENANT_GANG"}, "COTENANT_RANKS"},
    {"torchrun", {"MASTER_ADDR", "MASTER_PORT"}, "LOCAL_WORLD_SIZE"},
    {"torch", {"MASTER_ADDR", "MASTER_PORT"}, "WORLD_SIZE"},
    {"mpi", {"PMIX_NAMESPACE"}, "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpi", {"OMPI_MCA_ess_base_jobid"}, "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"slurm", {"SLURM_JOB_ID", "SLURM_STEP_ID"}, "SLURM_STEP_TASKS_PER_NODE"},
};

static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* Returns a number of ranks; 0 if it is not one. Slurm writes "2", or "2(x3)" if all of three machines have two. */
static uint32_t parse_ranks(const char *text)
{
    uint32_t ranks = 0;
    const char *at = text;
    for (; isdigit((unsigned char)*at) && ranks <= CT_GANG_RANKS; at++)
        ranks = 10 * ranks + (uint32_t)(*at - '0');
    const int is_whole = !*at || (at > text && *at == '(' && !strchr(at, ','));
    return is_whole && ranks >= 2 && ranks <= CT_GANG_RANKS ? ranks : 0;
}

int ct_gang_name_find(struct ct_gang_name *gang)
{
    for (size_t i = 0; i < sizeof LAUNCHERS / sizeof LAUNCHERS[0]; i++) {
        const char *first = variable(LAUNCHERS[i].names[0]), *second = variable(LAUNCHERS[i].names[1]);
        const char *ranks = variable(LAUNCHERS[i].ranks);
        if (!first || (LAUNCHERS[i].names[1] && !second) || !ranks)
            continue;
        gang->ranks = parse_ranks(ranks);
        const int length =
            snprintf(gang->name, sizeof gang->name, "%s %s %s", LAUNCHERS[i].launcher, first, second ? second : "");
        return gang->ranks && length > 0 && length < (int)sizeof gang->name;
    }
    return 0;
}

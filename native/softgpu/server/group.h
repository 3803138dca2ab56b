/* MPS on one device: groups, which belong to MPS servers, admitted clients with their limits, and the compute mode. */
#ifndef COTENANT_SOFTGPU_SERVER_GROUP_H
#define COTENANT_SOFTGPU_SERVER_GROUP_H

#include "softgpu/wire.h"

#include <sys/types.h>

struct sg_server;

/* The maximum number of contexts per group is NVIDIA's documented limit for a Volta MPS server and one device. */
enum { SG_GROUPS = 16, SG_GROUP_CONTEXTS = 48, SG_ADMISSIONS = 64 };

/* Limits that an MPS server set for a process before it connects. */
struct sg_admission {
    pid_t pid; /* 0: free */
    uint32_t sm_cap;
    uint32_t is_below_normal;
    uint64_t pinned_bytes; /* 0: no limit */
};

struct sg_group {
    uint32_t number; /* number used by clients and as label in the model; 0: free */
    int owner;       /* index of the MPS server's connection */
    struct sg_admission admitted[SG_ADMISSIONS];
    uint32_t next; /* next admission to overwrite, so that unused ones do not accumulate */
};

struct sg_group *sg_group_of(struct sg_server *server, uint32_t number); /* NULL: no such group */

/* Requests of an MPS server and for the compute mode. Returns -1 like sg_answer(). */
int sg_group_answer(struct sg_server *server, int index, const struct sg_request *request);

/* Notify the group's MPS server of a fault that one of its clients caused. */
void sg_group_notify(struct sg_server *server, uint32_t number, uint32_t code);
/* Whether a client has a context. Faults do not affect clients without one. */
int sg_client_has_context(const struct sg_server *server, int index);

/* Add a client to a group and consume its admission. 0, or the CUresult of a refusal. */
uint32_t sg_group_join(struct sg_server *server, int index, uint64_t number);
/* A client is about to be dropped: read whether it announced an orderly exit. */
void sg_group_read_leave(struct sg_server *server, int index);
/* A connection is about to be dropped: end its group and fail the group's clients. */
void sg_group_close(struct sg_server *server, int index);

/* Whether the compute mode or the limit of the group forbids a context. 0, or the CUresult of a refusal. */
uint32_t sg_group_context_refusal(struct sg_server *server, int index);

/* Return the SM cap of a context: the lower of the requested cap and the client's cap, where 0 means none. */
uint32_t sg_group_cap(const struct sg_server *server, int index, uint64_t asked);
/* Whether the client stays within its pinned memory limit with this many additional bytes. */
int sg_group_within_limit(struct sg_server *server, int index, uint64_t bytes);
/* Return a stream's priority in the model. Clients below normal priority rank after all streams of other clients. */
int32_t sg_group_priority(const struct sg_server *server, int index, int64_t asked);

#endif

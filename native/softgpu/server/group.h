/* MPS on one device: groups that MPS servers hold open, whom they admitted with which limits, and the compute mode. */
#ifndef COTENANT_SOFTGPU_SERVER_GROUP_H
#define COTENANT_SOFTGPU_SERVER_GROUP_H

#include "softgpu/wire.h"

#include <sys/types.h>

struct sg_server;

/* Contexts of one group: what NVIDIA documents for a Volta MPS server and one device. */
enum { SG_GROUPS = 16, SG_GROUP_CONTEXTS = 48, SG_ADMISSIONS = 64 };

/* What an MPS server said of a process that is about to come. */
struct sg_admission {
    pid_t pid; /* 0: free */
    uint32_t sm_cap;
    uint32_t is_below_normal;
    uint64_t pinned_bytes; /* 0: no limit */
};

struct sg_group {
    uint32_t number; /* as clients name it, and the label in the model; 0: free */
    uint32_t contained; /* a client killed with work in flight harms only itself */
    int owner;          /* the MPS server's connection */
    struct sg_admission admitted[SG_ADMISSIONS];
    uint32_t next; /* the admission to be overwritten next: one that was never used does not stay for good */
};

struct sg_group *sg_group_of(struct sg_server *server, uint32_t number); /* NULL: there is none */

/* Requests of an MPS server, see wire.h. */
int sg_group_open(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply);
int sg_group_admit(struct sg_server *server, int index, const struct sg_request *request);
int sg_group_state(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply);
int sg_group_terminate(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply);

/* A client wants to join; takes its admission. CT_DEVICE_OK or a refusal. */
int sg_group_join(struct sg_server *server, int index, uint64_t number);
/* A connection is about to close: its group ends with it, or its group learns of the death. */
void sg_group_leave(struct sg_server *server, int index);

/* Whether this client may make a context now: compute mode and the group's limit. CT_DEVICE_OK or a refusal. */
int sg_group_may_compute(struct sg_server *server, int index);
int sg_compute_mode(struct sg_server *server, const struct sg_request *request, struct sg_reply *reply);

/* The cap of a context that asks for one: the lower of both, 0 being none. */
uint32_t sg_group_cap(const struct sg_server *server, int index, uint64_t asked);
/* Whether so many bytes more keep the client within its pinned memory limit. */
int sg_group_within_limit(struct sg_server *server, int index, uint64_t bytes);
/* A stream's priority in the model: clients below normal come after every stream of the others. */
int32_t sg_group_priority(const struct sg_server *server, int index, int64_t asked);

#endif

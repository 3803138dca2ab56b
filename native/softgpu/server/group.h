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
    int owner;       /* the MPS server's connection */
    struct sg_admission admitted[SG_ADMISSIONS];
    uint32_t next; /* the admission to be overwritten next: one that was never used does not stay for good */
};

struct sg_group *sg_group_of(struct sg_server *server, uint32_t number); /* NULL: there is none */

/* The requests of an MPS server, and about the compute mode. -1: as sg_answer(). */
int sg_group_answer(struct sg_server *server, int index, const struct sg_request *request);

/* Tells the group's MPS server that one of its clients brought this upon all. */
void sg_group_tell(struct sg_server *server, uint32_t number, uint32_t code);
/* Whether a client has a context: without one it is none of the device's, and no fault there reaches it. */
int sg_group_computes(const struct sg_server *server, int index);

/* A client wants to join; takes its admission. 0, or the CUresult of a refusal. */
uint32_t sg_group_join(struct sg_server *server, int index, uint64_t number);
/* A client is about to be dropped: whether it said before that it ends in order. */
void sg_group_hear_out(struct sg_server *server, int index);
/* A connection is about to be dropped: its group ends with it, and everybody in it is struck. */
void sg_group_close(struct sg_server *server, int index);

/* Whether compute mode or the group's size forbid this client a context. 0, or the CUresult of a refusal. */
uint32_t sg_group_keeps_out(struct sg_server *server, int index);

/* The cap of a context that asks for one: the lower of both, 0 being none. */
uint32_t sg_group_cap(const struct sg_server *server, int index, uint64_t asked);
/* Whether so many bytes more keep the client within its pinned memory limit. */
int sg_group_within_limit(struct sg_server *server, int index, uint64_t bytes);
/* A stream's priority in the model: clients below normal come after every stream of the others. */
int32_t sg_group_priority(const struct sg_server *server, int index, int64_t asked);

#endif

/* Faults of a software GPU, injected or caused by a program: affected clients, their error codes, and the Xid log. */
#ifndef COTENANT_SOFTGPU_SERVER_FAULT_H
#define COTENANT_SOFTGPU_SERVER_FAULT_H

#include "softgpu/wire.h"

struct sg_server;

enum { SG_XIDS = 64, SG_XID_TEXT_BYTES = 128, SG_XID_LOG_LINES = 4096 };

/* The duration of a hung kernel's block: two years, far below an overflow of nanosecond sums. */
#define SG_HANG_BLOCK_NS (UINT64_C(1) << 56)

struct sg_xid {
    uint64_t sequence, at_ns;
    uint32_t xid;
    int32_t pid; /* 0: no specific process */
    char text[SG_XID_TEXT_BYTES];
};

/* Fault state of a client. */
struct sg_client_fault {
    uint32_t code;     /* CUresult of its fatal fault; 0: none */
    uint32_t kind;     /* kind of the fault that is pending for a launch */
    uint64_t launches; /* number of launches until it occurs: 1 is the next one */
    uint64_t hang_ns;  /* timeout of a pending hang; 0: none */
    uint64_t hung_op, hang_due_ns;
};

/* Fault state of the device. */
struct sg_faults {
    struct sg_xid xids[SG_XIDS]; /* indexed by sequence number modulo SG_XIDS */
    uint64_t xid_count;
    uint32_t lost, is_death_isolated;
    uint32_t ecc_errors, ecc_errors_at_reset; /* uncorrectable memory errors, as NVML counts them */
    uint32_t rows, rows_at_reset;             /* rows to be remapped or pages to be retired by a reset */
    uint64_t clock_due_ns;                    /* instant at which full speed returns; 0: never */
};

/* Fail a client: its work is cancelled and all its calls return this CUresult. The other clients of its group fail too
 * and do not learn the cause. xid 0: nothing is logged. */
void sg_fault(struct sg_server *server, int index, uint32_t code, uint32_t xid);
/* Fail only this client. */
uint32_t sg_fault_alone(struct sg_server *server, int index, uint32_t code);
/* Fail all clients of a group and return how many were affected. */
uint32_t sg_fault_group(struct sg_server *server, uint32_t group, uint32_t code, uint32_t xid);
/* Whether a group refuses new clients: a fault affected it, and affected clients are still connected. */
int sg_group_refuses(const struct sg_server *server, uint32_t group);
/* Return the CUresult with which a new context of this client is refused; 0: it is allowed. */
uint32_t sg_context_refused(const struct sg_server *server, int index);
/* The client's last context ended: clear faults that do not require a new process. */
void sg_fault_reset_client(struct sg_server *server, int index);
/* A client is about to be dropped: if it has work in flight, its group fails. */
void sg_fault_death(struct sg_server *server, int index);

/* Called before a kernel is launched. 1: the launch fails and the client is affected. May make the kernel endless. */
int sg_fault_at_launch(struct sg_server *server, int index, struct ct_kernel *kernel, uint64_t at_ns);
void sg_fault_launched(struct sg_server *server, int index, const struct ct_kernel *kernel, uint64_t op);

/* Return the earliest instant of a timeout, or CT_DEVICE_NEVER; process expired timeouts. */
uint64_t sg_fault_due_ns(const struct sg_server *server);
void sg_fault_tick(struct sg_server *server, uint64_t now_ns);

/* Handle a request; enum ct_device_result, or -1: invalid. */
int sg_fault_answer(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply);

void sg_xid_add(struct sg_server *server, uint32_t xid, int32_t pid, const char *text);
int sg_xid_next(const struct sg_server *server, uint64_t seen, struct sg_reply *reply);

#endif

/* Faults of a soft GPU, injected or a program's own: whom they strike, what those see, and the log of Xids. */
#ifndef COTENANT_SOFTGPU_FAULT_H
#define COTENANT_SOFTGPU_FAULT_H

#include "softgpu/wire.h"

struct sg_server;

enum { SG_XIDS = 64, SG_XID_TEXT_BYTES = 128, SG_XID_LOG_LINES = 4096 };

/* A hung kernel's block: two years alone on the device, far from where sums of nanoseconds end. */
#define SG_HANG_BLOCK_NS (UINT64_C(1) << 56)

struct sg_xid {
    uint64_t sequence, at_ns;
    uint32_t xid;
    int32_t pid; /* 0: of nobody in particular */
    char text[SG_XID_TEXT_BYTES];
};

/* Of one client. */
struct sg_trouble {
    uint32_t code;     /* CUresult of its fatal fault; 0: none yet */
    uint32_t kind;     /* what is to strike at a launch to come */
    uint64_t launches; /* the one, counted from here: 1 is the next */
    uint64_t hang_ns;  /* of a hang to come: how long until it times out; 0: never */
    uint64_t hung_op, hang_due_ns;
};

/* Of the device. */
struct sg_faults {
    struct sg_xid xids[SG_XIDS]; /* by sequence modulo SG_XIDS */
    uint64_t xid_count;
    uint32_t lost, deaths_spare;
    uint64_t clock_due_ns; /* when full speed returns; 0: not by itself */
};

/* A fatal fault of a client (by its index): its work is gone, and from now on its calls give this CUresult. With it fall
 * the others of its group, who are not told whose fault it was. xid 0: nothing for the log. */
void sg_fault(struct sg_server *server, int index, uint32_t code, uint32_t xid);
/* The same for all clients of a group; returns how many were struck. */
uint32_t sg_fault_group(struct sg_server *server, uint32_t group, uint32_t code, uint32_t xid);
/* Whether new clients must stay out of a group: a fault struck it, and not all whom it struck have left. */
int sg_group_refuses(const struct sg_server *server, uint32_t group);
/* What a new context of this client is refused with; 0: it may have one. */
uint32_t sg_context_refused(const struct sg_server *server, int index);
/* The client's last context is gone: with some faults it may begin anew. */
void sg_fault_lift(struct sg_server *server, int index);
/* Before a client is dropped: if work of it is in flight its group suffers. */
void sg_fault_death(struct sg_server *server, int index);

/* Before a kernel is launched: 1 if it must not be, for the client has just been struck. May make it endless. */
int sg_fault_at_launch(struct sg_server *server, int index, struct ct_kernel *kernel, uint64_t at_ns);
void sg_fault_launched(struct sg_server *server, int index, const struct ct_kernel *kernel, uint64_t op);

/* The earliest instant at which a fault has something to do by itself, CT_DEVICE_NEVER: none; and doing it. */
uint64_t sg_fault_due_ns(const struct sg_server *server);
void sg_fault_tick(struct sg_server *server, uint64_t now_ns);

/* The requests; enum ct_device_result, or -1: nonsense. */
int sg_fault_answer(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply);

void sg_xid_add(struct sg_server *server, uint32_t xid, int32_t pid, const char *text);
int sg_xid_next(const struct sg_server *server, uint64_t seen, struct sg_reply *reply);

#endif

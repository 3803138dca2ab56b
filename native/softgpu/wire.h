/* What a client of a soft GPU and its device server say to each other: one socket, one ring, one bulletin. */
#ifndef COTENANT_SOFTGPU_WIRE_H
#define COTENANT_SOFTGPU_WIRE_H

#include "device/device.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
    SG_WIRE_VERSION = 4,
    SG_RING_SLOTS = 1024, /* a power of two; a real driver's queue holds about as many launches */
    SG_WINDOW = 1000,     /* ops of one client in the model at once: 64 clients never exceed its 65,535 */
    SG_OUTCOMES = 4096,   /* slots whose outcome can still be read: a power of two, some times what the ring holds */
    SG_EVENT_BATCH = 32,
    SG_ACCOUNT_BYTES = 64, /* of an account's name, with the zero behind it */
    SG_PCI_BUS_FIRST = 0x17, /* as good as any; one bus per device, as the directory numbers them */
};

/* The longest kernel, alone on the device; a longer one is refused, for it is a wrong unit rather than a wish. */
#define SG_KERNEL_MAX_NS UINT64_C(3600000000000)

/* ---- the ring: work, in the order submitted, waiting for nobody ------------------------------------------- */

enum sg_slot_kind {
    SG_SLOT_KERNEL = 1,
    SG_SLOT_COPY = 2, /* value: bytes, how: CT_OP_COPY_* or CT_OP_MEMSET */
    SG_SLOT_RECORD = 3, /* value: event */
    SG_SLOT_WAIT = 4,   /* value: event */
    SG_SLOT_HOST = 5,   /* value: the client's number for the host function */
};

/* One cache line. The server copies it before it looks: the client may write it at any time. */
struct sg_slot {
    uint64_t at_ns; /* CLOCK_MONOTONIC when submitted */
    uint32_t kind;
    uint32_t stream;
    union {
        struct ct_kernel kernel;
        struct {
            uint64_t value;
            uint32_t how;
        };
    };
    uint64_t reserved;
};
_Static_assert(sizeof(struct sg_slot) == 64, "a slot is one cache line");

/* When a slot's work is complete. The server writes it whenever it moves the model, whoever asked, and never reads it.
 * `slot` is 0 while the rest is written, and is to be read before and after the rest. */
struct sg_outcome {
    _Atomic uint64_t slot; /* its number: slots up to and with it */
    _Atomic uint64_t at_ns;
    _Atomic uint64_t count; /* SG_CERTAIN: it is complete since; otherwise the bulletin's count for which this is foreseen */
    uint64_t reserved;
};
_Static_assert(sizeof(struct sg_outcome) == 32, "no outcome lies in two cache lines");
#define SG_CERTAIN UINT64_MAX

/* Written by the client but for `head`, `fault`, `held` and `outcomes`. The server keeps its own head and believes `tail` only
 * within the ring. */
struct sg_ring {
    _Alignas(64) _Atomic uint64_t tail; /* slots published so far */
    _Alignas(64) _Atomic uint64_t head; /* slots the server has taken */
    _Atomic uint32_t fault; /* the CUresult of a fatal fault, once there was one; the server writes it */
    _Alignas(64) _Atomic uint32_t wake; /* a futex: changes when every projection of this client may be too late */
    _Atomic uint64_t managed_bytes;     /* memory that is on the device and on the host by turns, for the report */
    _Alignas(64) _Atomic uint32_t held; /* a futex: while it is not 0 no call begins; the server writes it */
    _Alignas(64) struct sg_slot slots[SG_RING_SLOTS];
    _Alignas(64) struct sg_outcome outcomes[SG_OUTCOMES]; /* by number modulo SG_OUTCOMES */
};

/* One page for all clients of a device. Only a hint about freshness: whoever scribbles here costs others a question. */
struct sg_bulletin {
    _Alignas(64) _Atomic uint64_t submissions; /* changes with every submission to the device */
    _Alignas(64) _Atomic uint32_t xids;        /* a futex: changes with every Xid */
};

/* ---- the socket: questions, each answered at once --------------------------------------------------------- */

enum sg_request_kind {
    /* a: wire version, b: MPS group or 0; alone, or as the head of struct sg_greeting -> struct sg_hello, and the
       descriptors of ring and bulletin */
    SG_HELLO = 1,
    SG_CONTEXT_CREATE = 2,  /* a: SM cap -> a: context, b: its legacy stream, batch[0]: the cap it has */
    SG_CONTEXT_DESTROY = 3, /* a: context */
    SG_STREAM_CREATE = 4,   /* a: context, b: enum ct_stream_kind, c: priority -> a: stream */
    SG_STREAM_DESTROY = 5,  /* a: stream */
    SG_EVENTS_CREATE = 6,   /* a: context -> a: how many, batch: their handles */
    SG_EVENT_TIMES = 7,     /* a: event, b: another, c: slots to be taken first -> a, b: their instants; NOT_READY: not both
                               are complete, and the reply is otherwise what SG_PROJECT says of b */
    SG_MEMORY_TAKE = 8,     /* a: context, b: bytes */
    SG_MEMORY_GIVE = 9,     /* a: context, b: bytes */
    SG_MEMORY_INFO = 10,    /* -> a: free bytes, b: total bytes */
    SG_PROJECT = 11,   /* a: enum sg_target, b: its number, c: slots to be taken first -> struct sg_reply, see below */
    SG_HOST_DONE = 12, /* a: the client's number */
    SG_UNSUPPORTED = 13, /* a: number of the name called */
    SG_REPORT = 14,      /* -> a: bytes, and a descriptor from which that many can be read: the books as JSON */
    SG_SHUTDOWN = 15,
    SG_EVENT_DESTROY = 16, /* a: event */
    SG_OBSERVE = 17,       /* a: wire version -> struct sg_hello and the bulletin's descriptor, but no client */
    SG_SAMPLES = 18,       /* a: since which instant -> struct sg_observation */
    SG_XID_NEXT = 19, /* a: last sequence seen, 0: none -> a: Xid, b: its sequence, c: pid; NOT_READY: there is none */
    SG_FAULT = 20,    /* a: enum sg_fault_kind, b: pid or SG_FAULT_* below, and in its high half the launch at which it
                         strikes (0: now), c: see there -> a: clients struck; STALE: no such client */
    SG_CLOCK = 23,    /* a: speed, of CT_DEVICE_FULL_SPEED, b: nanoseconds until full speed again, 0: never */
    /* From an MPS server, on a connection that stands for its group; the group ends with it. */
    SG_GROUP_OPEN = 21,      /* -> a: group, b: SMs, batch: the UUID */
    SG_COMPUTE_MODE = 22,    /* a: 1 to set it to b -> a: enum sg_compute_mode */
    SG_GROUP_ADMIT = 24,     /* a: pid, b: bytes it may take or 0, c: SM cap, bit 32: below normal priority */
    SG_GROUP_STATE = 25,     /* a: skip so many, b: 1 for those with contexts alone -> a: clients, b: 1 while it refuses
                                new ones, batch: pids */
    SG_GROUP_STRIKE = 26,    /* a: pid or 0 for all, b: the CUresult they shall see -> a: how many were struck */
    SG_GROUP_LEAVE = 27,     /* from a client: it ends in order, whatever is in flight */
    /* Memory of the client itself, of no context. */
    SG_CLIENT_TAKE = 30, /* a: bytes */
    SG_CLIENT_GIVE = 31, /* a: bytes */
    /* A share is a file in memory that stands for device memory and outlives whoever made it. */
    SG_SHARE_MAKE = 32, /* a: bytes, of the client's own; b: the file's bytes; c: enum sg_share_kind, and in the upper
                           half a context whose memory these bytes were until now, or 0 -> a: share, b: token, and the
                           descriptor of its file. Made with one hold */
    SG_SHARE_OPEN = 33, /* a: share, b: token (0: a holder asks again), c: kind -> a: bytes, b: the file's bytes, c: 1 if
                           it is this client's own, and its descriptor. One more hold, unless the token was 0 */
    SG_SHARE_CLOSE = 34,  /* a: share. One hold less; without any it ends */
    SG_SHARE_RESIZE = 35, /* a: share, b: bytes. For who made it */
    SG_EVENT_SHARE = 36,  /* a: event -> a: token */
    SG_EVENT_OPEN = 37,   /* a: event, b: token -> this client may use it; c: 1 if it is its own */
    SG_TRACE = 44, /* a: from that record on -> a: bytes, b: number of the first record, c: of the next to come, and a
                      descriptor from which the bytes can be read: struct ct_device_record each, in the order of their
                      ends. The upper half of a tag is the client's pid, the lower one its slots before this one */
    SG_CHECKPOINT = 48, /* a: pid, b: enum sg_checkpoint_act -> a: its CUprocessState, batch: the UUID; STALE: no such
                           client */
};

/* Of another process, by its pid: SG_CHECKPOINT. A pair is: whether it could be done, and doing it. */
enum sg_checkpoint_act {
    SG_CHECKPOINT_STATE = 0,
    SG_CHECKPOINT_HOLD = 1, /* no call of it begins; NOT_READY: work is under way. Ends with the asker's connection */
    SG_CHECKPOINT_LOCK = 2, /* the same, for good */
    SG_CHECKPOINT_RELEASE = 3,
    SG_CHECKPOINT_MAY_SAVE = 4,
    SG_CHECKPOINT_SAVE = 5, /* its memory leaves the device */
    SG_CHECKPOINT_MAY_LOAD = 6,
    SG_CHECKPOINT_LOAD = 7, /* and comes back; NO_MEMORY: there is no room for it */
};

enum sg_share_kind { SG_SHARE_ALLOCATION = 1, SG_SHARE_PHYSICAL = 2, SG_SHARE_POOL = 3, SG_SHARE_HOST_POOL = 4 };

enum sg_compute_mode { SG_MODE_DEFAULT = 0, SG_MODE_PROHIBITED = 2, SG_MODE_EXCLUSIVE_PROCESS = 3 };

enum sg_target {
    SG_TARGET_STREAM = 1, /* its last op; the answer names that op, so that later questions mean the same one */
    SG_TARGET_EVENT = 2,  /* its latest record */
    SG_TARGET_OP = 3,
    SG_TARGET_HOST = 4,  /* the turn of a host function */
    SG_TARGET_SPACE = 5, /* a free slot in the ring */
    SG_TARGET_SLOT = 6,  /* what this slot asked for; its number: slots up to and with it */
};

/* What can go wrong. docs/softgpu-faults.md says who sees what. */
enum sg_fault_kind {
    SG_FAULT_ILLEGAL_ADDRESS = 1,
    SG_FAULT_MISALIGNED_ADDRESS = 2,
    SG_FAULT_ILLEGAL_INSTRUCTION = 3,
    SG_FAULT_ASSERT = 4,
    SG_FAULT_STACK = 5,
    SG_FAULT_LAUNCH_FAILED = 6,
    SG_FAULT_LAUNCH_TIMEOUT = 7,
    SG_FAULT_ECC_CONTAINED = 8,
    SG_FAULT_MPS_SERVER_DEATH = 9, /* every client of a group; with a pid those of its group */
    SG_FAULT_ECC = 10,             /* everybody */
    SG_FAULT_DEVICE_LOST = 11,     /* everybody, and whoever comes until SG_FAULT_RESET */
    SG_FAULT_HANG = 12,            /* a kernel does not end; c: nanoseconds until it times out, 0: never */
    SG_FAULT_CLEAR = 13,           /* hangs end, faults still to strike do not */
    SG_FAULT_RESET = 14,           /* NOT_READY: a: clients there are */
    SG_FAULT_MPS_DEATHS = 15,      /* c: whether a client that dies with work in flight harms its group */
};

#define SG_FAULT_ALL UINT32_C(0)         /* instead of a pid: every client */
#define SG_FAULT_SELF UINT32_MAX         /* the one who asks: a kernel of its own went wrong */

/* Beside enum ct_device_result, in a reply: a is the CUresult that the program is to see. */
enum { SG_REFUSED = 100 };

struct sg_request {
    uint32_t kind;
    uint32_t reserved;
    uint64_t a, b, c;
};

/* To SG_PROJECT: a: CT_DEVICE_DONE, an instant or CT_DEVICE_NEVER; b: the op; c: the bulletin's count for which this
 * holds; behind: a is only when to ask again, because the slots were not all taken (b is 0) or the end lies beyond what
 * the server looks ahead at once (b is the op). Unasked, to an MPS server alone: behind is SG_NEWS, and a fault of one
 * client has struck its group with the CUresult a. */
enum { SG_NEWS = 2 };

/* A hello that names an account. Its name is what the device's books of memory over several processes go by. */
struct sg_greeting {
    struct sg_request request;
    char account[SG_ACCOUNT_BYTES]; /* letters, digits and -_.:@/ with a zero behind them; empty: none */
};

struct sg_reply {
    int32_t result; /* enum ct_device_result */
    uint32_t behind;
    uint64_t a, b, c;
    uint32_t batch[SG_EVENT_BATCH];
};

struct sg_hello {
    int32_t result;
    uint32_t version;
    uint32_t client;
    uint32_t ordinal;
    uint8_t uuid[16];
    uint32_t sm_cap;  /* of every context of this client; 0: none */
    uint32_t refused; /* with SG_REFUSED: the CUresult that the program is to see */
    uint32_t counts_code; /* whether loaded code takes device memory */
    uint32_t reserved;
    struct ct_device_config config;
};

#endif

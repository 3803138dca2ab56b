/* The protocol between a client of a software GPU and its device server: a socket, a ring and a bulletin page. */
#ifndef COTENANT_SOFTGPU_WIRE_H
#define COTENANT_SOFTGPU_WIRE_H

#include "device/device.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
    SG_WIRE_VERSION = 7,
    SG_RING_SLOTS = 1024, /* a power of two; a real driver's queue holds a similar number of launches */
    /* Ops of one client in the model at a time: 64 clients together stay below the model's limit of 65,535. */
    SG_WINDOW = 1000,
    SG_OUTCOMES = 4096, /* slots whose outcome can be read: a power of two, a multiple of the ring's size */
    SG_EVENT_BATCH = 32,
    SG_ACCOUNT_BYTES = 64, /* size of an account name with its terminating zero */
    SG_PCI_BUS_FIRST = 0x17, /* arbitrary; each device has its own bus, numbered as in the directory */
};

/* The longest duration of a kernel that runs alone. A longer one is rejected because it indicates a wrong unit. */
#define SG_KERNEL_MAX_NS UINT64_C(3600000000000)

/* The model's duration of a kernel that spins, which is ended before. */
#define SG_SPIN_NS (SG_KERNEL_MAX_NS / 2)

/* ---- Ring: submitted work in order; the client does not wait for a reply ----------------------------------------- */

enum sg_slot_kind {
    SG_SLOT_KERNEL = 1,
    SG_SLOT_COPY = 2,   /* value: bytes; how: CT_OP_COPY_* or CT_OP_MEMSET */
    SG_SLOT_RECORD = 3, /* value: event */
    SG_SLOT_WAIT = 4,   /* value: event */
    SG_SLOT_HOST = 5,   /* value: the client's number of the host function */
};

/* One cache line. The server copies a slot before it checks it, because the client may write it at any time. */
struct sg_slot {
    uint64_t at_ns; /* CLOCK_MONOTONIC at submission */
    uint32_t kind;
    uint32_t stream;
    union {
        struct ct_kernel kernel;
        struct {
            uint64_t value;
            uint32_t how;
        };
    };
};
_Static_assert(sizeof(struct sg_slot) == 64, "a slot is one cache line");

/* When the work of a slot completes. The server writes it whenever it advances the model and never reads it. `slot` is
 * 0 while the other fields are written; a reader must read it before and after them. */
struct sg_outcome {
    _Atomic uint64_t slot; /* number of the slot, counted from 1 */
    _Atomic uint64_t at_ns;
    /* SG_CERTAIN: the work completed at at_ns; otherwise the bulletin count for which at_ns is predicted */
    _Atomic uint64_t count;
    uint64_t reserved;
};
_Static_assert(sizeof(struct sg_outcome) == 32, "an outcome does not span two cache lines");
#define SG_CERTAIN UINT64_MAX

/* The client writes everything except `head`, `fault`, `held` and `outcomes`. The server keeps its own head and accepts
 * `tail` only if it lies within the ring. */
struct sg_ring {
    _Alignas(64) _Atomic uint64_t tail; /* number of slots published */
    _Alignas(64) _Atomic uint64_t head; /* number of slots that the server has taken */
    _Atomic uint32_t fault;             /* CUresult of the client's fatal fault, 0: none; written by the server */
    _Alignas(64) _Atomic uint32_t wake; /* futex: changes when every projection of this client may be too late */
    _Atomic uint64_t managed_bytes;     /* managed memory, which moves between device and host; for the report */
    _Alignas(64) _Atomic uint32_t held; /* futex: no call begins while it is not 0; written by the server */
    _Alignas(64) struct sg_slot slots[SG_RING_SLOTS];
    _Alignas(64) struct sg_outcome outcomes[SG_OUTCOMES]; /* indexed by slot number modulo SG_OUTCOMES */
};

/* One page for all clients of a device. It only indicates freshness: a client that corrupts it costs other clients
 * additional requests and nothing else. */
struct sg_bulletin {
    _Alignas(64) _Atomic uint64_t submissions; /* changes with every submission to the device */
    _Alignas(64) _Atomic uint32_t xids;        /* futex: changes with every Xid */
};

/* ---- Socket: requests, each answered immediately ----------------------------------------------------------------- */

/* Each comment lists the fields of a request and, after ->, those of its reply. */
enum sg_request_kind {
    /* a: wire version, b: MPS group or 0; sent alone or as the head of struct sg_hello_request -> struct sg_hello and
     * the descriptors of ring and bulletin */
    SG_HELLO = 1,
    SG_CONTEXT_CREATE = 2,  /* a: SM cap -> a: context, b: its legacy stream, batch[0]: the cap in effect */
    SG_CONTEXT_DESTROY = 3, /* a: context */
    SG_STREAM_CREATE = 4,   /* a: context, b: enum ct_stream_kind, c: priority -> a: stream */
    SG_STREAM_DESTROY = 5,  /* a: stream */
    SG_EVENTS_CREATE = 6,   /* a: context -> a: number of events, batch: their handles */
    /* a: event, b: event, c: slots to take first -> a, b: their instants; NOT_READY: they are not both complete, and
     * the other fields are those of SG_PROJECT for b */
    SG_EVENT_TIMES = 7,
    SG_MEMORY_TAKE = 8,  /* a: context, b: bytes */
    SG_MEMORY_GIVE = 9,  /* a: context, b: bytes */
    SG_MEMORY_INFO = 10, /* -> a: free bytes, b: total bytes */
    SG_PROJECT = 11,     /* a: enum sg_target, b: its number, c: slots to take first -> struct sg_reply, see below */
    SG_HOST_DONE = 12,   /* a: the client's number of the host function */
    SG_UNSUPPORTED = 13, /* a: number of the called name */
    SG_REPORT = 14,      /* -> a: bytes, and a descriptor from which they can be read: the report as JSON */
    SG_SHUTDOWN = 15,
    SG_EVENT_DESTROY = 16, /* a: event */
    /* a: wire version -> struct sg_hello and the bulletin's descriptor; the connection does not become a client */
    SG_OBSERVE = 17,
    SG_SAMPLES = 18, /* a: instant from which samples are requested -> struct sg_observation */
    /* a: last sequence number seen, 0: none -> a: Xid, b: its sequence number, c: pid; NOT_READY: no newer one */
    SG_XID_NEXT = 19,
    /* a: enum sg_fault_kind, b: pid or SG_FAULT_ALL or SG_FAULT_SELF, and in its upper half the number of the launch
     * that fails (0: now), c: depends on the kind -> a: number of affected clients; STALE: no such client */
    SG_FAULT = 20,
    SG_CLOCK = 23, /* a: speed, of CT_DEVICE_FULL_SPEED, b: nanoseconds until full speed returns, 0: never */
    /* Requests of an MPS server. Its connection owns the group, which ends with the connection. */
    SG_GROUP_OPEN = 21,   /* -> a: group, b: SMs, batch: the UUID */
    SG_COMPUTE_MODE = 22, /* a: 1: set the mode to b -> a: enum sg_compute_mode */
    /* a: pid, b: limit of its device memory in bytes or 0, c: SM cap, bit 32: below normal priority */
    SG_GROUP_ADMIT = 24,
    /* a: number of clients to skip, b: 1: only clients with contexts -> a: number of clients, b: 1 while the group
     * refuses new clients, batch: pids */
    SG_GROUP_STATE = 25,
    /* a: pid or 0 for all, b: the CUresult that they receive -> a: number of affected clients */
    SG_GROUP_FAIL = 26,
    SG_GROUP_LEAVE = 27, /* from a client: it exits in order; work in flight is no fault */
    /* Memory of the client itself, which belongs to no context. */
    SG_CLIENT_TAKE = 30, /* a: bytes */
    SG_CLIENT_GIVE = 31, /* a: bytes */
    /* A share is a memory file that represents device memory and outlives the client that created it. */
    /* a: bytes of the client's own memory; b: the file's bytes; c: enum sg_share_kind, and in the upper half the
     * context that the bytes belonged to, or 0 -> a: share, b: token, and the descriptor of its file. The new share has
     * one hold */
    SG_SHARE_MAKE = 32,
    /* a: share, b: token (0: the requester holds it already), c: kind -> a: bytes, b: the file's bytes, c: 1 if this
     * client owns it, and its descriptor. Adds a hold unless the token is 0 */
    SG_SHARE_OPEN = 33,
    SG_SHARE_CLOSE = 34,  /* a: share. Removes a hold; the share ends with its last hold */
    SG_SHARE_RESIZE = 35, /* a: share, b: bytes. Only its owner may resize it */
    SG_EVENT_SHARE = 36,  /* a: event -> a: token */
    /* a: event, b: token -> c: 1 if the event is the client's own. The client may use the event afterwards */
    SG_EVENT_OPEN = 37,
    /* a: number of the first record -> a: bytes, b: number of the first record returned, c: of the next record to come,
     * and a descriptor from which the bytes can be read: struct ct_device_record each, in the order of their ends. The
     * upper half of a tag is the client's pid, the lower half the number of its slots before this one */
    SG_TRACE = 44,
    /* a: pid, b: enum sg_checkpoint_action -> a: its CUprocessState, batch: the UUID; STALE: no such client */
    SG_CHECKPOINT = 48,
    SG_TIME_SLICE = 50, /* a: nanoseconds of a time slice, 0: only read -> a: those in effect */
    /* a: slot of a kernel that spins, b: 1: end it if it is SG_SPIN_RUNNING -> a: enum sg_spin_progress, before that */
    SG_SPIN = 51,
    SG_CODE_COUNT = 49, /* a: loaded kernels that can be executed, b: loaded kernels that cannot */
};

/* Actions of SG_CHECKPOINT on another process, identified by its pid. A MAY action checks whether the following action
 * would succeed. */
enum sg_checkpoint_action {
    SG_CHECKPOINT_STATE = 0,
    /* No call of the process begins; NOT_READY: work is in flight. Ends with the requester's connection. */
    SG_CHECKPOINT_HOLD = 1,
    SG_CHECKPOINT_LOCK = 2, /* like HOLD, but it outlives the connection */
    SG_CHECKPOINT_RELEASE = 3,
    SG_CHECKPOINT_MAY_SAVE = 4,
    SG_CHECKPOINT_SAVE = 5, /* move its memory off the device */
    SG_CHECKPOINT_MAY_LOAD = 6,
    SG_CHECKPOINT_LOAD = 7, /* move its memory back; NO_MEMORY: it does not fit */
};

enum sg_spin_progress {
    SG_SPIN_WAITING = 0, /* no block of it runs */
    SG_SPIN_PARTLY = 1,  /* some of its blocks wait for SMs, or its process does not have the device */
    SG_SPIN_RUNNING = 2, /* all of its blocks run */
    SG_SPIN_ENDED = 3,
};

enum sg_share_kind { SG_SHARE_ALLOCATION = 1, SG_SHARE_PHYSICAL = 2, SG_SHARE_POOL = 3, SG_SHARE_HOST_POOL = 4 };

enum sg_compute_mode { SG_MODE_DEFAULT = 0, SG_MODE_PROHIBITED = 2, SG_MODE_EXCLUSIVE_PROCESS = 3 };

enum sg_target {
    /* The stream's last op; the reply names the op, so that later requests refer to the same one. */
    SG_TARGET_STREAM = 1,
    SG_TARGET_EVENT = 2, /* the event's latest record */
    SG_TARGET_OP = 3,
    SG_TARGET_HOST = 4,  /* the point at which a host function may run */
    SG_TARGET_SPACE = 5, /* a free slot in the ring */
    SG_TARGET_SLOT = 6,  /* the op of a slot; its number is counted from 1 */
};

/* Kinds of faults. docs/how-to/inject-faults.md lists the clients that each kind affects. */
enum sg_fault_kind {
    SG_FAULT_ILLEGAL_ADDRESS = 1,
    SG_FAULT_MISALIGNED_ADDRESS = 2,
    SG_FAULT_ILLEGAL_INSTRUCTION = 3,
    SG_FAULT_ASSERT = 4,
    SG_FAULT_STACK = 5,
    SG_FAULT_LAUNCH_FAILED = 6,
    SG_FAULT_LAUNCH_TIMEOUT = 7,
    SG_FAULT_ECC_CONTAINED = 8,
    SG_FAULT_MPS_SERVER_DEATH = 9, /* all clients of every group; with a pid the clients of its group */
    SG_FAULT_ECC = 10,             /* all clients */
    SG_FAULT_DEVICE_LOST = 11,     /* all clients, and new ones until SG_FAULT_RESET */
    SG_FAULT_HANG = 12,            /* a kernel does not end; c: nanoseconds until it times out, 0: never */
    SG_FAULT_CLEAR = 13,           /* end hangs and cancel pending faults */
    SG_FAULT_RESET = 14,           /* NOT_READY: a: number of connected clients */
    SG_FAULT_MPS_DEATHS = 15,      /* c: whether a client that dies with work in flight fails its group */
};

#define SG_FAULT_ALL UINT32_C(0)         /* in place of a pid: every client */
#define SG_FAULT_SELF UINT32_MAX         /* in place of a pid: the requester, one of whose kernels failed */

/* A result of replies in addition to enum ct_device_result: a is the CUresult that the program receives. */
enum { SG_REFUSED = 100 };

struct sg_request {
    uint32_t kind;
    uint32_t reserved;
    uint64_t a, b, c;
};

/* Reply to SG_PROJECT: a: CT_DEVICE_DONE, an instant or CT_DEVICE_NEVER; b: the op; c: the bulletin count for which the
 * projection holds. retry 1: a is only the instant at which to ask again, because the slots were not all taken (b is 0)
 * or because the end is further ahead than one projection reaches (b is the op). retry SG_GROUP_FAULT_NOTICE: an
 * unsolicited message to an MPS server; a fault of one client has failed its group with the CUresult a. */
enum { SG_GROUP_FAULT_NOTICE = 2 };

/* A hello that names an account. The server counts the device memory of all processes with the same account name. */
struct sg_hello_request {
    struct sg_request request;
    char account[SG_ACCOUNT_BYTES]; /* letters, digits and -_.:@/ with a terminating zero; empty: no account */
};

struct sg_reply {
    int32_t result; /* enum ct_device_result */
    uint32_t retry;
    uint64_t a, b, c;
    uint32_t batch[SG_EVENT_BATCH];
};

/* Costs of the driver's calls, properties of its clocks, and what durations of kernels depend on; all 0: none. */
struct sg_costs {
    uint64_t call_ns;             /* shortest duration of a call that reaches the driver's lock */
    uint64_t event_record_ns, event_query_ns;
    uint64_t event_resolution_ns; /* of the instants of events */
    uint64_t clock_drift_ppb;     /* by how much the device's clock is faster than the host's */
    uint64_t nvml_delay_ns;       /* age of the newest sample that NVML shows */
    uint64_t nvml_window_ns;      /* over which NVML averages utilization and power; 0: one sample period */
    uint64_t data_spread_ppm;     /* standard deviation over mean of durations that depend on a kernel's data */
};

struct sg_hello {
    int32_t result;
    uint32_t version;
    uint32_t client;
    uint32_t ordinal;
    uint8_t uuid[16];
    uint32_t sm_cap;      /* of every context of this client; 0: no cap */
    uint32_t refused;     /* with SG_REFUSED: the CUresult that the program receives */
    uint32_t counts_code; /* whether loaded code takes device memory */
    uint32_t reserved;
    struct ct_device_config config;
    struct sg_costs costs;
};

#endif

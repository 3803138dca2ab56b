/* The device server. It alone owns the state of a software GPU, so that a client's death cannot corrupt it. */
#ifndef COTENANT_SOFTGPU_SERVER_SERVER_H
#define COTENANT_SOFTGPU_SERVER_SERVER_H

#include "device/board.h"
#include "softgpu/abi/names.h"
#include "softgpu/observation.h"
#include "softgpu/server/account.h"
#include "softgpu/server/fault.h"
#include "softgpu/server/group.h"
#include "softgpu/wire.h"

#include <sys/types.h>

enum { SG_CLIENTS = CT_DEVICE_MAX_CLIENTS, SG_HOST_FUNCTIONS = 256, SG_CONNECTIONS = 128 };

/* The number of model changes that one projection covers, which takes a few milliseconds at most. */
enum { SG_PROJECTION_STEPS = 10000 };

/* The number of event records per client whose end is predicted with a reply, and the additional model changes for
 * each. */
enum { SG_PREDICTED_RECORDS = 128, SG_PREDICTION_STEPS = 32 };

/* A client is dropped after this many invalid slots. */
enum { SG_INVALID_SLOT_LIMIT = 4096 };

/* The number of completed ops that are kept. If a completion is overwritten before it is published, the client needs
 * one more request. */
enum { SG_TRACE_RECORDS = 65536 };

/* Shorter time slices are refused, because each costs the server two steps while two clients have work. */
enum { SG_MIN_SLICE_NS = 10000 };

/* Size of the report: every counter at its maximum length, every client delayed by every other, every unsupported
 * name. */
enum {
    SG_REPORT_PAIR_BYTES = 64,
    SG_REPORT_CLIENT_BYTES = 1280 + SG_CLIENTS * SG_REPORT_PAIR_BYTES,
    SG_REPORT_NAME_BYTES = 128,
    SG_REPORT_XID_BYTES = 128 + SG_XID_TEXT_BYTES,
    SG_REPORT_ACCOUNT_BYTES = 256 + SG_ACCOUNT_BYTES,
    SG_REPORT_BYTES = 4096 + SG_XIDS * SG_REPORT_XID_BYTES + SG_CLIENTS * SG_REPORT_CLIENT_BYTES +
                      SG_ACCOUNTS * SG_REPORT_ACCOUNT_BYTES + SG_NAME_COUNT * SG_REPORT_NAME_BYTES,
};

/* The maximum number of handles of each kind. The last eighth is reserved for clients that hold less than their part of
 * it, so that no client can exhaust the handles. */
enum { SG_CONTEXTS = 1024, SG_STREAMS = 8192, SG_EVENTS = 32768, SG_RESERVED_PART = 8 };

/* The maximum number of shares, each of which keeps a descriptor open, and of shared events. */
enum { SG_SHARES = 2048, SG_SHARED_EVENTS = 4096 };

struct sg_share {
    uint64_t id, token; /* id 0: free */
    uint64_t bytes, file_bytes;
    int descriptor, kind;
    int owner; /* the client that is charged for it; passes to another holder when that client ends */
    uint32_t account; /* of the client that created it */
    int is_left;      /* no client of that account holds it */
    uint32_t holds[SG_CONNECTIONS];
};

struct sg_shared_event {
    uint32_t handle; /* 0: free */
    uint64_t token;
    uint64_t users[SG_CONNECTIONS / 64];
};

/* A host function between its submission and the client's report that it has run. */
struct sg_host_function {
    uint64_t number; /* assigned by the client; 0: free */
    uint64_t before; /* the marker before it: when complete, the function may run */
    uint64_t op;
};

/* An event record: its slot and op. */
struct sg_record {
    uint64_t slot, op;
};

/* Use of the device by a client up to a sample boundary. */
struct sg_usage {
    uint64_t busy_ns, sm_ns, traffic_bytes;
};

struct sg_client {
    int socket, pidfd;
    uint64_t token; /* identifies the socket in epoll */
    int is_registered; /* it has a ring and is a client of the model */
    uint32_t serial;
    pid_t pid;
    uid_t uid;
    uint32_t model; /* handle of the client in the model */
    struct sg_admission admission;
    uint32_t is_leaving; /* it announced an orderly exit, which does not fail its group */
    uint32_t state;      /* CUprocessState */
    int locker;          /* connection that holds an incomplete lock on it: index plus one; 0: none */
    struct sg_ring *ring;
    uint64_t head;
    uint64_t tail;              /* end of the current pump; later slots are left for the next one */
    uint32_t invalid_slots;     /* slots that no valid client would write */
    uint64_t submitted;         /* number of ops passed to the model */
    uint64_t window[SG_WINDOW]; /* the last ops, indexed by number modulo SG_WINDOW */
    /* The ops of the last slots, indexed by slot number modulo SG_RING_SLOTS; 0: none. */
    uint64_t slot_ops[SG_RING_SLOTS];
    /* Latest event records, indexed by number modulo SG_PREDICTED_RECORDS. */
    struct sg_record records[SG_PREDICTED_RECORDS];
    uint64_t record_first, record_count; /* oldest record that may be incomplete, and the total number of records */
    struct sg_host_function hosts[SG_HOST_FUNCTIONS];
    uint64_t own_bytes, shared_bytes;            /* memory of the client itself, and the part of it that is in shares */
    char account_name[SG_ACCOUNT_BYTES];         /* from its hello, not validated */
    uint32_t account;                            /* index plus one; 0: none */
    uint64_t accounted_bytes;                    /* charged to the account, without shares */
    uint64_t first_sample;                       /* number of the latest sample when it connected */
    struct sg_usage usages[SG_SAMPLES_KEPT + 1]; /* indexed by sample number */
    uint32_t group;                              /* MPS group, whose clients fail together; 0: none */
    struct sg_client_fault fault;
};

/* The owner of a handle. The generation in the model's handle determines whether it is valid. */
struct sg_owner {
    uint32_t handle;
    uint16_t client; /* index plus one; 0: none */
};

struct sg_history {
    uint64_t start_ns, epoch_ns, next_ns;
    uint64_t count; /* number of samples taken, including the one at the start */
    struct sg_sample ring[SG_SAMPLES_KEPT + 1];
};

struct sg_server {
    struct ct_device *device;
    uint32_t ordinal;
    uint8_t uuid[16];
    int counts_code; /* loaded code takes device memory */
    struct sg_costs costs;
    int listener, epoll;
    int stop;
    uint32_t serial;
    int bulletin_fd;
    struct sg_bulletin *bulletin;
    struct sg_client *clients[SG_CONNECTIONS];
    int connection_of[SG_CLIENTS]; /* indexed by the model's client index */
    uint64_t published;            /* number of published records */
    struct sg_owner contexts[CT_DEVICE_MAX_HANDLES + 1];
    struct sg_owner streams[CT_DEVICE_MAX_HANDLES + 1];
    struct sg_owner events[CT_DEVICE_MAX_HANDLES + 1];
    struct sg_group groups[SG_GROUPS];
    uint32_t group_count; /* number of groups ever opened */
    uint32_t compute_mode;
    int32_t priority_least; /* as clients see it; the model has as many lower priorities for clients below normal */
    uint64_t unsupported[SG_NAME_COUNT];
    uint64_t executable_kernels, refused_kernels; /* of loaded code */
    uint64_t connected, disconnected, refused_slots;
    uint64_t share_serial;
    uint32_t shared_event_count;
    struct sg_account accounts[SG_ACCOUNTS];
    struct sg_share shares[SG_SHARES];
    struct sg_shared_event shared_events[SG_SHARED_EVENTS];
    struct sg_history history;
    struct sg_faults faults;
    char report[SG_REPORT_BYTES];
};

/* Returns whether two processes are in the same namespace of a kind, such as "pid"; where its links cannot be read,
 * whether they have the same map of user ids. */
int sg_shares_namespace(pid_t one, pid_t other, const char *kind);
/* Returns whether a client belongs to the user of the device, who alone may end it, slow it down or inject faults into
 * others: root in another user namespace does not. */
int sg_is_owner(const struct sg_client *client);

/* Serve until shutdown. Returns 0 or an errno. The socket must be listening; `uuid` has 16 bytes; `counts_code`:
 * whether loaded code takes device memory. */
int sg_serve(int listener, const struct ct_device_config *config, const struct sg_costs *costs, uint32_t ordinal,
             const uint8_t *uuid, int counts_code);

uint64_t sg_now_ns(void);
uint64_t sg_wall_ns(void);

/* Take slots from the rings in order of time and advance the model to now. */
void sg_pump(struct sg_server *server, uint64_t now_ns);
/* Return when this client's next slot can be taken, or an earlier instant; CT_DEVICE_DONE: now. */
uint64_t sg_pump_space_ns(struct sg_server *server, struct sg_client *client);
/* Whether the model has incomplete ops of the client. */
int sg_pump_busy(const struct sg_server *server, const struct sg_client *client);

/* Return the tag of an op, which maps its completion to its slot. */
uint64_t sg_outcome_tag(const struct sg_server *server, int index);
/* Write new completions to the clients' rings. */
void sg_outcomes_publish(struct sg_server *server);
/* Note that the slot just taken records an event. */
void sg_outcomes_record(struct sg_client *client, uint64_t op);
/* Write the predicted ends of the client's records to its ring, as far as the last projection and a few more steps
 * reach. `count` is the bulletin's count from before the rings were read. */
void sg_outcomes_predict(struct sg_server *server, struct sg_client *client, uint64_t count);

/* Handle one message. -1: the client violated the protocol and must be dropped. */
int sg_answer(struct sg_server *server, int index, const struct sg_request *request);

/* Requests for memory of the client, shares and shared events. Returns -1 like sg_answer(). */
int sg_share_answer(struct sg_server *server, int index, const struct sg_request *request);
/* A client ends: pass its shares on to other holders or release them. */
void sg_share_release_client(struct sg_server *server, int index);
/* Whether the client may use the event: it owns it or has opened it. */
int sg_uses_event(struct sg_server *server, uint64_t event, int index);
/* The client no longer uses another client's event. */
void sg_event_close(struct sg_server *server, uint64_t event, int index);
void sg_share_start(void); /* called once before the others */

/* Whether the client owns or holds any share. */
int sg_share_holds(const struct sg_server *server, int index);

/* Checkpoint requests for another process. Returns -1 like sg_answer(). */
int sg_checkpoint_answer(struct sg_server *server, int index, const struct sg_request *request);
int sg_is_suspended(const struct sg_client *client); /* locked: neither its slots nor its requests are taken */
/* A fault affected a suspended client: resume it, so that it receives the error. */
void sg_checkpoint_fail(struct sg_server *server, int index);
/* A connection is about to be dropped: release its incomplete locks. */
void sg_checkpoint_release(struct sg_server *server, int index);

/* Send a reply, optionally with descriptors. -1: the client does not read. */
int sg_send_reply(struct sg_client *client, const void *words, size_t bytes);
int sg_send_reply_with_fds(struct sg_client *client, void *words, size_t bytes, const int *descriptors, size_t count);

void sg_own(struct sg_owner *table, uint32_t handle, int index);
int sg_owns(const struct sg_owner *table, uint64_t handle, int index);

/* Wake all clients, because an op ended earlier than projected. */
void sg_invalidate_projections(struct sg_server *server);

/* Create memory shared with clients, sealed in size. Returns NULL and sets errno on failure. */
void *sg_map_shared(int *descriptor, size_t bytes, const char *name);

/* Advance the model to every sample boundary up to an instant and store its counters. Call this before the model
 * advances. */
void sg_sample_until(struct sg_server *server, uint64_t until_ns);
void sg_sample_start(struct sg_server *server);
void sg_sample_join(struct sg_server *server, struct sg_client *client);
/* Return the sample `back` positions before the latest one, or the oldest. */
const struct sg_sample *sg_sample_back(struct sg_server *server, uint64_t back);
void sg_observe(struct sg_server *server, uint64_t since_ns, struct sg_observation *observation);

/* Start recording ops; send the records to a client. Returns -1 like sg_answer(). */
void sg_trace_start(struct sg_server *server);
int sg_trace_send(struct sg_server *server, int index, uint64_t from);

size_t sg_report(struct sg_server *server, char *text, size_t bytes);

#endif

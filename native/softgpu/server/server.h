/* The device server: the one owner of a soft GPU's state, so that no client's death can tear it. */
#ifndef COTENANT_SOFTGPU_SERVER_H
#define COTENANT_SOFTGPU_SERVER_H

#include "device/board.h"
#include "softgpu/names.h"
#include "softgpu/observation.h"
#include "softgpu/server/account.h"
#include "softgpu/server/fault.h"
#include "softgpu/server/group.h"
#include "softgpu/wire.h"

#include <sys/types.h>

enum { SG_CLIENTS = CT_DEVICE_MAX_CLIENTS, SG_HOSTS = 256, SG_CONNECTIONS = 128 };

/* How far one answer looks ahead, in changes of the model: a few milliseconds at most, whatever was launched. */
enum { SG_FORESIGHT = 10000 };

/* Records of events whose end is foretold with an answer, per client, and how many changes further it looks for each. */
enum { SG_FORETOLD = 128, SG_FORETELL_STEPS = 32 };

/* After so many slots of nonsense a client is dropped. */
enum { SG_NONSENSE = 4096 };

/* What ran lately: as many ops are remembered. A completion that is overwritten before its client is told of it costs that
 * client a question. */
enum { SG_TRACE_RECORDS = 65536 };

/* Shorter time slices are refused: each costs the server two steps, as long as two clients have work. */
enum { SG_MIN_SLICE_NS = 10000 };

/* Room for the books as text: every counter at its longest, every client delayed by every other, every name asked for
 * in vain. */
enum {
    SG_REPORT_PAIR_BYTES = 64,
    SG_REPORT_CLIENT_BYTES = 1280 + SG_CLIENTS * SG_REPORT_PAIR_BYTES,
    SG_REPORT_NAME_BYTES = 128,
    SG_REPORT_XID_BYTES = 128 + SG_XID_TEXT_BYTES,
    SG_REPORT_ACCOUNT_BYTES = 256 + SG_ACCOUNT_BYTES,
    SG_REPORT_BYTES = 4096 + SG_XIDS * SG_REPORT_XID_BYTES + SG_CLIENTS * SG_REPORT_CLIENT_BYTES +
                      SG_ACCOUNTS * SG_REPORT_ACCOUNT_BYTES + SG_NAME_COUNT * SG_REPORT_NAME_BYTES,
};

/* Handles there can be of each kind. The last eighth is kept for clients that hold less than their part of it, so that
 * a greedy client leaves every other one something to start with. */
enum { SG_CONTEXTS = 1024, SG_STREAMS = 8192, SG_EVENTS = 32768, SG_KEPT_PART = 8 };

/* Memory that more than one client may hold: each share keeps a descriptor open. Events likewise. */
enum { SG_SHARES = 2048, SG_SHARED_EVENTS = 4096 };

struct sg_share {
    uint64_t id, token; /* id 0: free */
    uint64_t bytes, file_bytes;
    int descriptor, kind;
    int owner; /* whose books it is in; the next holder's when that client dies */
    uint32_t account; /* of who made it, whoever holds it */
    uint32_t holds[SG_CONNECTIONS];
};

struct sg_shared_event {
    uint32_t handle; /* 0: free */
    uint64_t token;
    uint64_t users[SG_CONNECTIONS / 64];
};

/* A host function between its submission and its client's word that it has run. */
struct sg_host {
    uint64_t number; /* the client's; 0: free */
    uint64_t before; /* the marker in front of it: complete when its turn has come */
    uint64_t op;
};

/* The record of an event: the slot that asked for it, and what it became. */
struct sg_record {
    uint64_t slot, op;
};

/* What a client used up to a sample boundary. */
struct sg_use {
    uint64_t busy_ns, sm_ns, traffic_bytes;
};

struct sg_client {
    int socket, pidfd;
    uint64_t token; /* by which epoll knows the socket */
    int greeted; /* has a ring and a place in the model */
    uint32_t serial;
    pid_t pid;
    uint32_t model; /* handle of the client in the model */
    struct sg_admission admission;
    uint32_t is_leaving; /* in order: it harms nobody */
    uint32_t state;      /* CUprocessState */
    int locker;          /* whose lock of it is not complete yet: index plus one; 0: nobody's */
    struct sg_ring *ring;
    uint64_t head;
    uint64_t tail;    /* how far this pump goes: what is published meanwhile is left for the next one */
    uint32_t nonsense; /* slots that no face would write */
    uint64_t submitted; /* ops given to the model so far */
    uint64_t window[SG_WINDOW]; /* the last of them, by number modulo SG_WINDOW */
    uint64_t slot_ops[SG_RING_SLOTS]; /* what the last slots became, by number modulo SG_RING_SLOTS; 0: nothing */
    struct sg_record records[SG_FORETOLD]; /* of events, the latest: by number modulo SG_FORETOLD */
    uint64_t record_first, record_count;   /* the oldest that may be under way, and how many there ever were */
    struct sg_host hosts[SG_HOSTS];
    uint64_t own_bytes, shared_bytes; /* memory of the client itself, and the part of it that is in shares */
    char account_name[SG_ACCOUNT_BYTES]; /* as it named it, to be checked */
    uint32_t account;         /* place plus one; 0: none */
    uint64_t accounted_bytes; /* there, without its shares */
    uint64_t came; /* number of the latest sample when it came */
    struct sg_use uses[SG_SAMPLES_KEPT + 1]; /* by number of the sample */
    uint32_t group; /* clients with the same number share one fate; 0: none */
    struct sg_trouble trouble;
};

/* Whose a handle is. The model's own generations say whether it still stands. */
struct sg_owner {
    uint32_t handle;
    uint16_t client; /* index plus one; 0: nobody */
};

struct sg_history {
    uint64_t start_ns, epoch_ns, next_ns;
    uint64_t count; /* samples ever taken; the one of the start is the first */
    struct sg_sample ring[SG_SAMPLES_KEPT + 1];
};

struct sg_server {
    struct ct_device *device;
    uint32_t ordinal;
    uint8_t uuid[16];
    int counts_code; /* loaded code takes device memory */
    int listener, epoll;
    int stop;
    uint32_t serial;
    int bulletin_fd;
    struct sg_bulletin *bulletin;
    struct sg_client *clients[SG_CONNECTIONS];
    int connection_of[SG_CLIENTS]; /* by the model's index of a client */
    uint64_t published;            /* records that clients were told of */
    struct sg_owner contexts[CT_DEVICE_MAX_HANDLES + 1];
    struct sg_owner streams[CT_DEVICE_MAX_HANDLES + 1];
    struct sg_owner events[CT_DEVICE_MAX_HANDLES + 1];
    struct sg_group groups[SG_GROUPS];
    uint32_t group_count; /* groups there ever were */
    uint32_t compute_mode;
    int32_t priority_least; /* that clients know: the model has as many again below, for those below normal */
    uint64_t unsupported[SG_NAME_COUNT];
    uint64_t connected, died, refused_slots;
    uint64_t share_serial;
    uint32_t shared_event_count;
    struct sg_account accounts[SG_ACCOUNTS];
    struct sg_share shares[SG_SHARES];
    struct sg_shared_event shared_events[SG_SHARED_EVENTS];
    struct sg_history history;
    struct sg_faults faults;
    char report[SG_REPORT_BYTES];
};

/* Serves until told to stop. 0, or an errno; the socket must be listening. `uuid` has 16 bytes. `counts_code`: whether
 * code that programs load takes device memory. */
int sg_serve(int listener, const struct ct_device_config *config, uint32_t ordinal, const uint8_t *uuid, int counts_code);

uint64_t sg_now_ns(void);
uint64_t sg_wall_ns(void);

/* Takes what the rings hold in the order of time, up to now; then the model stands at now. */
void sg_pump(struct sg_server *server, uint64_t now_ns);
/* When this client's next slot can be taken, or an instant before which it cannot; CT_DEVICE_DONE: now. */
uint64_t sg_pump_room(struct sg_server *server, struct sg_client *client);
/* Whether something that the model took of it is not complete. */
int sg_pump_busy(const struct sg_server *server, const struct sg_client *client);

/* What every op is tagged with, so that its completion finds the slot it came from. */
uint64_t sg_outcome_tag(const struct sg_server *server, int index);
/* Writes what was completed since into the rings of those who asked for it. */
void sg_outcomes_publish(struct sg_server *server);
/* The slot just taken records an event. */
void sg_outcomes_record(struct sg_client *client, uint64_t op);
/* Writes into this client's ring when its records will be complete, as far as that can be seen from where the last
 * projection ended. `count` is the bulletin's, read before the rings were. */
void sg_outcomes_foretell(struct sg_server *server, struct sg_client *client, uint64_t count);

/* Answers one message. -1: the client broke the protocol and is to be dropped. */
int sg_answer(struct sg_server *server, int index, const struct sg_request *request);

/* The requests about memory of the client itself, shares and shared events. -1: as sg_answer(). */
int sg_share_answer(struct sg_server *server, int index, const struct sg_request *request);
/* Before a client's end: what others hold too is theirs from now on. */
void sg_share_leave(struct sg_server *server, int index);
/* Whether the client may record, wait for or ask about the event: its own, or one that it opened. */
int sg_uses_event(struct sg_server *server, uint64_t event, int index);
/* The client is done with another's event. */
void sg_event_close(struct sg_server *server, uint64_t event, int index);
void sg_share_start(void); /* before the first of them */

/* Whether it has any part in memory that more than one client may hold. */
int sg_share_holds(const struct sg_server *server, int index);

/* What others want of a process as a whole. -1: as sg_answer(). */
int sg_checkpoint_answer(struct sg_server *server, int index, const struct sg_request *request);
int sg_is_asleep(const struct sg_client *client); /* locked: neither its slots nor its questions are taken */
/* A fault has struck a client that is asleep: it wakes to see it. */
void sg_checkpoint_fail(struct sg_server *server, int index);
/* A connection is about to be dropped: the locks that it has not completed end with it. */
void sg_checkpoint_forget(struct sg_server *server, int index);

/* Sends an answer, and one with descriptors beside the words. -1: the client does not read. */
int sg_say(struct sg_client *client, const void *words, size_t bytes);
int sg_say_with(struct sg_client *client, void *words, size_t bytes, const int *descriptors, size_t count);

void sg_own(struct sg_owner *table, uint32_t handle, int index);
int sg_owns(const struct sg_owner *table, uint64_t handle, int index);

/* Tells every client that its projections may be too late: something ended sooner than foreseen. */
void sg_disturb(struct sg_server *server);

/* Memory shared with clients: mapped, sealed in size, its descriptor in *descriptor; NULL with errno on failure. */
void *sg_shared(int *descriptor, size_t bytes, const char *name);

/* Moves the model to every sample boundary up to an instant and keeps what the books say there. To be called before
 * the model moves. */
void sg_sample_until(struct sg_server *server, uint64_t until_ns);
void sg_sample_start(struct sg_server *server);
void sg_sample_join(struct sg_server *server, struct sg_client *client);
/* The sample so many before the latest, or the oldest there is. */
const struct sg_sample *sg_sample_back(struct sg_server *server, uint64_t back);
void sg_observe(struct sg_server *server, uint64_t since_ns, struct sg_observation *told);

/* Records of what ran, from now on, and the answer to who asks for them. -1: as sg_answer(). */
void sg_trace_start(struct sg_server *server);
int sg_trace_tell(struct sg_server *server, int index, uint64_t from);

size_t sg_report(struct sg_server *server, char *text, size_t bytes);

#endif

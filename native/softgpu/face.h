/* Inside libsoftgpu.so: the objects behind the driver's handles, and what the files of the face share. */
#ifndef COTENANT_SOFTGPU_FACE_H
#define COTENANT_SOFTGPU_FACE_H

#include "softgpu/abi.h"
#include "softgpu/wire.h"

#include <pthread.h>

#define API __attribute__((visibility("default")))

enum {
    SG_DRIVER_VERSION = 13000,
    SG_MAX_DEVICES = 16,
    SG_MAX_PARAMS = 64,
    SG_PARAM_BYTES = 256,         /* of a kernel that computes: its parameters are kept until it does */
    SG_PARAM_LIMIT_BYTES = 32764, /* of any kernel, as of sm_70 */
    SG_NAME_BYTES = 512
};

/* ---- handles: every one lies in a pool that is never unmapped, so a bogus one is told by its address ------- */

enum sg_kind { SG_CONTEXT, SG_STREAM, SG_EVENT, SG_MODULE, SG_FUNCTION, SG_POOL, SG_ARRAY, SG_MIPMAP, SG_SAMPLER,
               SG_LINKER, SG_GREEN, SG_GRAPH, SG_NODE, SG_EXEC, SG_USER_OBJECT, SG_PHYSICAL, SG_KINDS };

struct sg_object {
    uint32_t alive;
    uint32_t index;
    uint64_t id;    /* never used again, unlike the address */
    uint32_t next;  /* while dead: the next free place, index plus one */
    uint32_t spare; /* a dead object keeps its other fields: a thread may still be waiting with it in hand */
};

void *sg_make(enum sg_kind kind); /* zeroed; NULL: the pool is full */
void sg_unmake(enum sg_kind kind, void *object);
int sg_alive(enum sg_kind kind, const void *handle);
void sg_hide(void *object); /* no longer a valid handle, still there for sg_each() */
/* The live objects of a kind, in no particular order: start with NULL. */
void *sg_each(enum sg_kind kind, void *before);

/* ---- devices ------------------------------------------------------------------------------------------------ */

struct sg_link {
    int socket;
    int lost;
    struct sg_ring *ring;
    struct sg_bulletin *bulletin;
    uint64_t tail;
    struct { /* the latest submissions to the device, as far as all were ours and went into one stream */
        uint64_t stream_id, first_count, next_count;
    } run;
    struct { /* the wake word as it was last seen, and the least count whose projections tell when there is nothing to ask */
        uint32_t wake;
        uint64_t since_count;
    } calm;
};

/* When the submission of this order will be complete, foreseen at a count of the bulletin. */
struct sg_foreseen {
    uint64_t order, at_ns, count;
};

struct sg_extent {
    uint64_t start, bytes;
};

/* Address space for device memory: committed only where it is touched. */
struct sg_arena {
    uint64_t start, bytes;
    int is_shared; /* a file lies behind it */
    struct sg_extent *free;
    size_t free_count, free_room;
};

struct sg_device {
    int ordinal; /* as this process numbers it */
    uint32_t number; /* as the directory numbers it */
    struct sg_link link;
    struct ct_device_config config;
    uint8_t uuid[16];
    uint32_t sm_cap; /* of all contexts of an MPS client; 0: none */
    int counts_code; /* loaded code takes device memory */
    struct sg_arena arena;
    struct CUctx_st *primary;
    uint32_t primary_users;
    unsigned primary_flags;
    struct CUmemPoolHandle_st *default_pool, *current_pool;
};

struct CUctx_st {
    struct sg_object object;
    struct sg_device *device;
    uint32_t model;
    uint32_t sm_cap; /* 0: none */
    unsigned flags, api_version, users;
    int is_primary;
    struct CUstream_st *legacy;
    uint32_t spare_events[SG_EVENT_BATCH * 8];
    uint32_t spare_count;
    size_t limits[16];
    int cache_config, shared_config;
    uint32_t peers; /* a bit per device ordinal */
    struct CUgreenCtx_st *green; /* whose context it is; NULL: an ordinary one */
};

struct CUstream_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    uint32_t model;
    unsigned flags;
    int priority;
    int is_legacy, is_per_thread;
    int is_ending; /* destroyed by the program, with work still to do */
    uint64_t thread; /* whose default stream it is; 0: nobody's any more */
    uint64_t order, done_order; /* the last submission, and the last one known to be complete */
    uint64_t slot;              /* slots of the ring up to the last submission */
    struct sg_capture *capture; /* what is put into it becomes nodes of a graph */
    const void *turn;           /* the thread whose launch of a graph is not to be interrupted */
    struct sg_foreseen foreseen;
};

struct CUevent_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    uint32_t model;
    unsigned flags;
    uint64_t order, done_order; /* 0: never recorded */
    uint64_t slot;              /* slots of the ring up to the latest record */
    int is_shared;              /* with other processes: only the server knows its latest record */
    struct CUstream_st *stream; /* where that is */
    uint64_t stream_id;
    uint64_t captured_by; /* the capture it was last recorded in; 0: a real stream */
    struct sg_foreseen foreseen;
    struct { /* when the record of this order was complete: that never changes */
        uint64_t order, at_ns;
    } instant;
};


/* ---- one lock for the face; waiting and running other people's functions happens outside of it --------------- */

extern struct sg_device sg_devices[SG_MAX_DEVICES];
extern int sg_device_count;

CUresult sg_enter(void);                       /* initialised and not forked: takes the lock */
CUresult sg_may_call(void);                    /* the same, without the lock: also while the process is locked */
CUresult sg_enter_context(CUcontext *context); /* and a context is current */
CUresult sg_leave(CUresult result);            /* gives the lock back and hands the result on */
/* How most calls begin: declares the current context and `result`. */
#define SG_ENTER(context)                                                                                              \
    CUcontext context;                                                                                                 \
    CUresult result = sg_enter_context(&context);                                                                      \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

void sg_relock(void);
void sg_unlock(void);
uint64_t sg_next_id(void);
uint64_t sg_clock_ns(void);

/* The thread's stack of contexts. */
CUcontext sg_current(void);

/* Driver calls that other driver calls are made of. */
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags);

void sg_forget_context(CUcontext context, uint64_t id); /* as its thread's current one */
CUresult sg_context_create(struct sg_device *device, unsigned flags, uint32_t sm_cap, CUcontext *made);
/* Green contexts share the primary one's memory, code and events: whose they are. */
CUcontext sg_home(CUcontext context);
/* Beside a green context stands the primary one, as the ordinary context of its streams. Either may be NULL. */
CUresult sg_stream_contexts(CUstream stream, CUcontext *ordinary, CUgreenCtx *green);
CUresult sg_event_record(CUevent event, CUstream stream);
CUresult sg_event_hold(CUstream stream, CUevent event); /* the stream waits for it */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal);
void sg_context_destroy(CUcontext context);
void sg_arrays_end(CUcontext context); /* arrays and what samples them; their memory goes with the context's */
CUresult sg_primary(struct sg_device *device, CUcontext *context);
struct sg_device *sg_device_at(CUdevice ordinal); /* NULL: there is none */
int sg_attribute(struct sg_device *device, int number); /* as cuDeviceGetAttribute */
int sg_in_callback(int set);                      /* set: 1 or 0, or -1 to ask */

/* ---- the line to the server ---------------------------------------------------------------------------------- */

/* 0, -1: nobody answers, or the CUresult of a refusal. */
int sg_link_open(const char *path, uint32_t group, struct sg_device *device);
void sg_link_close(struct sg_link *link);
int sg_ask(struct sg_link *link, const struct sg_request *request, struct sg_reply *reply); /* 0, or -1: lost */
/* With the descriptor that came beside the answer; -1: none did. */
int sg_ask_for(struct sg_link *link, const struct sg_request *request, struct sg_reply *reply, int *descriptor);
CUresult sg_result(int model_result);

/* What every call that needs this device gives, once it is lost or a fatal fault has struck: success until then. */
static inline CUresult sg_trouble(const struct sg_link *link)
{
    if (link->lost)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return (CUresult)atomic_load_explicit(&link->ring->fault, memory_order_relaxed);
}

/* Puts one op into the ring; blocks while the ring is full. The lock is held, and given up while blocked. */
CUresult sg_submit(CUstream stream, struct sg_slot *slot);
const void *sg_this_thread(void);
/* While a thread has its turn no other puts anything into the stream. */
CUresult sg_stream_take_turn(CUstream stream);
void sg_stream_end_turn(CUstream stream);

struct sg_question {
    struct sg_device *device;
    uint32_t target; /* enum sg_target */
    uint64_t number;
    uint64_t slot; /* the server must have taken this many before it can tell */
    int may_spin;
    uint64_t at_ns, count; /* answered: see struct sg_reply */
    int done;
};
/* Asks once: q->done, or the instant in q->at_ns. */
CUresult sg_foresee(struct sg_question *question);
/* Asks and sleeps until done. The lock is held, and given up while asleep. */
CUresult sg_await(struct sg_question *question);
void sg_sleep_until(struct sg_link *link, uint32_t wake, uint64_t at_ns, int may_spin);
/* While another process has locked this one no call goes on. The lock is held, and given up while waiting. */
void sg_wait_while_held(void);
void sg_wake(struct sg_link *link); /* those of this process who sleep */

CUresult sg_stream_wait(CUstream stream);
CUresult sg_stream_ready(CUstream stream); /* SUCCESS or NOT_READY */
void sg_stream_end(CUstream stream);       /* of a stream without work */
void sg_stream_retire(CUstream stream);    /* ends it once its work is done */
void sg_stream_sweep(CUcontext context);   /* ends those whose work is done by now */
CUresult sg_event_make(CUcontext context, unsigned flags, CUevent *made);
void sg_event_end(CUevent event);
/* The handle is what a callback is told; NULL for a host function. */
CUresult sg_host_submit(CUstream stream, CUstream handle, CUhostFn function, CUstreamCallback callback, void *data);
CUresult sg_event_wait(CUevent event);
CUresult sg_event_await(CUevent event); /* asks at least once, whatever is known */
/* A place in the stream behind which nothing goes on before all memory is as it should be there. */
CUresult sg_host_barrier(CUstream stream);
CUresult sg_event_ready(CUevent event);
/* Without asking: 1 complete, 0 not yet, -1 must ask. */
int sg_event_known(CUevent event);
int sg_stream_known(CUstream stream);
/* Something foreseen at this count has come: what was foreseen earlier may have come before it. */
void sg_passed(struct sg_link *link, uint64_t count);
void sg_event_look(CUevent event); /* learns its instant, if that can be told without asking */
void sg_submitted(CUstream stream, uint64_t count); /* as the latest, which made the bulletin's count this */
CUresult sg_event_seen(CUevent event);     /* its record is complete, and so is what stands before it */
void sg_event_foresaw(CUevent event, uint64_t at_ns, uint64_t count);
CUresult sg_context_wait(CUcontext context);
/* NULL, legacy and per-thread handles become streams; NULL when there is no such stream. */
CUstream sg_stream(CUcontext context, CUstream handle);
CUresult sg_stream_make(CUcontext context, unsigned flags, int priority, CUstream *made);
/* The forms for programs built for per-thread default streams: NULL means the thread's own. */
static inline CUstream sg_twin(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

#include "softgpu/memory.h"
#include "softgpu/mps.h"
#include "softgpu/code.h"
#include "softgpu/capture.h"

#endif

/* Objects behind the driver's handles, and functions shared by all files of the driver. */
#ifndef COTENANT_SOFTGPU_DRIVER_INTERNAL_H
#define COTENANT_SOFTGPU_DRIVER_INTERNAL_H

#include "softgpu/abi/cuda.h"
#include "softgpu/wire.h"

#include <pthread.h>

#define API __attribute__((visibility("default")))

enum {
    SG_DRIVER_VERSION = 13000,
    SG_MAX_DEVICES = 16,
    SG_MAX_PARAMS = 512,
    SG_BUILTIN_PARAMS = 64,
    SG_PARAM_BYTES = 256,         /* parameters of built-in kernels, which are stored until the kernel completes */
    SG_PARAM_LIMIT_BYTES = 32764, /* parameters of any kernel, as on sm_70 */
    SG_NAME_BYTES = 4096
};

/* ---- Handles: objects are in pools that are never unmapped, so invalid handles are recognised by their address --- */

enum sg_kind { SG_CONTEXT, SG_STREAM, SG_EVENT, SG_MODULE, SG_FUNCTION, SG_POOL, SG_ARRAY, SG_MIPMAP, SG_SAMPLER,
               SG_LINKER, SG_GREEN, SG_GRAPH, SG_NODE, SG_EXEC, SG_USER_OBJECT, SG_PHYSICAL, SG_KINDS };

struct sg_object {
    uint32_t alive;
    uint32_t index;
    uint64_t id;   /* unique, unlike the address */
    uint32_t next; /* of a free slot: the next free one, index plus one */
    /* The other fields of a freed object stay intact, because a thread may be waiting with a pointer to it. */
    uint32_t reserved;
};

void *sg_new(enum sg_kind kind); /* zeroed; NULL: the pool is full */
void sg_delete(enum sg_kind kind, void *object);
int sg_alive(enum sg_kind kind, const void *handle);
void sg_object_hide(void *object); /* make the handle invalid; sg_each() still returns the object */
/* Iterate over the objects of a kind in no particular order: start with NULL. */
void *sg_each(enum sg_kind kind, void *before);

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

struct sg_connection {
    int socket;
    int lost;
    struct sg_ring *ring;
    struct sg_bulletin *bulletin;
    uint64_t tail;
    struct { /* the latest submissions to the device, while all come from this process and go to one stream */
        uint64_t stream_id, first_count, next_count;
    } run;
    struct { /* the wake word as last read, and the lowest bulletin count whose predictions are lower bounds */
        uint32_t wake;
        uint64_t since_count;
    } bound;
};

/* The predicted completion of the submission with this order, made at this bulletin count. */
struct sg_prediction {
    uint64_t order, at_ns, count;
};

struct sg_extent {
    uint64_t start, bytes;
};

/* Address space for device memory. Pages are committed when they are touched. */
struct sg_address_space {
    uint64_t start, bytes;
    int is_shared; /* backed by a file */
    struct sg_extent *free;
    size_t free_count, free_capacity;
};

struct sg_device {
    int ordinal; /* number in this process */
    uint32_t number; /* number in the directory */
    struct sg_connection connection;
    struct ct_device_config config;
    uint8_t uuid[16];
    uint32_t sm_cap; /* of all contexts of an MPS client; 0: no cap */
    int counts_code; /* loaded code takes device memory */
    struct sg_costs costs;
    struct sg_address_space address_space;
    struct CUctx_st *primary;
    uint32_t primary_users;
    unsigned primary_flags;
    struct CUmemPoolHandle_st *default_pool, *current_pool;
};

struct CUctx_st {
    struct sg_object object;
    struct sg_device *device;
    uint32_t model;
    uint32_t sm_cap; /* 0: no cap */
    unsigned flags, api_version, users;
    int is_primary;
    struct CUstream_st *legacy;
    uint32_t spare_events[SG_EVENT_BATCH * 8];
    uint32_t spare_count;
    size_t limits[16];
    int cache_config, shared_config;
    uint32_t peers; /* one bit per device ordinal */
    struct CUgreenCtx_st *green; /* the green context it belongs to; NULL: an ordinary context */
};

struct CUstream_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    uint32_t model;
    unsigned flags;
    int priority;
    int is_legacy, is_per_thread;
    int is_ending;              /* destroyed by the program while it has work */
    uint64_t thread;            /* the thread whose default stream it is; 0: the thread has ended */
    uint64_t order, done_order; /* the last submission, and the last one that is known to be complete */
    uint64_t slot;              /* number of ring slots up to the last submission */
    struct sg_capture *capture; /* not NULL: submitted work becomes nodes of a graph */
    const void *owner_thread;   /* the thread that is launching a graph into it; other threads wait */
    struct sg_prediction prediction;
};

struct CUevent_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    uint32_t model;
    unsigned flags;
    uint64_t order, done_order; /* 0: never recorded */
    uint64_t slot;              /* number of ring slots up to the latest record */
    int is_shared;              /* with other processes: only the server has its latest record */
    struct CUstream_st *stream; /* stream of the latest record */
    uint64_t stream_id;
    uint64_t captured_by; /* the capture that last recorded it; 0: it was recorded in a stream */
    struct sg_prediction prediction;
    struct { /* completion of the record with this order, which is final */
        uint64_t order, at_ns;
    } instant;
};


/* ---- Locking: one lock for the driver, which is released while waiting and while callbacks run ------------------- */

extern struct sg_device sg_devices[SG_MAX_DEVICES];
extern int sg_device_count;

CUresult sg_enter(void); /* take the lock; fails before cuInit and after fork */
/* The same check without the lock; succeeds while the process is locked. */
CUresult sg_may_call(void);
CUresult sg_enter_context(CUcontext *context); /* like sg_enter(); also requires a current context */
CUresult sg_leave(CUresult result);            /* release the lock and return the result */
/* Make the current call of this thread last at least this long; sg_leave() waits for the rest. */
void sg_call_lasts(uint64_t duration_ns);
/* Begin a call: declares the current context and `result`. */
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

/* Driver calls that are used by other driver calls. */
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags);

void sg_context_pop_if_current(CUcontext context, uint64_t id); /* from this thread's stack */
CUresult sg_context_create(struct sg_device *device, unsigned flags, uint32_t sm_cap, CUcontext *made);
/* Return the context that owns memory, code and events: for a green context the primary one. */
CUcontext sg_owner_context(CUcontext context);
/* Return the contexts of a stream. In a green context, the ordinary one is the primary context. Either pointer may be
 * NULL. */
CUresult sg_stream_contexts(CUstream stream, CUcontext *ordinary, CUgreenCtx *green);
CUresult sg_event_record(CUevent event, CUstream stream);
CUresult sg_stream_wait_event(CUstream stream, CUevent event); /* the stream waits for the event */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal);
void sg_context_destroy(CUcontext context);
void sg_arrays_end(CUcontext context); /* arrays, textures and surfaces; their memory is freed with the context's */
CUresult sg_primary(struct sg_device *device, CUcontext *context);
struct sg_device *sg_device_at(CUdevice ordinal);       /* NULL: no such device */
int sg_attribute(struct sg_device *device, int number); /* value as in cuDeviceGetAttribute */
int sg_in_callback(int set);                            /* 1 or 0: set the flag; -1: only return it */

/* ---- Connection to the server ------------------------------------------------------------------------------------ */

/* 0: connected; -1: no server answers; otherwise the CUresult of a refusal. */
int sg_connection_open(const char *path, uint32_t group, struct sg_device *device);
void sg_connection_close(struct sg_connection *connection);
/* 0, or -1: the connection is lost */
int sg_call(struct sg_connection *connection, const struct sg_request *request, struct sg_reply *reply);
/* Also return the descriptor that came with the reply; -1: none. */
int sg_call_fd(struct sg_connection *connection, const struct sg_request *request, struct sg_reply *reply,
               int *descriptor);
CUresult sg_result(int model_result);

/* The error that every call on this device returns after the device is lost or a fatal fault occurred; success until
 * then. */
static inline CUresult sg_connection_status(const struct sg_connection *connection)
{
    if (connection->lost)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return (CUresult)atomic_load_explicit(&connection->ring->fault, memory_order_relaxed);
}

/* Submit one op to the ring; blocks while the ring is full. The lock is held and released while blocked. */
CUresult sg_submit(CUstream stream, struct sg_slot *slot);
const void *sg_this_thread(void);
/* While a thread has locked the stream, other threads cannot submit work to it. */
CUresult sg_stream_lock(CUstream stream);
void sg_stream_unlock(CUstream stream);

struct sg_query {
    struct sg_device *device;
    uint32_t target; /* enum sg_target */
    uint64_t number;
    uint64_t slot; /* number of slots that the server must take before it can answer */
    int may_spin;
    uint64_t at_ns, count; /* result: see struct sg_reply */
    int done;
};
/* Send one request and set query->done, or query->at_ns to the predicted instant. */
CUresult sg_project(struct sg_query *query);
/* Send requests and sleep until done. The lock is held and released while asleep. */
CUresult sg_await(struct sg_query *query);
void sg_sleep_until(struct sg_connection *connection, uint32_t wake, uint64_t at_ns, int may_spin);
/* Wait while another process has locked this one. The lock is held and released while waiting. */
void sg_wait_while_held(void);
void sg_wake(struct sg_connection *connection); /* wake the sleeping threads of this process */

CUresult sg_stream_wait(CUstream stream);
CUresult sg_stream_ready(CUstream stream); /* SUCCESS or NOT_READY */
void sg_stream_end(CUstream stream);       /* the stream must be idle */
void sg_stream_retire(CUstream stream);    /* end the stream when its work is complete */
void sg_stream_sweep(CUcontext context);   /* end retired streams that are idle */
CUresult sg_event_make(CUcontext context, unsigned flags, CUevent *made);
void sg_event_end(CUevent event);
/* `handle` is passed to a callback; NULL for a host function. */
CUresult sg_host_submit(CUstream stream, CUstream handle, CUhostFn function, CUstreamCallback callback, void *data);
CUresult sg_event_wait(CUevent event);
/* Sends at least one request, even if the event is known to be complete. */
CUresult sg_event_wait_server(CUevent event);
/* Add a point to the stream at which all earlier effects on memory are applied. */
CUresult sg_host_barrier(CUstream stream);
CUresult sg_event_ready(CUevent event);
/* Check without a request: 1: complete, 0: not complete, -1: a request is needed. */
int sg_event_local_status(CUevent event);
int sg_stream_local_status(CUstream stream);
/* A prediction made at this count has come true. Earlier predictions are no longer lower bounds. */
void sg_prediction_passed(struct sg_connection *connection, uint64_t count);
void sg_event_read_instant(CUevent event); /* set the instant of its record if it is available without a request */
void sg_note_submission(CUstream stream, uint64_t count); /* `count` is the bulletin's count after the submission */
CUresult sg_event_completed(CUevent event);     /* mark its record and earlier work of its stream as complete */
void sg_event_set_prediction(CUevent event, uint64_t at_ns, uint64_t count);
CUresult sg_context_wait(CUcontext context);
/* Convert a handle, including NULL, the legacy handle and the per-thread handle, to a stream. NULL: no such stream. */
CUstream sg_stream(CUcontext context, CUstream handle);
CUresult sg_stream_make(CUcontext context, unsigned flags, int priority, CUstream *made);
/* In the per-thread variants of calls, NULL means the thread's default stream. */
static inline CUstream sg_per_thread_stream(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

#include "softgpu/driver/memory/memory.h"
#include "softgpu/driver/context/mps.h"
#include "softgpu/driver/module/module.h"
#include "softgpu/driver/capture/capture.h"

#endif

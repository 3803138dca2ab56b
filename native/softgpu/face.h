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

enum sg_kind { SG_CONTEXT, SG_STREAM, SG_EVENT, SG_MODULE, SG_FUNCTION, SG_POOL, SG_KINDS };

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
};

struct sg_extent {
    uint64_t start, bytes;
};

/* Address space for device memory: committed only where it is touched. */
struct sg_arena {
    uint64_t start, bytes;
    struct sg_extent *free;
    size_t free_count, free_room;
};

struct sg_device {
    int ordinal; /* as this process numbers it */
    struct sg_link link;
    struct ct_device_config config;
    uint8_t uuid[16];
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
    unsigned flags, api_version, users;
    int is_primary;
    struct CUstream_st *legacy;
    uint32_t spare_events[SG_EVENT_BATCH * 8];
    uint32_t spare_count;
    size_t limits[16];
    int cache_config, shared_config;
    uint32_t peers; /* a bit per device ordinal */
    CUresult fault; /* what a kernel of it did wrong: every later call says so */
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
    struct {
        uint64_t order, at_ns, count;
    } foreseen;
};

struct CUevent_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    uint32_t model;
    unsigned flags;
    uint64_t order, done_order; /* 0: never recorded */
    uint64_t slot;              /* slots of the ring up to the latest record */
    struct CUstream_st *stream; /* where that is */
    uint64_t stream_id;
    struct {
        uint64_t order, at_ns, count;
    } foreseen;
};

struct CUmemPoolHandle_st {
    struct sg_object object;
    struct sg_device *device;
    uint64_t release_bytes, used_bytes, used_high_bytes;
    uint64_t switches[16];
};

/* ---- one lock for the face; waiting and running other people's functions happens outside of it --------------- */

extern struct sg_device sg_devices[SG_MAX_DEVICES];
extern int sg_device_count;

CUresult sg_enter(void);                       /* initialised and not forked: takes the lock */
CUresult sg_enter_context(CUcontext *context); /* and a context is current */
CUresult sg_leave(CUresult result);            /* gives the lock back and hands the result on */
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
void sg_context_destroy(CUcontext context);
CUresult sg_primary(struct sg_device *device, CUcontext *context);
struct sg_device *sg_device_at(CUdevice ordinal); /* NULL: there is none */
int sg_in_callback(int set);                      /* set: 1 or 0, or -1 to ask */

/* ---- the line to the server ---------------------------------------------------------------------------------- */

int sg_link_open(const char *path, struct sg_device *device);
int sg_ask(struct sg_link *link, const struct sg_request *request, struct sg_reply *reply); /* 0, or -1: lost */
CUresult sg_result(int model_result);

/* Puts one op into the ring; blocks while the ring is full. The lock is held, and given up while blocked. */
CUresult sg_submit(CUstream stream, struct sg_slot *slot);

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
void sg_wake(struct sg_link *link); /* those of this process who sleep */

CUresult sg_stream_wait(CUstream stream);
CUresult sg_stream_ready(CUstream stream); /* SUCCESS or NOT_READY */
void sg_stream_end(CUstream stream);       /* of a stream without work */
CUresult sg_event_wait(CUevent event);
CUresult sg_event_ready(CUevent event);
CUresult sg_context_wait(CUcontext context);
/* NULL, legacy and per-thread handles become streams; NULL when there is no such stream. */
CUstream sg_stream(CUcontext context, CUstream handle);
CUresult sg_stream_make(CUcontext context, unsigned flags, int priority, CUstream *made);

/* ---- memory -------------------------------------------------------------------------------------------------- */

enum sg_memory_kind { SG_MEMORY_DEVICE, SG_MEMORY_MANAGED, SG_MEMORY_HOST, SG_MEMORY_REGISTERED };

struct sg_memory {
    uint64_t start, bytes;
    uint64_t taken_bytes; /* at the server */
    uint64_t id, context_id;
    struct CUctx_st *context;
    struct sg_device *device;
    struct CUmemPoolHandle_st *pool;
    enum sg_memory_kind kind;
    unsigned flags;
    int is_ending; /* freed in stream order, its turn still to come */
    int is_variable; /* of a module: goes with it, cannot be freed */
};

struct sg_memory *sg_memory_at(uint64_t address); /* the one that holds this address; NULL: none */
/* Whether these bytes lie in one allocation that the device can reach. */
int sg_memory_covers(uint64_t address, uint64_t bytes);
CUresult sg_memory_make(CUcontext context, uint64_t bytes, enum sg_memory_kind kind, unsigned flags, uint64_t *address);
CUresult sg_memory_register(CUcontext context, uint64_t address, uint64_t bytes, unsigned flags);
void sg_memory_drop(uint64_t address);
void sg_memory_drop_context(CUcontext context);
void sg_memory_leave_pool(CUmemoryPool pool);
/* Whether the program's own memory can be read, or written, there. */
int sg_host_reaches(uint64_t start, uint64_t bytes, int is_write);
int sg_arena_open(struct sg_arena *arena, uint64_t capacity_bytes);
uint64_t sg_arena_take(struct sg_arena *arena, uint64_t bytes);
void sg_arena_give(struct sg_arena *arena, uint64_t start, uint64_t bytes);

/* ---- effects: what an op does to memory, done when its completion is first observed --------------------------- */

enum sg_effect_kind {
    SG_EFFECT_COPY,
    SG_EFFECT_FILL,
    SG_EFFECT_KERNEL,
    SG_EFFECT_FREE,
    SG_EFFECT_HOST,
    SG_EFFECT_RECORD,
    SG_EFFECT_WAIT
};

struct sg_box { /* a 3D piece of memory: rows of width bytes, pitch bytes apart, slices of slice bytes apart */
    uint64_t start, pitch, slice;
};

struct sg_effect {
    uint64_t order;
    uint64_t stream_id, context_id;
    struct sg_link *link;
    uint64_t slot; /* its number in the ring */
    enum sg_effect_kind kind;
    int is_legacy, is_blocking;
    void *staged; /* freed after it took effect */
    union {
        struct {
            struct sg_box target, source;
            uint64_t width, height, depth;
        } copy;
        struct {
            struct sg_box target;
            uint64_t width, height; /* in elements, rows */
            uint32_t value, element_bytes;
        } fill;
        struct {
            int builtin;
            uint32_t grid[3], block[3];
            unsigned char params[SG_PARAM_BYTES];
            uint32_t offsets[SG_MAX_PARAMS], param_count;
        } kernel;
        struct {
            uint64_t address, order; /* of the last op before it in its stream */
            CUstream stream;
        } free;
        struct {
            CUhostFn function;
            CUstreamCallback callback;
            CUstream handle;
            void *data;
            uint64_t number;
            struct sg_device *device;
        } host;
        struct {
            uint64_t event_id;
        } event;
    };
};

/* Remembers it for the stream's latest submission. */
CUresult sg_effect_add(CUstream stream, const struct sg_effect *effect);
/* Does everything submitted up to `order` that is not behind a host function still to run. */
void sg_effects_apply(uint64_t order);
void sg_effects_drop_context(uint64_t context_id);
int sg_effects_hosts(void);   /* host functions still to run */
int sg_effects_pending(void); /* anything still to take effect */
/* For the callback thread: the first host function that waits in each stream, copied; and the word that one has run. */
size_t sg_effects_waiting(struct sg_effect *effects, size_t room);
void sg_effects_host_ran(uint64_t order);
CUresult sg_callbacks_start(void);
void sg_callbacks_poke(void);

/* ---- code ------------------------------------------------------------------------------------------------------ */

enum sg_builtin { SG_BUILTIN_NONE, SG_BUILTIN_VECADD, SG_BUILTIN_SAXPY, SG_BUILTIN_GEMM, SG_BUILTIN_REDUCE,
                  SG_BUILTIN_FILL, SG_BUILTINS };

/* What an image says about one kernel. */
struct sg_kernel {
    char name[SG_NAME_BYTES];
    enum sg_builtin builtin;
    uint32_t param_count;
    uint32_t param_bytes[SG_MAX_PARAMS], param_offset[SG_MAX_PARAMS];
    uint64_t duration_ns;      /* alone on the device, whatever the grid; 0: by block */
    int duration_param;        /* a parameter holds the duration: its index; -1: none */
    uint64_t block_ns;         /* each block */
    double thread_ns;          /* and for each thread of a block */
    double bytes_per_block, bytes_per_thread;
    uint32_t registers, shared_bytes, max_threads, blocks_per_sm, local_bytes, const_bytes;
    double jitter; /* standard deviation over mean */
    int ptx_version, binary_version;
};

struct sg_variable {
    char name[SG_NAME_BYTES];
    uint64_t bytes;
    unsigned char *initial; /* NULL: zeros */
};

struct sg_image {
    struct sg_kernel *kernels;
    size_t count, room;
    struct sg_variable *variables;
    size_t variable_count;
};

/* Reads any kind of image. CUDA_SUCCESS, or the driver's code; `bytes` 0: unknown, ends where the format says. */
CUresult sg_image_read(const void *data, size_t bytes, struct sg_image *image);
void sg_image_free(struct sg_image *image);
CUresult sg_image_text(const char *text, size_t bytes, struct sg_image *image);
CUresult sg_image_ptx(const char *text, size_t bytes, struct sg_image *image);
CUresult sg_image_elf(const unsigned char *data, size_t bytes, struct sg_image *image);
CUresult sg_image_fatbin(const unsigned char *data, size_t bytes, struct sg_image *image);
struct sg_kernel *sg_image_add(struct sg_image *image, const char *name, size_t length); /* NULL: no room */
/* 0, or -1: not to be had. The initial bytes are copied; NULL: zeros. */
int sg_image_variable(struct sg_image *image, const char *name, size_t length, uint64_t bytes, const void *initial);
int sg_variables_copy(struct sg_image *image, const struct sg_image *source);
void sg_variables_free(struct sg_image *image);
int sg_kernel_param(struct sg_kernel *kernel, uint32_t bytes, uint32_t alignment);       /* 0, or -1: too many */
int sg_kernel_fits(const struct sg_kernel *kernel); /* whether its parameters lie within what such a kernel may have */
void sg_kernel_default(struct sg_kernel *kernel); /* the stated model of code we cannot run */

CUresult sg_builtin_run(const struct sg_effect *effect);
void sg_context_fault(uint64_t context_id, CUresult fault);
int sg_builtin_find(const char *name, size_t length);
void sg_builtin_shape(struct sg_kernel *kernel); /* its parameters */

/* A variable's memory in one context. */
struct sg_placed {
    size_t variable;
    uint64_t context_id, address, memory_id;
};

/* Modules and libraries are one thing here, and so are functions and kernels: a library's kernel has no context. */
struct CUmod_st {
    struct sg_object object;
    struct CUctx_st *context; /* NULL: a library */
    uint64_t context_id;
    struct sg_image image;
    struct CUfunc_st **functions; /* made when asked for; one per kernel of the image */
    struct sg_placed *placed;     /* its variables, as asked for */
    size_t placed_count;
};

/* What launches that take no arguments of their own will use. */
struct sg_old {
    unsigned block[3];
    uint32_t shared_bytes, param_bytes;
    unsigned char params[4096]; /* as many as a kernel of that time could have */
};

struct CUfunc_st {
    struct sg_object object;
    struct CUmod_st *module;
    struct sg_kernel *kernel;
    uint32_t dynamic_bytes; /* how much shared memory a launch may add */
    int carveout, cluster_allowed;
    uint64_t launches;
    struct sg_old *old; /* NULL until something of it is set */
};

/* An attribute of launches and streams: taken, if only as advice; refused as unsupported; or none at all. */
CUresult sg_attribute_known(int attribute);
void sg_module_end(struct CUmod_st *module);
void sg_variables_end(struct CUmod_st *module);
CUresult sg_function_launch(CUcontext context, struct CUfunc_st *function, const unsigned grid[3],
                            const unsigned block[3], unsigned shared_bytes, CUstream stream, void **params,
                            void **extra, int is_cooperative);
uint32_t sg_function_occupancy(const struct sg_device *device, const struct CUfunc_st *function, uint32_t threads,
                               size_t shared_bytes);

#endif

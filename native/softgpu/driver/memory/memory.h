/* Device memory, and the effects of ops on it. */
#ifndef COTENANT_SOFTGPU_DRIVER_MEMORY_MEMORY_H
#define COTENANT_SOFTGPU_DRIVER_MEMORY_MEMORY_H

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

enum { SG_MEMORY_UNIT = 512 }; /* device memory is allocated and charged in multiples of it */

enum sg_memory_kind { SG_MEMORY_DEVICE, SG_MEMORY_MANAGED, SG_MEMORY_HOST, SG_MEMORY_REGISTERED };

struct sg_memory {
    uint64_t start, bytes;
    uint64_t charged_bytes; /* charged at the server */
    uint64_t id, context_id;
    struct CUctx_st *context;
    struct sg_device *device;
    struct CUmemPoolHandle_st *pool;
    enum sg_memory_kind kind;
    unsigned flags;
    int is_ending; /* a stream-ordered free is pending */
    int is_variable; /* owned by a module or an array; the program cannot free it */
    int is_of_graph; /* its address belongs to a graph and outlives the memory */
    int is_by_graph; /* allocated by a graph, which may no longer exist */
    uint32_t skipped_frees;/* pending frees that a later launch of its graph has superseded */
    int is_sync;                  /* the program requested synchronous copies */
    struct sg_physical *physical; /* mapped from there and removed with its mapping */
    uint32_t readers, writers;    /* devices that may access a mapping, one bit per ordinal */
    uint64_t share;               /* number of the share at the server; 0: not shared */
    uint64_t opened;              /* number of times that memory of another process was opened; 0: own memory */
};

/* Memory without an address, created by cuMemCreate. */
struct sg_physical {
    struct sg_object object;
    struct sg_device *device; /* also of its connection */
    uint64_t bytes;
    uint64_t base;  /* address of its permanent mapping; other mappings refer to the same pages */
    uint64_t share; /* number of the share at the server; 0: not shared */
    uint32_t handles, maps;
    int is_imported;
    CUmemAllocationProp props;
};

struct CUmemPoolHandle_st {
    struct sg_object object;
    struct sg_device *device;
    struct sg_address_space address_space; /* of a pool that can be exported or was imported */
    uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes, release_bytes, max_bytes;
    uint64_t share, allocations;
    enum sg_memory_kind kind;
    int handle_types, is_imported;
    int switches[4];
    uint32_t readers, writers; /* devices with access, one bit per ordinal */
};

/* Create a file at the server that represents device memory while any process holds it. `context` is the model's number
 * of the context that the bytes belonged to, or 0. The caller closes the descriptor. */
CUresult sg_share_make(struct sg_device *device, uint32_t context, enum sg_share_kind kind, uint64_t bytes,
                       uint64_t file_bytes, uint64_t *share, int *descriptor);
CUresult sg_share_open(struct sg_device *device, uint64_t share, uint64_t token, enum sg_share_kind kind,
                       struct sg_reply *reply, int *descriptor);
void sg_share_close(struct sg_device *device, uint64_t share);
/* Identify the share of a descriptor by the name of its file. NULL: it is not a share of a visible device. */
struct sg_device *sg_share_from_file(int descriptor, uint64_t *share, uint64_t *token);
struct sg_device *sg_device_by_uuid(const uint8_t *uuid);
/* Copy [from, from + bytes) to the file. Pages of zeros are skipped. */
int sg_share_write(int descriptor, uint64_t from, uint64_t bytes);
/* Charge or release memory of the process that belongs to no context. */
CUresult sg_client_charge(struct sg_device *device, uint64_t bytes, int is_release);

/* Memory that a pool frees stays reserved until the next synchronisation, and after that up to the release
 * threshold. */
CUresult sg_pool_charge(CUmemoryPool pool, uint64_t bytes);
void sg_pool_release(CUmemoryPool pool, uint64_t bytes);
void sg_pools_trim_freed(void);
/* Release all memory that pools of the device reserve but do not use. 1: some was released. */
int sg_pools_reclaim(struct sg_device *device);

struct sg_memory *sg_memory_at(uint64_t address); /* the allocation that contains this address; NULL: none */
CUresult sg_memory_make(CUcontext context, uint64_t bytes, enum sg_memory_kind kind, unsigned flags, uint64_t *address);
CUresult sg_memory_register(CUcontext context, uint64_t address, uint64_t bytes, unsigned flags);
/* Allocate device memory at a reserved address. */
CUresult sg_memory_allocate_at(CUcontext context, uint64_t address, uint64_t bytes);
uint64_t sg_memory_charged(uint64_t bytes); /* the bytes charged for an allocation of this size; 0: too large */
CUresult sg_memory_free_in(CUstream stream, struct sg_memory *memory); /* in stream order */
void sg_graph_memory_charge(const struct sg_device *device, int64_t used_bytes, int64_t reserved_bytes);
void sg_memory_drop(uint64_t address);
void sg_memory_drop_context(CUcontext context);
/* Allocate from a pool, which is charged for it. */
CUresult sg_memory_make_from(CUmemoryPool pool, CUcontext context, uint64_t bytes, uint64_t *address);
/* Hand out memory again that was freed in the same stream. Return whether there was some of about this size. */
int sg_memory_reuse(CUmemoryPool pool, CUcontext context, CUstream stream, uint64_t bytes, uint64_t *address);
/* Add an entry for address space of the caller. The memory is neither charged nor freed here. */
struct sg_memory *sg_memory_insert(CUcontext context, struct sg_device *device, uint64_t address, uint64_t bytes);
/* By address; NULL as argument: the first entry, as result: the end. */
struct sg_memory *sg_memory_next(const struct sg_memory *memory);
int sg_memory_overlaps(uint64_t address, uint64_t bytes); /* whether any allocation overlaps */
void sg_memory_remove_entry(uint64_t address);            /* remove only the entry */
/* Whether a device may read or write the whole range, which may span adjacent mappings. NULL: any device. */
int sg_memory_allows(const struct sg_device *device, uint64_t address, uint64_t bytes, int is_write);
/* Wait for all contexts, so that no pending work uses the memory. */
CUresult sg_wait_all(CUcontext current);
void sg_advice_remove(uint64_t start, uint64_t bytes); /* of freed managed memory */
/* Whether this process can read or write the host memory. */
int sg_host_accessible(uint64_t start, uint64_t bytes, int is_write);
int sg_address_space_open(struct sg_address_space *address_space, uint64_t capacity_bytes);
uint64_t sg_address_space_alloc(struct sg_address_space *address_space, uint64_t bytes);
void sg_address_space_free(struct sg_address_space *address_space, uint64_t start, uint64_t bytes);

/* ---- Effects of ops on memory, applied when their completion is first observed ----------------------------------- */

enum sg_effect_kind {
    SG_EFFECT_COPY,
    SG_EFFECT_FILL,
    SG_EFFECT_KERNEL,
    SG_EFFECT_FREE,
    SG_EFFECT_HOST,
    SG_EFFECT_RECORD,
    SG_EFFECT_WAIT
};

struct sg_code_launch;

struct sg_box { /* a 3D region: rows are pitch bytes apart, slices are slice bytes apart */
    uint64_t start, pitch, slice;
};

/* A word of memory that a stream waits for or writes. */
struct sg_word {
    uint64_t address, value;
    uint32_t bytes, condition; /* condition: CU_STREAM_WAIT_VALUE_* */
    int is_write;
};

struct sg_effect {
    uint64_t order;
    uint64_t stream_id, context_id;
    struct sg_connection *connection;
    struct CUstream_st *stream; /* valid only if its id is stream_id */
    uint64_t slot; /* number of its ring slot */
    enum sg_effect_kind kind;
    int is_legacy, is_blocking;
    int is_complete; /* in the current pass, if a request was needed */
    void *staged; /* freed after the effect was applied */
    union {
        struct {
            struct sg_box target, source;
            uint64_t width, height, depth;
        } copy;
        struct {
            struct sg_box target;
            uint64_t width, height; /* elements and rows */
            uint32_t value, element_bytes;
        } fill;
        struct {
            int builtin;
            uint32_t grid[3], block[3];
            unsigned char params[SG_PARAM_BYTES];
            uint32_t offsets[SG_BUILTIN_PARAMS], param_count;
            struct sg_code_launch *code; /* NULL: a built-in kernel */
        } kernel;
        struct {
            uint64_t address, order; /* order of the last op before the free in its stream */
        } free;
        struct {
            CUhostFn function;
            CUstreamCallback callback;
            CUstream handle;
            void *data;
            uint64_t number;
            struct sg_device *device;
            struct sg_word word; /* bytes 0: a function */
            int is_at_head; /* of a wait: it only waits for the word */
        } host;
        struct {
            uint64_t event_id;
        } event;
    };
};

CUresult sg_fill_submit(const struct sg_box *target, uint64_t width, uint64_t height, uint32_t value,
                        uint32_t element_bytes, CUstream stream);

/* Add an effect for the stream's latest submission. */
CUresult sg_effect_add(CUstream stream, const struct sg_effect *effect);
/* Apply all effects submitted up to `order` that are not behind a pending host function. */
void sg_effects_apply(uint64_t order);
void sg_effects_drop_context(uint64_t context_id);
/* Return memory of the pool that was freed in the stream before, of about this size; NULL: there is none. */
struct sg_memory *sg_effects_freed_in(CUstream stream, CUmemoryPool pool, uint64_t charged_bytes);
int sg_effects_hosts(void);   /* number of pending host functions */
int sg_effects_pending(void); /* whether any effect is pending */
/* For the callback thread: copy the first pending host function of each stream; mark one as done. */
size_t sg_effects_waiting(struct sg_effect *effects, size_t capacity);
void sg_effects_host_ran(uint64_t order);
void sg_effects_set_at_head(uint64_t order);
/* Apply complete effects that write a word a stream waits for. */
void sg_effects_apply_writes(void);
/* The words that streams wait for, from submission until the condition holds. Effects that write them must be applied
 * exactly when they complete. */
int sg_word_add(uint64_t order, const struct sg_word *word); /* 0, or -1: out of memory */
void sg_word_remove(uint64_t order);
int sg_word_count(void);
int sg_word_is_written(const struct sg_effect *effect);
int sg_word_holds(const struct sg_device *device, const struct sg_word *word);
void sg_word_write(const struct sg_device *device, const struct sg_word *word);
CUresult sg_callbacks_start(void);
void sg_callbacks_wake(void);

#endif

/* Inside libsoftgpu.so: device memory, and what ops do to it. Included by face.h. */
#ifndef COTENANT_SOFTGPU_MEMORY_H
#define COTENANT_SOFTGPU_MEMORY_H

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
    int is_variable; /* of a module or an array: goes with it, cannot be freed */
    int is_of_graph; /* its address belongs to a graph and stays when the memory goes */
    int is_by_graph; /* a graph allocated it, which may be gone */
    uint32_t kept;   /* frees still to come that a later launch of its graph has overtaken */
    int is_sync;     /* the program asked for synchronous copies */
    struct sg_physical *physical; /* mapped from there: comes and goes with its mapping */
    uint32_t readers, writers;    /* of what is mapped: the devices that may, a bit per ordinal */
    uint64_t share;               /* the server's name for it, once another process may have it; 0: none may */
    uint64_t opened;              /* times another process's was opened here; 0: it is our own */
};

/* Memory that exists whether or not it has an address: what cuMemCreate makes. */
struct sg_physical {
    struct sg_object object;
    struct sg_device *device; /* of its link, too */
    uint64_t bytes;
    uint64_t home;  /* where it is mapped as long as it lives; all other mappings are of the same pages */
    uint64_t share; /* as above */
    uint32_t handles, maps;
    int is_imported;
    CUmemAllocationProp props;
};

struct CUmemPoolHandle_st {
    struct sg_object object;
    struct sg_device *device;
    struct sg_arena arena; /* of a pool that can be exported, or was imported */
    uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes, release_bytes, max_bytes;
    uint64_t share, allocations;
    enum sg_memory_kind kind;
    int handle_types, is_imported;
    int switches[4];
    uint32_t readers, writers; /* devices, a bit per ordinal */
};

/* A file at the server that stands for device memory as long as any process holds it. `context`, or 0, is the model's
 * name of the one whose memory these bytes were. The descriptor is the caller's to close. */
CUresult sg_share_make(struct sg_device *device, uint32_t context, enum sg_share_kind kind, uint64_t bytes,
                       uint64_t file_bytes, uint64_t *share, int *descriptor);
CUresult sg_share_open(struct sg_device *device, uint64_t share, uint64_t token, enum sg_share_kind kind,
                       struct sg_reply *reply, int *descriptor);
void sg_share_close(struct sg_device *device, uint64_t share);
/* Which share a descriptor is of, by the name of its file. NULL: of none that can be reached here. */
struct sg_device *sg_share_named(int descriptor, uint64_t *share, uint64_t *token);
struct sg_device *sg_device_by_uuid(const uint8_t *uuid);
/* The bytes of [from, from + bytes) go into the file; nothing is written where they are 0. */
int sg_share_fill(int descriptor, uint64_t from, uint64_t bytes);
/* Memory of the process itself, of no context. */
CUresult sg_client_book(struct sg_device *device, uint64_t bytes, int is_give);

/* Pools: what is freed stays reserved until the next synchronisation, and beyond it up to the release threshold. */
CUresult sg_pool_take(CUmemoryPool pool, uint64_t bytes);
void sg_pool_give(CUmemoryPool pool, uint64_t bytes);
void sg_pools_settle(void);
/* Everything reserved and unused, because somebody needs it. 1: there was something. */
int sg_pools_squeeze(struct sg_device *device);

struct sg_memory *sg_memory_at(uint64_t address); /* the one that holds this address; NULL: none */
CUresult sg_memory_make(CUcontext context, uint64_t bytes, enum sg_memory_kind kind, unsigned flags, uint64_t *address);
CUresult sg_memory_register(CUcontext context, uint64_t address, uint64_t bytes, unsigned flags);
/* Device memory at an address that is already taken from the arena. */
CUresult sg_memory_place(CUcontext context, uint64_t address, uint64_t bytes);
uint64_t sg_memory_taken(uint64_t bytes); /* what an allocation of that size takes; 0: too much */
CUresult sg_memory_free_in(CUstream stream, struct sg_memory *memory); /* in stream order */
void sg_graph_memory_book(const struct sg_device *device, int64_t used_bytes, int64_t reserved_bytes);
void sg_memory_drop(uint64_t address);
void sg_memory_drop_context(CUcontext context);
/* From a pool, whose books it is in. */
CUresult sg_memory_make_from(CUmemoryPool pool, CUcontext context, uint64_t bytes, uint64_t *address);
/* A piece of address space that the caller made, not to be booked or given back here. */
struct sg_memory *sg_memory_insert(CUcontext context, struct sg_device *device, uint64_t address, uint64_t bytes);
struct sg_memory *sg_memory_next(const struct sg_memory *memory); /* by address; NULL: the first, or none left */
int sg_memory_overlaps(uint64_t address, uint64_t bytes);          /* anything there */
void sg_memory_forget(uint64_t address);                          /* the entry alone */
/* Whether a device may read, or write, all of it: bytes of one allocation, or of mappings side by side; NULL: any
 * device. */
int sg_memory_allows(const struct sg_device *device, uint64_t address, uint64_t bytes, int is_write);
/* Waits for every context: whatever still is to touch some memory has then done so. */
CUresult sg_all_quiet(CUcontext current);
void sg_advice_forget(uint64_t start, uint64_t bytes); /* of managed memory that is no more */
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

/* A word of memory that a stream waits for or writes. */
struct sg_word {
    uint64_t address, value;
    uint32_t bytes, condition; /* CU_STREAM_WAIT_VALUE_... */
    int is_write;
};

struct sg_effect {
    uint64_t order;
    uint64_t stream_id, context_id;
    struct sg_link *link;
    struct CUstream_st *stream; /* its own, if that still is the one of stream_id */
    uint64_t slot; /* its number in the ring */
    enum sg_effect_kind kind;
    int is_legacy, is_blocking;
    int is_complete; /* as of the current pass, if that had to ask */
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
        } free;
        struct {
            CUhostFn function;
            CUstreamCallback callback;
            CUstream handle;
            void *data;
            uint64_t number;
            struct sg_device *device;
            struct sg_word word; /* of no bytes: a function */
            int has_turn; /* of a wait: only the word is missing */
        } host;
        struct {
            uint64_t event_id;
        } event;
    };
};

CUresult sg_fill_submit(const struct sg_box *target, uint64_t width, uint64_t height, uint32_t value,
                        uint32_t element_bytes, CUstream stream);

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
void sg_effects_has_turn(uint64_t order);
/* Does what is known to be complete and writes a word that a stream waits for. */
void sg_effects_notice(void);
/* The words that streams wait for, from submission until they have come: effects that write one must be neither early
 * nor late. */
int sg_word_await(uint64_t order, const struct sg_word *word); /* 0, or -1: no memory */
void sg_word_forget(uint64_t order);
int sg_word_count(void);
int sg_word_is_written(const struct sg_effect *effect);
int sg_word_holds(const struct sg_device *device, const struct sg_word *word);
void sg_word_write(const struct sg_device *device, const struct sg_word *word);
CUresult sg_callbacks_start(void);
void sg_callbacks_poke(void);

#endif

/* Device memory that is not a linear allocation: the interface between the files that implement it.
 *
 * No lock is held during a driver call, which may wait for work that another thread has yet to submit. What a call may
 * allocate is reserved in the ledger before the call, and the actual amount is read from the driver afterwards. */
#ifndef COTENANT_HOOK_MEMORY_SUPPLIES_H
#define COTENANT_HOOK_MEMORY_SUPPLIES_H

#include "atomics.h"
#include "hook/entry/driver.h"
#include "ledger/ledger.h"

struct ct_memory;
struct ct_holding;

/* A supply: memory for which the driver reports how much it has reserved, that is a pool, or the graph memory of a
 * device. Never freed, because another thread may be reading it; reused after its end. */
struct ct_supply {
    struct ct_supply *next;
    CUmemoryPool pool; /* NULL: the graph memory of `device` */
    CUdevice device;
    enum ct_ledger_kind kind;
    int is_counted;         /* 0: host memory, or memory of another process */
    int is_used, is_ended;  /* ended: the pool is destroyed, but its allocations keep what it reserved */
    uint32_t readers;       /* threads that are querying the driver about it */
    uint64_t counted_bytes; /* bytes in our line, without those reserved by calls in progress */
    uint64_t pending_bytes;
    uint64_t changes;     /* incremented when a call begins or is recorded; a value read before is then outdated */
    uint64_t allocations; /* allocations that are in use, or whose free is pending */
    CUcontext freed_in;   /* context of the latest free in stream order */
    uint64_t freed_home;
    uint64_t key; /* of an export or import; 0: neither */
};

/* A free in stream order that the device has not executed yet. */
struct ct_deferred_free {
    CUcontext context;
    uint64_t home;
    CUstream stream;
    int is_per_thread, has_stream; /* no stream: unknown, or destroyed */
    struct ct_supply *supply;      /* NULL: a linear allocation of `bytes`, exported under `key` unless that is 0 */
    uint64_t bytes, key, serial;
    enum ct_ledger_kind kind;
};

struct ct_supplies {
    _Atomic int lock;
    _Atomic int is_busy;          /* whether anything may have to be settled */
    _Atomic uint64_t graph_count; /* graphs that allocate memory */
    uint64_t step_bytes;          /* by which the driver's pools grow; 0: not observed yet */
    struct ct_supply *first_supply;
    uint64_t graphs_max_bytes; /* largest total of all graphs launched since nothing was reserved */
    uint64_t graphs_epoch;     /* incremented when nothing is reserved */
    struct ct_deferred_free *deferred;
    size_t deferred_count, deferred_capacity;
    uint64_t deferred_serial;
};

/* What a call may allocate, until the actual amount has been read. */
struct ct_growth {
    struct ct_supply *supply;
    uint64_t bytes;
};

enum { CT_POOL_STEP = 32 << 20, CT_PAGE_STEP = 2 << 20 };

static inline uint64_t ct_rounded(uint64_t bytes, uint64_t step)
{
    return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) / step * step;
}

/* ---- supply.c ----------------------------------------------------------------------------------------------------- */

void ct_supplies_lock(struct ct_supplies *supplies);
void ct_supplies_unlock(struct ct_supplies *supplies);
/* Find and create the supply of a pool, or of a device's graph memory. Called with the lock held; NULL: not found, or
 * out of memory. */
struct ct_supply *ct_supply_of(struct ct_supplies *supplies, CUmemoryPool pool, CUdevice device);
struct ct_supply *ct_supply_make(struct ct_supplies *supplies, CUmemoryPool pool, CUdevice device);
/* Reserves memory before a call; returns 0 if the quota does not permit even the smallest amount. */
int ct_supply_reserve(struct ct_memory *memory, struct ct_supply *supply, uint64_t max_bytes, uint64_t min_bytes,
                    struct ct_growth *growth);
/* Records the actual amount after the call. Returns 1 if that is more than was reserved, and exceeds the quota. */
int ct_supply_settle(struct ct_memory *memory, const struct ct_growth *growth, CUresult result);
/* Prevents further queries of a pool that is about to be destroyed. */
void ct_supply_close(struct ct_supplies *supplies, struct ct_supply *supply);
/* Removes allocations; with the last one, an ended supply is released. Called with the lock held. */
void ct_supply_release(struct ct_memory *memory, struct ct_supply *supply, uint64_t allocations);

/* Releases what has been freed, after a wait for all or some of the work of the current context. */
void ct_supplies_settle(struct ct_memory *memory, int is_all);
/* Trims memory that pools and graphs have cached; returns 1 if there was some. */
int ct_supplies_trim(struct ct_memory *memory);
/* Ends an entry together with its context. Returns 1 if it was a pool's or an imported one, for which no bytes are to
 * be released. */
int ct_supplies_end_holding(struct ct_memory *memory, const struct ct_holding *holding);

/* ---- pool.c ------------------------------------------------------------------------------------------------------- */

/* Completes the free of a pool's pointer that was removed from the holdings. */
CUresult ct_pool_freed(struct ct_memory *memory, const struct ct_holding *holding, CUresult result);

/* ---- deferred.c --------------------------------------------------------------------------------------------------- */

/* Adds a free in stream order; it is completed at once if the stream is idle. */
void ct_deferred_add(struct ct_memory *memory, const struct ct_deferred_free *deferred);
/* Completes the frees that the device has executed; `is_all`: the current context is idle. */
void ct_deferred_settle(struct ct_memory *memory, int is_all);
void ct_deferred_move(struct ct_memory *memory, uint64_t home, uint64_t to);
void ct_deferred_context_ended(struct ct_memory *memory, uint64_t home);
void ct_deferred_stream_ends(struct ct_memory *memory, CUstream stream);

/* ---- graph.c ------------------------------------------------------------------------------------------------------ */

/* What the nodes of a graph may allocate; 0 for most graphs. */
struct ct_graph {
    uint64_t max_bytes, min_bytes;
};
void ct_graph_sum(CUgraph graph, struct ct_graph *sum);
void ct_graph_made(CUgraphExec exec, const struct ct_graph *sum);
void ct_graph_ended(CUgraphExec graph);
/* Called around the instantiation of a graph that is uploaded at once; returns 0 if the quota does not permit it. */
int ct_graph_uploads(const struct ct_graph *sum, unsigned long long flags, struct ct_growth *growth);
/* Called around a launch or upload; returns 0 if the quota does not permit it. */
int ct_graph_reserve(CUgraphExec graph, struct ct_growth *growth);
void ct_graph_settle(const struct ct_growth *growth, CUresult result);

/* ---- share.c ------------------------------------------------------------------------------------------------------ */

uint64_t ct_share_key_of_file(int descriptor); /* 0: the file does not identify the memory */
/* Returns 0 if the ledger has no space for it. */
int ct_share_add(struct ct_memory *memory, enum ct_ledger_role role, uint64_t key, uint64_t bytes);
/* Called before memory of another process is opened, so that its owner cannot free it unnoticed in between; returns 0
 * if the ledger has no space. ct_share_closed() is called after it was closed or could not be opened. */
int ct_share_opens(struct ct_memory *memory, uint64_t key);
void ct_share_closed(struct ct_memory *memory, uint64_t key);
/* Closes a descriptor that the program must not get because the ledger has no space. */
CUresult ct_share_refused(int descriptor);
/* Releases an allocation, which stays in our account while other processes have it open. `key` is that of its export,
 * or 0. */
void ct_share_freed(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes, uint64_t key);

#endif

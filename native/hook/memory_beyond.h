/* Device memory that is not one plain allocation: what the files about it know of each other.
 *
 * No lock is held while the driver is called: it may wait for work that another thread has yet to submit. What a call may
 * take is in our line before it is made, and what it took is read from the driver after it. */
#ifndef COTENANT_HOOK_MEMORY_BEYOND_H
#define COTENANT_HOOK_MEMORY_BEYOND_H

#include "hook/driver.h"
#include "ledger/ledger.h"

#include <stdatomic.h>

struct ct_memory;
struct ct_holding;

/* Memory of which the driver says how much it has reserved: a pool's, or that of a device's graphs. Never freed: another
 * thread may be reading it; one that is over is used again for the next. */
struct ct_supply {
    struct ct_supply *next;
    CUmemoryPool pool; /* NULL: the graphs of `device` */
    CUdevice device;
    enum ct_ledger_kind kind;
    int is_counted;        /* 0: the host's memory, or another process's */
    int is_used, is_ended; /* ended: destroyed, and its allocations keep what it reserved */
    uint32_t readers;      /* threads that ask the driver about it just now */
    uint64_t booked_bytes; /* what our line has for it, besides what calls under way have reserved */
    uint64_t pending_bytes;
    uint64_t changes;     /* calls begun or booked: what was read before one of them says nothing after it */
    uint64_t allocations; /* that are out, or on their way back */
    CUcontext freed_in;   /* the context of the latest free in stream order */
    uint64_t freed_home;
    uint64_t key; /* it was exported, or imported, under; 0: neither */
};

/* A free that the device has yet to come to. */
struct ct_late {
    CUcontext context;
    uint64_t home;
    CUstream stream;
    int is_twin, has_stream;  /* no stream: nobody knows which, or it is gone */
    struct ct_supply *supply; /* NULL: a plain allocation of so many bytes, exported under the key or not */
    uint64_t bytes, key, serial;
    enum ct_ledger_kind kind;
};

struct ct_beyond {
    _Atomic int lock;
    _Atomic int is_busy;          /* whether anything here may have to be settled */
    _Atomic uint64_t graph_count; /* graphs that allocate */
    uint64_t step_bytes;          /* in which the driver's pools grow; 0: nobody has seen one grow */
    struct ct_supply *supplies;
    uint64_t graphs_most_bytes; /* what all graphs may have at once that were launched since nothing was reserved */
    uint64_t graphs_turn;       /* how often nothing was */
    struct ct_late *late;
    size_t late_count, late_room;
    uint64_t late_serial;
};

/* What a call may take, until it has been read what it took. */
struct ct_growth {
    struct ct_supply *supply;
    uint64_t bytes;
};

enum { CT_POOL_STEP = 32 << 20, CT_PAGE_STEP = 2 << 20 };

static inline uint64_t ct_rounded(uint64_t bytes, uint64_t step)
{
    return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) / step * step;
}

/* ---- memory_supply.c ----------------------------------------------------------------------------------------------- */

void ct_beyond_hold(struct ct_beyond *beyond);
void ct_beyond_let_go(struct ct_beyond *beyond);
/* A pool's, or that of a device's graphs, if it was seen; a new one. Both under the lock; NULL: there is none, or no memory for it. */
struct ct_supply *ct_supply_of(struct ct_beyond *beyond, CUmemoryPool pool, CUdevice device);
struct ct_supply *ct_supply_make(struct ct_beyond *beyond, CUmemoryPool pool, CUdevice device);
/* Before a call that may take so much: 1, or 0 when the quota does not allow even the least of it. */
int ct_supply_enter(struct ct_memory *memory, struct ct_supply *supply, uint64_t most_bytes, uint64_t least_bytes,
                    struct ct_growth *growth);
/* After it: our line has what the driver says. 1: that is more than was reserved, and more than the quota. */
int ct_supply_leave(struct ct_memory *memory, const struct ct_growth *growth, CUresult result);
/* The pool is about to be destroyed: nobody asks about it any more. */
void ct_supply_close(struct ct_beyond *beyond, struct ct_supply *supply);
/* Under the lock: one allocation fewer, and after the last one of an ended supply it is gone too. */
void ct_supply_left(struct ct_memory *memory, struct ct_supply *supply, uint64_t allocations);

/* After a wait for the device, for all of the current context or for some of it: what was freed leaves our line too. */
void ct_beyond_settle(struct ct_memory *memory, int is_all);
/* Gives back what pools and graphs keep and do not use; 1: there was something. */
int ct_beyond_squeeze(struct ct_memory *memory);
/* What its context takes along: 1 if it is of ours, and nothing else is to be given back for it. */
int ct_beyond_ended(struct ct_memory *memory, const struct ct_holding *holding);

/* ---- memory_pool.c ------------------------------------------------------------------------------------------------- */

/* Of a pool's pointer that was taken out of the holdings: what became of freeing it. */
CUresult ct_pool_freed(struct ct_memory *memory, const struct ct_holding *holding, CUresult result);

/* ---- memory_late.c ------------------------------------------------------------------------------------------------- */

/* It was freed in stream order: it is gone if the stream is idle, else later. */
void ct_late_free(struct ct_memory *memory, const struct ct_late *late);
/* Those that the device has come to; `is_all`: the current context is idle. */
void ct_late_settle(struct ct_memory *memory, int is_all);
void ct_late_move(struct ct_memory *memory, uint64_t home, uint64_t to);
void ct_late_ended(struct ct_memory *memory, uint64_t home);
void ct_late_stream_ends(struct ct_memory *memory, CUstream stream);

/* ---- memory_graph.c ------------------------------------------------------------------------------------------------ */

/* What the nodes of a graph may allocate: nothing, of nearly all graphs. */
struct ct_graph {
    uint64_t most_bytes, least_bytes;
};
void ct_graph_sum(CUgraph graph, struct ct_graph *sum);
void ct_graph_made(CUgraphExec made, const struct ct_graph *sum);
void ct_graph_ended(CUgraphExec graph);
/* Around making one that is uploaded at once: 0 when the quota does not allow it. */
int ct_graph_uploads(const struct ct_graph *sum, unsigned long long flags, struct ct_growth *growth);
/* Around a launch or upload: 0 when the quota does not allow it. */
int ct_graph_enter(CUgraphExec graph, struct ct_growth *growth);
void ct_graph_leave(const struct ct_growth *growth, CUresult result);

/* ---- memory_share.c ------------------------------------------------------------------------------------------------ */

uint64_t ct_share_key_of_file(int descriptor); /* 0: nothing that tells one from another */
/* 0: there is no room for it in the ledger. Of a process without a line nobody counts anything, unless there is a quota. */
int ct_share_add(struct ct_memory *memory, enum ct_ledger_role role, uint64_t key, uint64_t bytes);
/* Another process's: before it is opened, so that its owner cannot free it between and find nobody; 0: there is no room for it
 * in the ledger. And after it was closed, or could not be opened. */
int ct_share_opens(struct ct_memory *memory, uint64_t key);
void ct_share_closed(struct ct_memory *memory, uint64_t key);
/* There is no room for it in the ledger: the program does not get it. */
CUresult ct_share_refused(int descriptor);
/* A plain allocation is no more: it leaves our line, or stays in our account while others have it open. `key`: it was exported
 * under; 0: it was not. */
void ct_share_freed(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes, uint64_t key);

#endif

/* The tenant's side of its device's memory ledger: how does an allocation stay within the quota?
 *
 * Every call that takes device memory is: reserve, the driver's own call, give back if that failed. Without a ledger all
 * of this does nothing. A process whose record cannot be made is held to its quota all the same: nothing here needs one. */
#ifndef COTENANT_HOOK_MEMORY_H
#define COTENANT_HOOK_MEMORY_H

#include "hook/beside.h"
#include "hook/memory_beyond.h"
#include "hook/seen.h"
#include "ledger/ledger.h"

/* ---- what a process holds: a table by handle -------------------------------------------------------------------- */

enum ct_held {
    CT_HELD_NOTHING = 0,
    CT_HELD_MEMORY,   /* by a device pointer: what cuMemFree gives back */
    CT_HELD_ARRAY,
    CT_HELD_MIPMAP,
    CT_HELD_MODULE,
    CT_HELD_LIBRARY,
    CT_HELD_CONTEXT,  /* which home a context has; for one that is its own, what it takes too */
    CT_HELD_PRIMARY,  /* a primary context that is active, by its device plus one */
    CT_HELD_GREEN,    /* a green context, by its handle; the note is its device */
    CT_HELD_POOLED,   /* by a device pointer: from a pool */
    CT_HELD_PHYSICAL, /* by a handle of cuMemCreate */
    CT_HELD_MAPPED,   /* by the start of its mapping: bytes is how long that is */
    CT_HELD_POOL,
    CT_HELD_GRAPH,
    CT_HELD_OPENED,   /* another process's memory */
};

struct ct_holding {
    uint64_t key;
    uint64_t bytes, home; /* home: what it ends with, see ct_memory_home(); 0: with nothing but the process */
    uint64_t note;        /* whatever its owner likes to know again */
    uint8_t held, kind;   /* enum ct_held, enum ct_ledger_kind */
};

/* Open addressing, in one mapping that doubles when it is half full. */
struct ct_holdings {
    struct ct_holding *place;
    uint64_t places, count;
};

struct ct_memory {
    struct ct_ledger ledger;
    struct ct_beside beside;
    _Atomic uint64_t quota_bytes; /* the last that was in force; 0: none */
    _Atomic int is_online;
    _Atomic int claiming; /* one thread at a time looks for a line */
    _Atomic int lock;     /* of the holdings; never held while the driver is called or anything is waited for */
    struct ct_holdings holdings;
    struct ct_beyond beyond;
};

/* The ledger of this process, opened at its first call; NULL: there is none. */
struct ct_memory *ct_memory_open(void);

static inline struct ct_memory *ct_memory(void)
{
    struct ct_page *page = atomic_load_explicit(&ct_page, memory_order_acquire);
    if (CT_UNLIKELY(!page || !atomic_load_explicit(&page->is_memory_tried, memory_order_acquire)))
        return ct_memory_open();
    return atomic_load_explicit(&page->memory, memory_order_acquire);
}

/* ---- reserving --------------------------------------------------------------------------------------------------- */

/* Around a call of the driver that changes what is held, so that nobody takes what is seen in between for settled. Any of
 * these may be given no memory. */
void ct_memory_begin(struct ct_memory *memory);
void ct_memory_end(struct ct_memory *memory);

/* Begins, and takes the bytes: 1; or 0, and has not begun. Whoever is then refused for it is counted. */
int ct_memory_try(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes);
void ct_memory_deny(struct ct_memory *memory, uint64_t bytes);

/* The same for an allocation that takes exactly so much: first what our pools do not use is given back.
 * Begins, and takes the bytes; or says CUDA_ERROR_OUT_OF_MEMORY, counts that, and has not begun. It waits for a moment
 * (ct_memory_patience_ns at most, holding nothing) while what others of the tenant hold is unsettled. */
extern uint64_t ct_memory_patience_ns; /* 200 ms, but where a test has to wait for what it is about */
CUresult ct_memory_reserve(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes);
void ct_memory_give(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes);

/* The driver has no room for what the quota allows: says so where the node sees it, and whether to ask the driver again.
 * For online tenants alone, and for 12 s at most. Used as
 *     struct ct_wanting wanting = {0};
 *     do result = CT_NEXT(call)(...); while (ct_memory_wants(memory, &wanting, bytes, result));
 * between reserve and end. */
struct ct_wanting {
    uint64_t waited_ns;
};
int ct_memory_wants(struct ct_memory *memory, struct ct_wanting *wanting, uint64_t bytes, CUresult result);

/* What the device takes for so many bytes: the driver's allocations begin at multiples of this. */
enum { CT_MEMORY_UNIT_BYTES = 512 };
static inline uint64_t ct_memory_rounded(uint64_t bytes)
{
    return bytes > UINT64_MAX - CT_MEMORY_UNIT_BYTES
               ? UINT64_MAX
               : (bytes + CT_MEMORY_UNIT_BYTES - 1) / CT_MEMORY_UNIT_BYTES * CT_MEMORY_UNIT_BYTES;
}

/* 0: there is no quota. */
uint64_t ct_memory_quota(struct ct_memory *memory);
uint64_t ct_memory_held(struct ct_memory *memory);

/* ---- remembering ------------------------------------------------------------------------------------------------- */

/* What memory of the current context ends with: the context, or the primary context of its device. */
uint64_t ct_memory_home(struct ct_memory *memory);
#define CT_HOME_PRIMARY(device) ((uint64_t)(device) + 1)
#define CT_HOME_LEAVING (UINT64_C(1) << 63) /* and a number of its own: a context that is about to end */

/* 0: there is no room in this process for another; it counts until the process ends. */
int ct_holding_add(struct ct_memory *memory, const struct ct_holding *holding);
int ct_holding_find(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found);
/* The one that begins at or before this and is long enough. Looks at all of them. */
int ct_holding_around(struct ct_memory *memory, enum ct_held held, uint64_t inside, struct ct_holding *found);
/* Removes it, before the driver frees it: after that another thread may get the same address. Who fails to free puts it
 * back. */
int ct_holding_take(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found);
/* Everything of a kind with this note is gone, under whatever keys; nothing is given back for it. */
void ct_holdings_forget(struct ct_memory *memory, enum ct_held held, uint64_t note);
/* What ended with the one ends with the other. */
void ct_holdings_move(struct ct_memory *memory, uint64_t home, uint64_t to);
/* A context is over, and everything with it: it is forgotten and given back. */
void ct_holdings_end(struct ct_memory *memory, uint64_t home);

/* The usual way: adds the holding if the call succeeded, gives the bytes back if not, and ends what reserve began. */
CUresult ct_memory_settle(struct ct_memory *memory, const struct ct_holding *holding, CUresult result);
/* The same for a free: begin, take; then the driver; then this. `was_held` is what take said. */
CUresult ct_memory_settle_free(struct ct_memory *memory, const struct ct_holding *holding, int was_held, CUresult result);

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Of any call that failed: if it means that the process has lost the device, the first such code goes into its line. */
void ct_fault_failed(CUresult result);
static inline CUresult ct_fault_seen(CUresult result)
{
    if (CT_UNLIKELY(result != CUDA_SUCCESS))
        ct_fault_failed(result);
    return result;
}

#endif

/* The memory quota of a tenant, as enforced in each of its processes.
 *
 * Every call that allocates device memory reserves the bytes in the ledger, calls the driver, and releases the bytes if
 * that failed. Without a ledger all of this does nothing. The quota also holds in a process that has no record. */
#ifndef COTENANT_HOOK_MEMORY_MEMORY_H
#define COTENANT_HOOK_MEMORY_MEMORY_H

#include "hook/entry/membership.h"
#include "hook/memory/supplies.h"
#include "hook/entry/session.h"
#include "ledger/ledger.h"

/* ---- the table of allocations, by handle -------------------------------------------------------------------------- */

enum ct_held {
    CT_HELD_NOTHING = 0,
    CT_HELD_MEMORY, /* by device pointer: released by cuMemFree */
    CT_HELD_ARRAY,
    CT_HELD_MIPMAP,
    CT_HELD_MODULE,
    CT_HELD_LIBRARY,
    CT_HELD_CONTEXT,  /* the home of a context; for an ordinary one, its memory too */
    CT_HELD_PRIMARY,  /* an active primary context, by its device plus one */
    CT_HELD_GREEN,    /* a green context; the note is its device */
    CT_HELD_POOLED,   /* by device pointer: allocated from a pool */
    CT_HELD_PHYSICAL, /* by handle of cuMemCreate */
    CT_HELD_MAPPED,   /* by start of the mapping; bytes is its length */
    CT_HELD_POOL,
    CT_HELD_GRAPH,
    CT_HELD_OPENED, /* memory of another process */
};

struct ct_holding {
    uint64_t key;
    uint64_t bytes, home; /* home: what it is freed with, see ct_memory_home(); 0: only with the process */
    uint64_t note;        /* depends on the kind of entry */
    uint8_t held, kind;   /* enum ct_held, enum ct_ledger_kind */
};

/* A hash table with open addressing, in one mapping that doubles when it is half full. */
struct ct_holdings {
    struct ct_holding *entries;
    uint64_t capacity, count;
};

struct ct_memory {
    struct ct_ledger ledger;
    const struct ct_membership *membership;
    uint64_t attachments;         /* their number when the ledger was opened */
    _Atomic uint64_t quota_bytes; /* the last quota that was in force; 0: none */
    _Atomic int is_online;
    _Atomic int lock;     /* protects the holdings; never held during a driver call or a wait */
    struct ct_holdings holdings;
    struct ct_supplies supplies;
    struct ct_physical *free_physical; /* unused entries; protected by the lock of the supplies */
};

/* Returns the memory accounting of the device on which the call acts, opened at the first call; NULL: there is no ledger. */
struct ct_memory *ct_memory_open(void);

static inline struct ct_memory *ct_memory(void)
{
    struct ct_page *page = load_acquire(&ct_page);
    struct ct_device *device = page ? ct_device_of(page) : NULL;
    if (CT_UNLIKELY(!device || !load_acquire(&device->is_memory_tried)))
        return ct_memory_open();
    return load_acquire(&device->memory);
}

/* Uses the process's place in the tenant table after it was attached again. */
void ct_memory_reattached(struct ct_memory *memory);

/* ---- reservations ------------------------------------------------------------------------------------------------- */

/* Called around a driver call that changes what is allocated, so that other processes do not read an intermediate state
 * as settled. All functions accept NULL. */
void ct_memory_begin(struct ct_memory *memory);
void ct_memory_end(struct ct_memory *memory);

/* Begins a change and reserves the bytes; returns 0, without beginning, if the quota does not permit it.
 * ct_memory_deny() counts a refusal. */
int ct_memory_try(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes);
void ct_memory_deny(struct ct_memory *memory, uint64_t bytes);

/* The same for an allocation of exactly this size, after trimming the process's pools if necessary. Returns
 * CUDA_ERROR_OUT_OF_MEMORY, counted and without beginning, if the quota does not permit it. Waits for up to
 * ct_memory_wait_max_ns, without holding anything, while other processes of the tenant are changing what they hold. */
extern uint64_t ct_memory_wait_max_ns; /* 200 ms; changed by tests */
CUresult ct_memory_reserve(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes);
void ct_memory_release(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes);

/* Called if the driver is out of memory although the quota permits the allocation: publishes the amount for the node, and
 * returns whether to call the driver again. For online tenants only, if the node can reclaim the memory from offline
 * tenants, and for 12 s at most. Used between reserve and end as
 *     struct ct_memory_wait wait = {0};
 *     do result = CT_NEXT(call)(...); while (ct_memory_should_retry(memory, &wait, bytes, result)); */
struct ct_memory_wait {
    uint64_t waited_ns;
};
int ct_memory_should_retry(struct ct_memory *memory, struct ct_memory_wait *wait, uint64_t bytes, CUresult result);

/* Allocations of the driver begin at multiples of this. */
enum { CT_MEMORY_UNIT_BYTES = 512 };
static inline uint64_t ct_memory_rounded(uint64_t bytes)
{
    return bytes > UINT64_MAX - CT_MEMORY_UNIT_BYTES
               ? UINT64_MAX
               : (bytes + CT_MEMORY_UNIT_BYTES - 1) / CT_MEMORY_UNIT_BYTES * CT_MEMORY_UNIT_BYTES;
}

/* Returns 0 if there is no quota. */
uint64_t ct_memory_quota(struct ct_memory *memory);
uint64_t ct_memory_held(struct ct_memory *memory);

/* ---- allocations -------------------------------------------------------------------------------------------------- */

/* Returns what memory of the current context is freed with: the context, or the primary context of its device. */
uint64_t ct_memory_home(struct ct_memory *memory);
#define CT_HOME_PRIMARY(device) ((uint64_t)(device) + 1)
#define CT_HOME_ENDING (UINT64_C(1) << 63) /* plus a unique number: a context that is being destroyed */

/* Returns 0 if the process has no memory for the entry; the allocation then counts until the process ends. */
int ct_holding_add(struct ct_memory *memory, const struct ct_holding *holding);
int ct_holding_find(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found);
/* Finds the entry that contains an address; searches the whole table. */
int ct_holding_around(struct ct_memory *memory, enum ct_held held, uint64_t address, struct ct_holding *found);
/* Removes the entry before the driver frees the memory: afterwards another thread may get the same address. If the free
 * fails, the caller adds it again. */
int ct_holding_take(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found);
/* Returns the number of the device on which a handle was created, to be entered with CT_ON_DEVICE(): a program may free it
 * while a context of another device is current. CT_ANY_DEVICE: it is unknown, or the tenant has one device. */
int64_t ct_holding_device(enum ct_held held, uint64_t key);
int64_t ct_pointer_device(CUdeviceptr pointer); /* of an allocation, linear or from a pool */
int64_t ct_pool_device(CUmemoryPool pool);
int64_t ct_stream_device(CUstream stream);
/* Removes all entries of a kind with this note, without releasing their bytes. */
void ct_holdings_forget(struct ct_memory *memory, enum ct_held held, uint64_t note);
/* Changes the home of all entries. */
void ct_holdings_move(struct ct_memory *memory, uint64_t home, uint64_t to);
/* Removes and releases everything that was freed with a context. */
void ct_holdings_end(struct ct_memory *memory, uint64_t home);

/* Completes an allocation: adds the entry if the call succeeded, otherwise releases the bytes; ends the change. */
CUresult ct_memory_settle(struct ct_memory *memory, const struct ct_holding *holding, CUresult result);
/* Completes a free, after ct_memory_begin(), ct_holding_take() and the driver's call; `was_held` is the result of the
 * second. */
CUresult ct_memory_settle_free(struct ct_memory *memory, const struct ct_holding *holding, int was_held,
                               CUresult result);

/* ---- faults ------------------------------------------------------------------------------------------------------- */

/* Records the first result in the process's line after which it cannot use the device any more. Called for every failed
 * call. */
void ct_fault_record(CUresult result);
static inline CUresult ct_fault_check(CUresult result)
{
    if (CT_UNLIKELY(result != CUDA_SUCCESS))
        ct_fault_record(result);
    return result;
}

#endif

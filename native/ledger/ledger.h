/* The memory ledger of a device: how much device memory each tenant holds.
 *
 * Every process records its memory in its own ledger page, which only it can write (see gate/process.h). The node writes
 * an account for each tenant, which follows the tenant's grant page. What a tenant holds is the sum over the pages of its
 * processes, as listed in the tenant table, plus what the account adds. It is computed on every query, so there is no
 * total that a process could leave inconsistent when it dies. When a process ends, the node adds its memory to the
 * account before it removes the process from the table, until the device has released it: memory may be refused for a
 * moment, but never too much is granted. No decision about a tenant's quota reads a page of another tenant. There is no
 * clock, lock or allocation; callers do the waiting. */
#ifndef COTENANT_LEDGER_LEDGER_H
#define COTENANT_LEDGER_LEDGER_H

#include "atomics.h"
#include "gate/pages.h"

#include <stddef.h>
#include <stdint.h>

enum {
    CT_LEDGER_LINE_BYTES = 128,
    CT_LEDGER_SHARES = 256,
};

/* ---- a process's ledger page -------------------------------------------------------------------------------------- */

struct ct_ledger_line {
    _Atomic uint64_t allocated_bytes;      /* device memory that it has allocated, or is about to allocate */
    _Atomic uint64_t own_bytes;            /* estimated memory of its contexts and modules */
    _Atomic uint64_t own_version;          /* incremented with every change of own_bytes */
    _Atomic uint64_t managed_bytes;        /* counts against the quota, but need not be on the device */
    _Atomic uint64_t begun, ended;         /* calls that change any of this; equal: none is in progress */
    _Atomic uint64_t denied, denied_bytes; /* allocations refused because of the quota */
    _Atomic uint64_t wanted_bytes;         /* size of an allocation that the quota permits but for which the device has
                                            * no memory; 0: none */
    _Atomic uint64_t fault;                /* first result after which the process cannot use the device; 0: none */
    _Atomic uint64_t contexts;             /* number of contexts, so that the memory of one can be measured */
    _Atomic uint64_t code_bytes;           /* part of own_bytes that is not for contexts */
    uint64_t reserved[4];
};
_Static_assert(sizeof(struct ct_ledger_line) == CT_LEDGER_LINE_BYTES, "two cache lines");

enum ct_ledger_role {
    CT_LEDGER_EXPORT = 1,   /* memory of this process that others may open; counted in its line */
    CT_LEDGER_IMPORT = 2,   /* memory of another process that this one opened; counted for the exporter's tenant */
    CT_LEDGER_ORPHANED = 3, /* exported and then freed by this process; counts while another process has it open */
    CT_LEDGER_WRITING = 4,  /* being written, not valid yet */
};

/* Memory shared between processes. */
struct ct_ledger_share {
    _Atomic uint64_t role; /* enum ct_ledger_role; 0: free */
    _Atomic uint64_t key;  /* known to exporter and importer; never 0 */
    _Atomic uint64_t bytes;
    _Atomic uint64_t reserved;
};

struct ct_ledger_page {
    _Atomic uint64_t generation;  /* of the process; 0: it has no ledger */
    _Atomic uint64_t shares_used; /* no entry from here on was ever used */
    uint64_t reserved[6];
    struct ct_ledger_line line;
    struct ct_ledger_share share[CT_LEDGER_SHARES];
};

/* ---- a tenant's account ------------------------------------------------------------------------------------------- */

/* What the device reports for a process beyond allocated_bytes and own_bytes, and the own_version at that time plus one.
 * The excess is one word, so it is read consistently. It may be negative, which counts for that version only. */
struct ct_ledger_measurement {
    _Atomic uint64_t generation; /* of the process; 0: there is no measurement */
    _Atomic int64_t excess_bytes;
    _Atomic uint64_t measured_version;
    uint64_t reserved;
};

struct ct_ledger_account {
    _Atomic uint64_t context_bytes;     /* measured memory of a context on the tenant's device; 0: unknown */
    _Atomic uint64_t unattached_bytes;  /* memory that counts for the tenant and is in the line of none of its attached
                                         * processes */
    _Atomic uint64_t reclaimable_bytes; /* memory that the eviction of offline tenants of the device would free */
    uint64_t reserved[5];
    struct ct_ledger_measurement measurement[CT_PROCESSES]; /* by index of the process */
};

/* ---- called by a process ------------------------------------------------------------------------------------------ */

struct ct_ledger {
    const struct ct_tenant_table *table;
    const void *processes; /* the region of process pages */
    const struct ct_ledger_account *account;
    struct ct_ledger_page *page; /* of this process */
    uint32_t index, generation, tenant;
};

enum ct_ledger_result {
    CT_LEDGER_OK = 0,
    CT_LEDGER_OVER = 1,      /* beyond the quota */
    CT_LEDGER_CONTENDED = 2, /* beyond the quota only with what other processes are about to allocate, or the table was
                              * being rewritten: try again */
    CT_LEDGER_REVOKED = 3,   /* the process has no entry in the tenant table: existing allocations count, new ones are
                              * refused */
};

enum ct_ledger_kind { CT_LEDGER_ALLOCATED = 0, CT_LEDGER_OWN = 1, CT_LEDGER_MANAGED = 2 };

/* Opens the ledger with the process's page, and publishes the generation in it. The contents of the page are kept: after
 * a reconnection the process still holds its memory. `processes` is the region, `tenant` the number in the table. Not
 * thread-safe. */
void ct_ledger_open(struct ct_ledger *ledger, const struct ct_tenant_table *table, const void *processes,
                    const struct ct_ledger_account *account, struct ct_ledger_page *page, uint32_t index,
                    uint32_t generation, uint32_t tenant);

/* ct_ledger_reserve() adds the bytes to the line before the driver is called, unless the tenant would exceed its quota
 * (0: none). ct_ledger_begin() and ct_ledger_end() surround it and the driver's call. */
void ct_ledger_begin(struct ct_ledger *ledger);
void ct_ledger_end(struct ct_ledger *ledger);
int ct_ledger_reserve(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes, uint64_t quota_bytes);
void ct_ledger_release(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes);
/* Invalidates the measured memory, because the device has released or will release some at an unknown time. Called
 * before the bytes are released. */
void ct_ledger_invalidate_measurement(struct ct_ledger *ledger);
/* Counts an allocation that was refused because of the quota. */
void ct_ledger_denied(struct ct_ledger *ledger, uint64_t bytes);

/* Returns what the tenant holds: the lines of its processes, their orphaned memory that processes of the tenant have
 * open, and the unattached memory. UINT64_MAX if the table was rewritten during every attempt to read it. */
uint64_t ct_ledger_held(const struct ct_ledger *ledger);
/* Returns the measured memory of a context; 0: unknown. */
uint64_t ct_ledger_context_bytes(const struct ct_ledger *ledger);
/* Returns how much memory the node could reclaim from offline tenants. An allocation that needs more cannot succeed by
 * waiting. */
uint64_t ct_ledger_reclaimable_bytes(const struct ct_ledger *ledger);

/* Returns 1, or 0 if there is no free entry. */
int ct_ledger_share_add(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key, uint64_t bytes);
/* Records that memory was freed (an export becomes orphaned while a process has it open, and is removed from
 * allocated_bytes) or closed (an import). */
void ct_ledger_share_drop(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key);
/* Changes the size of an export, of a pool. */
void ct_ledger_share_resize(struct ct_ledger *ledger, uint64_t key, uint64_t bytes);
/* Returns the size of what a process of any tenant exported under this key, including orphaned memory; 0: none did. The
 * exporter may state any size. */
uint64_t ct_ledger_exported_bytes(const struct ct_ledger *ledger, uint64_t key);
/* Returns whether a process of any tenant states that it has it open. */
int ct_ledger_is_imported(const struct ct_ledger *ledger, uint64_t key);

/* ---- called by the node ------------------------------------------------------------------------------------------- */

/* Replaces the words of the account. */
void ct_ledger_account_write(struct ct_ledger_account *account, uint64_t context_bytes, uint64_t unattached_bytes,
                             uint64_t reclaimable_bytes);
/* Replaces the measurement of one process. */
void ct_ledger_measurement_write(struct ct_ledger_account *account, uint32_t index, uint32_t generation,
                                 int64_t excess_bytes, uint64_t measured_version);

#endif

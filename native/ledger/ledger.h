/* The memory ledger of a device: how much device memory each tenant holds. The node creates the file and every tenant
 * maps it.
 *
 * A header page, which only the node writes, is followed by an account for every slot. An account has lines, one per
 * process, and shares, for memory that is shared between processes. A process writes only its own line and its own
 * shares. What a tenant holds is the sum over its lines, computed on every query, so there is no total that a process
 * could leave inconsistent when it dies. The node clears the lines of dead processes once the device has released their
 * memory. Until then they count: memory may be refused for a moment, but never too much is granted. The quota is in the
 * grant page, which tenants cannot write. There is no clock, lock or allocation; callers do the waiting. */
#ifndef COTENANT_LEDGER_LEDGER_H
#define COTENANT_LEDGER_LEDGER_H

#include "atomics.h"

#include <stddef.h>
#include <stdint.h>

enum {
    CT_LEDGER_VERSION = 1,
    CT_LEDGER_HEADER_BYTES = 4096,
    CT_LEDGER_ACCOUNT_BYTES = 16384,
    CT_LEDGER_LINES = 63, /* processes of one tenant that use the device at once; a further one gets no memory */
    CT_LEDGER_LINE_BYTES = 128,
    CT_LEDGER_SHARES = 256,
};

static inline size_t ct_ledger_offset(uint32_t slot)
{
    return CT_LEDGER_HEADER_BYTES + (size_t)CT_LEDGER_ACCOUNT_BYTES * slot;
}

struct ct_ledger_header {
    uint64_t magic, version;
    _Atomic uint64_t slots;         /* accounts in the file; it may grow while tenants use it */
    _Atomic uint64_t context_bytes; /* measured memory of a context on this device; 0: unknown */
};

/* One process. Only that process writes the line, except for the last group. */
struct ct_ledger_line {
    _Atomic uint64_t owner;                /* ct_ledger_identity(); 0: the line is free */
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
    /* Written by the node: memory that the device reports beyond allocated_bytes and own_bytes, and the own_version at
     * that time plus one. The excess is one word, so it is read consistently. It may be negative, which counts for that
     * version only. */
    _Atomic int64_t excess_bytes;
    _Atomic uint64_t measured_version;
    uint64_t reserved_too;
};
_Static_assert(sizeof(struct ct_ledger_line) == CT_LEDGER_LINE_BYTES, "two cache lines");

enum ct_ledger_role {
    CT_LEDGER_EXPORT = 1,   /* memory of this process that others may open; counted in our line */
    CT_LEDGER_IMPORT = 2,   /* memory of another process that we opened; counted in the exporter's account */
    CT_LEDGER_ORPHANED = 3, /* exported, then freed by its process or left by its death; counts while a process has it
                             * open */
    CT_LEDGER_WRITING = 4,  /* being written, not valid yet */
};

/* Memory shared between processes. */
struct ct_ledger_share {
    _Atomic uint64_t place; /* role << 32 | line + 1 of the process that wrote it (0 after its death); 0: free */
    _Atomic uint64_t key;   /* known to exporter and importer; never 0 */
    _Atomic uint64_t bytes;
    _Atomic uint64_t reserved;
};

struct ct_ledger_account {
    _Atomic uint64_t generation;              /* of the tenant that the account belongs to; words of an earlier tenant
                                               * are ignored */
    _Atomic uint64_t lines_used, shares_used; /* no entry from here on was ever used */
    _Atomic uint64_t denied, denied_bytes;    /* of processes that have ended; the node adds them when it clears a
                                               * line */
    uint64_t reserved[11];
    struct ct_ledger_line line[CT_LEDGER_LINES];
    struct ct_ledger_share share[CT_LEDGER_SHARES];
};
_Static_assert(sizeof(struct ct_ledger_account) == CT_LEDGER_ACCOUNT_BYTES, "four pages");

/* Identifies a process, also across PID namespaces, in one word that can be claimed atomically: its PID in its own
 * namespace (22 bits), the namespace (the low 22 bits of the inode of /proc/self/ns/pid), and its start time (the low
 * 20 bits of field 22 of /proc/self/stat). Never 0. */
static inline uint64_t ct_ledger_identity(uint64_t pid, uint64_t namespace_inode, uint64_t start_ticks)
{
    return (pid & 0x3fffff) << 42 | (namespace_inode & 0x3fffff) << 20 | (start_ticks & 0xfffff);
}

/* ---- called by a process ------------------------------------------------------------------------------------------ */

struct ct_ledger {
    const struct ct_ledger_header *file; /* the whole file, mapped for reading */
    size_t bytes;
    struct ct_ledger_account *account; /* the tenant's account, mapped for writing */
    _Atomic(struct ct_ledger_line *) line; /* the process's line; NULL: all lines were in use */
    uint32_t slot;
    uint64_t generation, identity;
};

enum ct_ledger_result {
    CT_LEDGER_OK = 0,
    CT_LEDGER_OVER = 1,      /* beyond the quota */
    CT_LEDGER_CONTENDED = 2, /* beyond the quota only with what other processes are about to allocate: try again */
    CT_LEDGER_NO_LINE = 3,
    CT_LEDGER_REVOKED = 4, /* the account belongs to another tenant now: existing allocations count, new ones are
                            * refused */
};

enum ct_ledger_kind { CT_LEDGER_ALLOCATED = 0, CT_LEDGER_OWN = 1, CT_LEDGER_MANAGED = 2 };

/* Returns 0 for a ledger of this version that is large enough for its accounts. */
int ct_ledger_check(const void *memory, size_t bytes);
/* Claims a line for this process, or finds its existing one, whose amounts are then cleared because another program
 * used it before exec. Returns 0, or -1 if this is not a ledger with such an account, or the account belongs to another
 * tenant. If no line is free, the result is 0 and `line` is NULL; ct_ledger_claim() tries again and returns 1 on
 * success. Not thread-safe. */
int ct_ledger_open(struct ct_ledger *ledger, const void *file, size_t bytes, struct ct_ledger_account *account,
                   uint32_t slot, uint64_t generation, uint64_t identity);
int ct_ledger_claim(struct ct_ledger *ledger);

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

/* Returns what a tenant holds: the sum over its lines, and its orphaned memory that others have open. */
uint64_t ct_ledger_held(const struct ct_ledger_header *file, size_t bytes, const struct ct_ledger_account *account);
/* Returns what a line counts for: allocated, managed and own bytes, and the measured excess; a negative excess counts
 * only if nothing has changed since the measurement. */
uint64_t ct_ledger_line_bytes(const struct ct_ledger_line *line);

/* Returns 1, or 0 if there is no free entry. */
int ct_ledger_share_add(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key, uint64_t bytes);
/* Records that memory was freed (an export becomes orphaned while a process has it open, and is removed from
 * allocated_bytes) or closed (an import). */
void ct_ledger_share_drop(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key);
/* Changes the size of an export, of a pool. */
void ct_ledger_share_resize(struct ct_ledger *ledger, uint64_t key, uint64_t bytes);
/* Returns the size of what another process exported under this key, including orphaned memory; 0: none did. */
uint64_t ct_ledger_exported_bytes(const struct ct_ledger_header *file, size_t bytes, uint64_t key);
/* Returns whether any process has it open. */
int ct_ledger_is_imported(const struct ct_ledger_header *file, size_t bytes, uint64_t key);

/* ---- called by the node ------------------------------------------------------------------------------------------- */

/* Keeps existing contents, like ct_tenant_table_init(). Returns -1 if the file is too small for the slots. */
int ct_ledger_init(void *memory, size_t bytes, uint64_t slots);
void ct_ledger_grant(struct ct_ledger_account *account, uint64_t generation); /* clears the account, unless the
                                                                               * generation is the same */
/* Clears the line of a process that has ended, if it still belongs to it: exports that others have open become
 * orphaned. */
void ct_ledger_clear(void *file, size_t bytes, uint32_t slot, uint32_t line, uint64_t owner);
/* Records how much memory the device reports for a process, unless a call was in progress: begun and ended are as read
 * before the device was queried. Returns 0 if it was not recorded. It is unknown how much managed memory is on the
 * device, and to which process shared memory is attributed; if there is either, the estimate of own memory is only
 * increased. */
int ct_ledger_measured(void *file, size_t bytes, uint32_t slot, uint32_t line, uint64_t owner, uint64_t begun_before,
                       uint64_t ended_before, uint64_t held_bytes);
/* Clears orphaned shares that no process has open any more. */
void ct_ledger_sweep(void *file, size_t bytes, uint32_t slot);

#endif

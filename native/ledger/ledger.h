/* How much device memory does each tenant hold? One file per device, made by the node, mapped by every tenant.
 *
 * A header page, which the node alone writes, then an account for every slot: lines, one per process, and shares, the
 * memory that went from one process to another. A process writes its own line and its own shares and nothing else; what
 * a tenant holds is the sum over its lines, made anew by whoever asks. So there is no total that somebody who dies half
 * way could leave wrong: the node clears the lines of the dead, once the device itself has their memory back. Until then
 * they count, which can refuse memory for a moment and never grants too much. The quota is in the terms page, which tenants
 * cannot write. No clock, no lock, no allocation; whoever waits for something does so outside. */
#ifndef COTENANT_LEDGER_LEDGER_H
#define COTENANT_LEDGER_LEDGER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CT_LEDGER_VERSION = 1,
    CT_LEDGER_HEADER_BYTES = 4096,
    CT_LEDGER_ACCOUNT_BYTES = 16384,
    CT_LEDGER_LINES = 63, /* processes of one tenant that use the device at once; one more gets no memory */
    CT_LEDGER_LINE_BYTES = 128,
    CT_LEDGER_SHARES = 256,
};

static inline size_t ct_ledger_offset(uint32_t slot)
{
    return CT_LEDGER_HEADER_BYTES + (size_t)CT_LEDGER_ACCOUNT_BYTES * slot;
}

struct ct_ledger_header {
    uint64_t magic, version;
    _Atomic uint64_t slots;         /* accounts that the file has room for; it may grow while tenants look */
    _Atomic uint64_t context_bytes; /* what a context takes of this device, as far as was seen; 0: nobody knows */
};

/* One process. Everything but the last group is written by that process alone. */
struct ct_ledger_line {
    _Atomic uint64_t owner;         /* ct_ledger_identity(); 0: the line is free */
    _Atomic uint64_t booked_bytes;  /* device memory it asked for and holds, or is about to ask for */
    _Atomic uint64_t own_bytes;     /* what its contexts and modules are believed to take besides */
    _Atomic uint64_t own_version;   /* grows with every change of own_bytes */
    _Atomic uint64_t managed_bytes; /* counts against the quota, but need not be on the device */
    _Atomic uint64_t begun, ended;  /* calls that change any of this; equal: none is under way */
    _Atomic uint64_t denied, denied_bytes; /* allocations refused for the quota's sake, so far */
    _Atomic uint64_t wanted_bytes;  /* an allocation waits that the quota allows and the device has no room for; 0: none */
    _Atomic uint64_t fault;         /* the first error of a call after which the process cannot use the device; 0: none */
    _Atomic uint64_t contexts;   /* how many it has: what one takes can then be learned */
    _Atomic uint64_t code_bytes; /* of own_bytes, what is not for contexts */
    /* By the node: what the device says that it holds beyond booked_bytes and own_bytes, and the own_version this was found
     * at plus one. One word, so that nobody can see half of it; it may be below zero, which counts for that version only. */
    _Atomic int64_t excess_bytes;
    _Atomic uint64_t measured_version;
    uint64_t reserved_too;
};
_Static_assert(sizeof(struct ct_ledger_line) == CT_LEDGER_LINE_BYTES, "two cache lines");

enum ct_ledger_role {
    CT_LEDGER_EXPORT = 1, /* our memory, which others may open; counted in our line */
    CT_LEDGER_IMPORT = 2, /* another process's memory, which we opened; counted in the exporter's account */
    CT_LEDGER_LEFT = 3,   /* was exported, and is freed by or died with its process: counts while anybody has it open */
    CT_LEDGER_MAKING = 4, /* its words are being written: it means nothing yet */
};

/* Memory that went from one process to another. */
struct ct_ledger_share {
    _Atomic uint64_t place; /* role << 32 | line + 1 of the process that wrote it (0 after its death); 0: free */
    _Atomic uint64_t key;   /* what exporter and importer both know it by; never 0 */
    _Atomic uint64_t bytes;
    _Atomic uint64_t reserved;
};

struct ct_ledger_account {
    _Atomic uint64_t generation; /* of the tenant whose account this is; the words of an earlier one mean nothing */
    _Atomic uint64_t lines_used, shares_used; /* from these on none was ever taken: whoever sums may stop there */
    _Atomic uint64_t denied, denied_bytes;    /* by processes that are gone; the node adds them when it clears a line */
    uint64_t reserved[11];
    struct ct_ledger_line line[CT_LEDGER_LINES];
    struct ct_ledger_share share[CT_LEDGER_SHARES];
};
_Static_assert(sizeof(struct ct_ledger_account) == CT_LEDGER_ACCOUNT_BYTES, "four pages");

/* Who a process is, in one word that is claimed in one step, also where the node counts processes otherwise: its number in
 * its own namespace (22 bits), the namespace (the low 22 bits of the inode of /proc/self/ns/pid), and when it started (the low 20 bits of
 * field 22 of /proc/self/stat). Never 0. */
static inline uint64_t ct_ledger_identity(uint64_t pid, uint64_t namespace_inode, uint64_t start_ticks)
{
    return (pid & 0x3fffff) << 42 | (namespace_inode & 0x3fffff) << 20 | (start_ticks & 0xfffff);
}

/* ---- a process's side ------------------------------------------------------------------------------------------- */

struct ct_ledger {
    const struct ct_ledger_header *file; /* all of it, to read */
    size_t bytes;
    struct ct_ledger_account *account; /* our tenant's, to write */
    _Atomic(struct ct_ledger_line *) line; /* our process's; NULL: all lines were taken */
    uint32_t slot;
    uint64_t generation, identity;
};

enum ct_ledger_result {
    CT_LEDGER_OK = 0,
    CT_LEDGER_OVER = 1,      /* past the quota */
    CT_LEDGER_CONTENDED = 2, /* past the quota only with what others are about to ask for: ask again in a moment */
    CT_LEDGER_NO_LINE = 3,
    CT_LEDGER_REVOKED = 4, /* the account is another tenant's now: what we hold counts, and nobody asks for more */
};

enum ct_ledger_kind { CT_LEDGER_BOOKED = 0, CT_LEDGER_OWN = 1, CT_LEDGER_MANAGED = 2 };

/* 0: a ledger of our version, with room for what it says. */
int ct_ledger_check(const void *memory, size_t bytes);
/* Claims a line for this process, or finds the one it has (then its amounts begin at zero: it was another program). 0, or -1
 * where this is no ledger with such an account, or it is another tenant's. Without a free line it is 0 too, and `line` is NULL:
 * ct_ledger_claim tries again, one thread at a time; 1: there is a line now. */
int ct_ledger_open(struct ct_ledger *ledger, const void *file, size_t bytes, struct ct_ledger_account *account,
                   uint32_t slot, uint64_t generation, uint64_t identity);
int ct_ledger_claim(struct ct_ledger *ledger);

/* Before the driver is asked: takes the bytes into our line, unless the tenant would be past its quota (0: none). Around it
 * and the driver's call: begin and end. */
void ct_ledger_begin(struct ct_ledger *ledger);
void ct_ledger_end(struct ct_ledger *ledger);
int ct_ledger_reserve(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes, uint64_t quota_bytes);
void ct_ledger_give(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes);
/* Something leaves, or has left, that the device gave up at a time of its own: what was measured before says nothing any
 * more. Before it is given back. */
void ct_ledger_unsure(struct ct_ledger *ledger);
void ct_ledger_denied(struct ct_ledger *ledger, uint64_t bytes);

/* What a tenant holds: the sum over its lines, and over memory it left that others have open. */
uint64_t ct_ledger_held(const struct ct_ledger_header *file, size_t bytes, const struct ct_ledger_account *account);
/* What one line counts for: booked, managed, own, and what the device says beyond; less than that only if nothing has changed
 * since the device said so. */
uint64_t ct_ledger_line_bytes(const struct ct_ledger_line *line);

/* Shares: 1, or 0 when there is no room. */
int ct_ledger_share_add(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key, uint64_t bytes);
/* The memory is freed (an export becomes LEFT while somebody has it open, and leaves booked_bytes) or closed (an import). */
void ct_ledger_share_drop(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key);
/* An export of another size from now on: a pool's. */
void ct_ledger_share_resize(struct ct_ledger *ledger, uint64_t key, uint64_t bytes);
/* Of what another process exported under this, or left; 0: nobody did. */
uint64_t ct_ledger_exported_bytes(const struct ct_ledger_header *file, size_t bytes, uint64_t key);
/* Whether any process of the device has it open. */
int ct_ledger_is_imported(const struct ct_ledger_header *file, size_t bytes, uint64_t key);

/* ---- the node's side -------------------------------------------------------------------------------------------- */

/* Keeps what is there, as ct_roster_init does; -1: there is no room for so many. */
int ct_ledger_init(void *memory, size_t bytes, uint64_t slots);
void ct_ledger_grant(struct ct_ledger_account *account, uint64_t generation); /* an empty account; the same generation keeps its lines */
/* Frees the line of a process that is gone, if it is still that process's: its exports that others have open become LEFT. */
void ct_ledger_clear(void *file, size_t bytes, uint32_t slot, uint32_t line, uint64_t owner);
/* What the device says a process holds in all; taken only if no call of it was under way: begun and ended as read before the
 * device was asked. 0: it was not taken. Of managed memory nobody knows how much is on the device, and of memory that several
 * processes have open nobody knows whom the device counts it to: with either, what contexts and modules are believed to take
 * is doubted only upwards. */
int ct_ledger_measured(void *file, size_t bytes, uint32_t slot, uint32_t line, uint64_t owner, uint64_t begun_before,
                       uint64_t ended_before, uint64_t held_bytes);
/* Frees the LEFT shares of an account that nobody has open any more. */
void ct_ledger_sweep(void *file, size_t bytes, uint32_t slot);

#endif

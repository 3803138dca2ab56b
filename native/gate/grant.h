/* The grant page: the resources that the node grants to a tenant. Only the node writes it; readers need neither a lock
 * nor a system call nor a running daemon. In the same memory file the tenant's account follows, see ledger/ledger.h. */
#ifndef COTENANT_GATE_GRANT_H
#define COTENANT_GATE_GRANT_H

#include "atomics.h"

#include <stddef.h>
#include <stdint.h>

enum {
    CT_GRANT_BYTES = 16384,         /* the memory of the grant page and the account */
    CT_GRANT_ACCOUNT_OFFSET = 4096, /* of struct ct_ledger_account */
    CT_GRANT_VERSION = 2,
};

enum ct_grant_state { CT_GRANT_FREE = 0, CT_GRANT_ACTIVE = 1, CT_GRANT_REVOKED = 2 };

enum ct_grant_result {
    CT_GRANT_OK = 0,
    CT_GRANT_TOO_SMALL = 1,     /* the buffer is smaller than CT_GRANT_BYTES */
    CT_GRANT_NOT_A_PAGE = 2,    /* not a grant page */
    CT_GRANT_OTHER_VERSION = 3, /* a grant page of another version */
    CT_GRANT_BUSY = 4,          /* the page was rewritten during every attempt */
};

/* Every field is 64 bits wide, so that the page can be copied with atomic loads of whole words. New fields are added at
 * the end, where an older writer left zeros: zero must mean unknown. */
struct ct_grant {
    uint64_t state;
    uint64_t slot;
    uint64_t generation;
    uint64_t online; /* 1 online, 0 offline */
    uint64_t priority;
    uint64_t share_ppm; /* guaranteed share of the SMs in millionths; 0: none requested */
    uint64_t memory_bytes; /* 0: none requested */
    uint64_t slo_ns; /* 0: none */
    uint64_t gpu; /* index on this node plus one; 0: the node has none */
    uint64_t neighbours; /* number of other tenants on the same GPU plus one, where several may be reported as one; 0:
                          * unknown */
};

enum { CT_GRANT_WORDS = sizeof(struct ct_grant) / sizeof(uint64_t) };

/* Two copies and a count of completed writes, whose lowest bit selects the valid copy. A writer that dies in the middle
 * of a write has changed only the other copy, so no reader ever waits for it. */
struct ct_grant_page {
    uint64_t magic;
    uint64_t version;
    _Atomic uint64_t writes;
    uint64_t reserved[5]; /* the copies start on a separate cache line */
    _Atomic uint64_t copy[2][16];
};

_Static_assert(sizeof(struct ct_grant_page) <= CT_GRANT_ACCOUNT_OFFSET, "the account is after the grant page");
_Static_assert(CT_GRANT_WORDS <= 16, "the grant fits its copy");

/* Initializes the page with state CT_GRANT_FREE. The memory must be zero or an older grant page. */
int ct_grant_init(void *memory, size_t bytes);

/* Returns CT_GRANT_OK if the memory is a grant page of this version. */
int ct_grant_check(const void *memory, size_t bytes);

/* Called by one thread at a time, in the node. */
void ct_grant_write(struct ct_grant_page *page, const struct ct_grant *grant);

/* Returns CT_GRANT_OK, or CT_GRANT_BUSY after a bounded number of attempts. Any number of readers may call it. */
int ct_grant_read(const struct ct_grant_page *page, struct ct_grant *grant);

#endif

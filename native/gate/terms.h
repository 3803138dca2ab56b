/* What a tenant may do now: written by the node alone, read without a lock, a system call or a living daemon. */
#ifndef COTENANT_GATE_TERMS_H
#define COTENANT_GATE_TERMS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { CT_TERMS_BYTES = 4096, CT_TERMS_VERSION = 1 };

enum ct_terms_state { CT_TERMS_FREE = 0, CT_TERMS_GRANTED = 1, CT_TERMS_REVOKED = 2 };

enum ct_terms_result {
    CT_TERMS_OK = 0,
    CT_TERMS_SMALL = 1,   /* the buffer is smaller than one page */
    CT_TERMS_FOREIGN = 2, /* not a terms page */
    CT_TERMS_OTHER = 3,   /* a terms page of another version */
    CT_TERMS_BUSY = 4,    /* the writer overtook the reader in every attempt */
};

/* Every field is 64 bits wide, so that the page is copied word by word with plain atomic loads. Fields are only added at
 * the end, where an older writer left zeros: zero must mean that nothing is known. */
struct ct_terms {
    uint64_t state;
    uint64_t slot;
    uint64_t generation;
    uint64_t online; /* 1 online, 0 offline */
    uint64_t priority;
    uint64_t share_ppm; /* guaranteed share of the SMs in millionths; 0: none asked */
    uint64_t memory_bytes; /* 0: none asked */
    uint64_t slo_ns; /* 0: none */
    uint64_t gpu; /* index on this node plus one; 0: the node has none */
    uint64_t neighbours; /* other tenants on the same GPU plus one, many counted as some; 0: nobody said */
};

enum { CT_TERMS_WORDS = sizeof(struct ct_terms) / sizeof(uint64_t) };

/* Two copies and a count of completed writes: the count's lowest bit names the copy that is valid. A writer that
 * dies half way has touched only the other one, so no reader ever waits for a process that no longer exists. */
struct ct_terms_page {
    uint64_t magic;
    uint64_t version;
    _Atomic uint64_t writes;
    uint64_t reserved[5]; /* the copies start on a cache line of their own */
    _Atomic uint64_t copy[2][16];
};

_Static_assert(sizeof(struct ct_terms_page) <= CT_TERMS_BYTES, "a terms page is one page");
_Static_assert(CT_TERMS_WORDS <= 16, "the terms fit their copy");

/* Makes the page a valid one whose terms are CT_TERMS_FREE. The memory must be zero or an older terms page. */
int ct_terms_init(void *memory, size_t bytes);

/* Whether this memory is a terms page of our version. */
int ct_terms_check(const void *memory, size_t bytes);

/* One writer at a time: the node's own thread. */
void ct_terms_write(struct ct_terms_page *page, const struct ct_terms *terms);

/* Any number of readers. CT_TERMS_OK, or CT_TERMS_BUSY after a bounded number of attempts. */
int ct_terms_read(const struct ct_terms_page *page, struct ct_terms *terms);

#endif

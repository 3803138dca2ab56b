/* The pages of one process on one device: its gate page and its ledger page.
 *
 * The process creates them as a sealed memory file, which it alone can write, and passes the descriptor to the node. The
 * node passes it on to every other process of the device. Each process reserves a region of CT_PROCESSES times
 * CT_PROCESS_BYTES, in which the pages of the process with index i are mapped for reading at i times CT_PROCESS_BYTES.
 * Where nothing is mapped yet, the region reads as zeros: as the pages of a process with generation 0, which is none. */
#ifndef COTENANT_GATE_PROCESS_H
#define COTENANT_GATE_PROCESS_H

#include "gate/grant.h"
#include "gate/pages.h"
#include "ledger/ledger.h"

enum { CT_PROCESS_BYTES = 16384 };

#define CT_PROCESSES_BYTES ((size_t)CT_PROCESSES * CT_PROCESS_BYTES)

struct ct_process_pages {
    union {
        struct ct_gate_page gate;
        unsigned char gate_bytes[CT_GATE_PAGE_BYTES];
    };
    union {
        struct ct_ledger_page ledger;
        unsigned char ledger_bytes[CT_PROCESS_BYTES - CT_GATE_PAGE_BYTES];
    };
};
_Static_assert(sizeof(struct ct_process_pages) == CT_PROCESS_BYTES, "four pages");
_Static_assert(offsetof(struct ct_process_pages, ledger) == CT_GATE_PAGE_BYTES, "the ledger page is after the gate page");
_Static_assert((int)CT_GRANT_ACCOUNT_OFFSET + sizeof(struct ct_ledger_account) <= CT_GRANT_BYTES,
               "the account fits the memory of the grant");

/* Returns the pages of the process with this index, or NULL if there is no such index. */
static inline const struct ct_process_pages *ct_process_pages_of(const void *region, uint32_t index)
{
    return index < CT_PROCESSES ? (const struct ct_process_pages *)region + index : NULL;
}

#endif

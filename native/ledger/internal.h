/* Functions that the files of the ledger share.
 *
 * All accesses to a ledger's words are sequentially consistent: a process that adds its bytes and then computes the sum
 * sees every process that did so before. */
#ifndef COTENANT_LEDGER_INTERNAL_H
#define COTENANT_LEDGER_INTERNAL_H

#include "arithmetic.h"
#include "atomics.h"
#include "gate/process.h"
#include "ledger/ledger.h"

/* Returns how many shares of a page may be in use. The process can write the word, so its value is limited. */
static inline uint32_t shares_used(const struct ct_ledger_page *page)
{
    uint64_t count = load_seq_cst(&page->shares_used);
    return count < CT_LEDGER_SHARES ? (uint32_t)count : CT_LEDGER_SHARES;
}

/* Returns the ledger page of another process, or our own; NULL if that process has none. */
static inline const struct ct_ledger_page *page_of(const struct ct_ledger *ledger, uint32_t index, uint32_t generation)
{
    if (index == ledger->index && generation == ledger->generation)
        return ledger->page;
    const struct ct_process_pages *pages = ct_process_pages_of(ledger->processes, index);
    return pages && generation && load_seq_cst(&pages->ledger.generation) == generation ? &pages->ledger : NULL;
}

/* Returns whether the page has a share with this role and key. */
int ct_ledger_page_has(const struct ct_ledger_page *page, enum ct_ledger_role role, uint64_t key);

/* Returns the size of memory that the process exported and freed while processes of its tenant have it open. */
uint64_t ct_ledger_orphaned_bytes(const struct ct_ledger *ledger, const struct ct_ledger_page *page,
                                  const struct ct_process_id *siblings, int count);

#endif

/* Memory shared between processes: which processes have it open, and how it is counted after its owner has freed it. */
#include "ledger/internal.h"

static struct ct_ledger_share *find(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key)
{
    for (uint32_t i = 0; i < shares_used(ledger->page); i++) {
        struct ct_ledger_share *share = &ledger->page->share[i];
        if (load_seq_cst(&share->role) == role && load_seq_cst(&share->key) == key)
            return share;
    }
    return NULL;
}

int ct_ledger_page_has(const struct ct_ledger_page *page, enum ct_ledger_role role, uint64_t key)
{
    for (uint32_t i = 0; i < shares_used(page); i++)
        if (load_seq_cst(&page->share[i].role) == role && load_seq_cst(&page->share[i].key) == key)
            return 1;
    return 0;
}

/* Returns a page of the region, or our own instead of what is mapped at our index. */
static const struct ct_ledger_page *page_at(const struct ct_ledger *ledger, uint32_t index)
{
    return index == ledger->index ? ledger->page : &ct_process_pages_of(ledger->processes, index)->ledger;
}

int ct_ledger_is_imported(const struct ct_ledger *ledger, uint64_t key)
{
    for (uint32_t index = 0; index < CT_PROCESSES; index++)
        if (load_seq_cst(&page_at(ledger, index)->generation) &&
            ct_ledger_page_has(page_at(ledger, index), CT_LEDGER_IMPORT, key))
            return 1;
    return 0;
}

/* Returns what this process exported under the key, including orphaned memory. */
static uint64_t exported_by(const struct ct_ledger_page *page, uint64_t key)
{
    for (uint32_t i = 0; i < shares_used(page); i++) {
        const uint64_t role = load_seq_cst(&page->share[i].role);
        if ((role == CT_LEDGER_EXPORT || role == CT_LEDGER_ORPHANED) && load_seq_cst(&page->share[i].key) == key)
            return load_seq_cst(&page->share[i].bytes);
    }
    return 0;
}

uint64_t ct_ledger_exported_bytes(const struct ct_ledger *ledger, uint64_t key)
{
    uint64_t bytes = 0;
    for (uint32_t index = 0; index < CT_PROCESSES && !bytes; index++)
        if (load_seq_cst(&page_at(ledger, index)->generation))
            bytes = exported_by(page_at(ledger, index), key);
    return bytes;
}

/* Returns whether a process of the tenant has it open. What processes of other tenants state does not count: they could
 * state it of any key, so that the memory would count forever. The node charges it to one of their tenants. */
static int is_imported_by(const struct ct_ledger *ledger, uint64_t key, const struct ct_process_id *siblings, int count)
{
    for (int i = 0; i < count; i++) {
        const struct ct_ledger_page *page = page_of(ledger, siblings[i].index, siblings[i].generation);
        if (page && ct_ledger_page_has(page, CT_LEDGER_IMPORT, key))
            return 1;
    }
    return 0;
}

/* Claims an entry for writing; the threads of the process compete. */
static int claim(struct ct_ledger_share *share, uint64_t from_role)
{
    return load_seq_cst(&share->role) == from_role &&
        atomic_compare_exchange_strong(&share->role, &from_role, CT_LEDGER_WRITING);
}

/* Returns an entry of orphaned memory that no process, or at least none of the tenant, has open any more. */
static struct ct_ledger_share *claim_orphaned(struct ct_ledger *ledger, int must_be_closed_by_all)
{
    struct ct_process_id siblings[CT_PROCESSES];
    const int count = ct_tenant_table_siblings(ledger->table, ledger->tenant, siblings);
    for (uint32_t i = 0; i < CT_LEDGER_SHARES && count >= 0; i++) {
        struct ct_ledger_share *share = &ledger->page->share[i];
        const uint64_t key = load_seq_cst(&share->key);
        if (load_seq_cst(&share->role) == CT_LEDGER_ORPHANED &&
            !(must_be_closed_by_all ? ct_ledger_is_imported(ledger, key)
                                    : is_imported_by(ledger, key, siblings, count)) &&
            claim(share, CT_LEDGER_ORPHANED))
            return share;
    }
    return NULL;
}

/* Returns a free entry. If all are in use, what other tenants state cannot keep one of them in use. */
static struct ct_ledger_share *claim_any(struct ct_ledger *ledger)
{
    struct ct_ledger_page *page = ledger->page;
    for (uint32_t i = 0; i < CT_LEDGER_SHARES; i++) {
        uint64_t used = load_seq_cst(&page->shares_used);
        while (used < i + 1 && !atomic_compare_exchange_weak(&page->shares_used, &used, i + 1))
            ;
        if (claim(&page->share[i], 0))
            return &page->share[i];
    }
    struct ct_ledger_share *share = claim_orphaned(ledger, 1);
    return share ? share : claim_orphaned(ledger, 0);
}

int ct_ledger_share_add(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key, uint64_t bytes)
{
    if (!key)
        return 0;
    if (role == CT_LEDGER_EXPORT && find(ledger, role, key))
        return 1; /* the same memory again */
    struct ct_ledger_share *share = claim_any(ledger);
    if (!share)
        return 0;
    store_seq_cst(&share->key, key);
    store_seq_cst(&share->bytes, bytes);
    store_seq_cst(&share->role, role);
    return 1;
}

void ct_ledger_share_drop(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key)
{
    struct ct_ledger_share *share = find(ledger, role, key);
    if (!share)
        return;
    const uint64_t bytes = load_seq_cst(&share->bytes);
    const int is_open = role == CT_LEDGER_EXPORT && ct_ledger_is_imported(ledger, key);
    store_seq_cst(&share->role, is_open ? CT_LEDGER_ORPHANED : 0);
    if (role == CT_LEDGER_EXPORT)
        ct_ledger_release(ledger, CT_LEDGER_ALLOCATED, bytes); /* afterwards: for an instant it counts twice, but never
                                                                * not at all */
}

void ct_ledger_share_resize(struct ct_ledger *ledger, uint64_t key, uint64_t bytes)
{
    struct ct_ledger_share *share = find(ledger, CT_LEDGER_EXPORT, key);
    if (share)
        store_seq_cst(&share->bytes, bytes);
}

uint64_t ct_ledger_orphaned_bytes(const struct ct_ledger *ledger, const struct ct_ledger_page *page,
                                  const struct ct_process_id *siblings, int count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < shares_used(page); i++) {
        const struct ct_ledger_share *share = &page->share[i];
        if (load_seq_cst(&share->role) == CT_LEDGER_ORPHANED &&
            is_imported_by(ledger, load_seq_cst(&share->key), siblings, count))
            sum = sat_add_u64(sum, load_seq_cst(&share->bytes));
    }
    return sum;
}

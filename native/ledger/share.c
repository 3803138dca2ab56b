/* Memory shared between processes: which processes have it open, and how it is counted after its owner has ended. */
#include "ledger/internal.h"

static uint64_t line_number(const struct ct_ledger *ledger)
{
    return (uint64_t)(line_in(ledger) - ledger->account->line) + 1;
}

static struct ct_ledger_share *find(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key)
{
    uint32_t used = used_count(&ledger->account->shares_used, CT_LEDGER_SHARES);
    for (uint32_t i = 0; i < used; i++) {
        struct ct_ledger_share *share = &ledger->account->share[i];
        if (load_seq_cst(&share->place) == share_place(role, line_number(ledger)) && load_seq_cst(&share->key) == key)
            return share;
    }
    return NULL;
}

int ct_ledger_share_add(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key, uint64_t bytes)
{
    if (!line_in(ledger) || !key || load_seq_cst(&ledger->account->generation) != ledger->generation)
        return 0;
    if (role == CT_LEDGER_EXPORT && find(ledger, role, key))
        return 1; /* the same memory again */
    for (uint32_t i = 0; i < CT_LEDGER_SHARES; i++) {
        struct ct_ledger_share *share = &ledger->account->share[i];
        uint64_t none = 0;
        raise_to(&ledger->account->shares_used, i + 1);
        if (load_seq_cst(&share->place) ||
            !atomic_compare_exchange_strong(&share->place, &none, share_place(CT_LEDGER_WRITING, line_number(ledger))))
            continue;
        store_seq_cst(&share->key, key);
        store_seq_cst(&share->bytes, bytes);
        store_seq_cst(&share->place, share_place(role, line_number(ledger)));
        return 1;
    }
    return 0;
}

int ct_ledger_is_imported(const struct ct_ledger_header *file, size_t bytes, uint64_t key)
{
    uint64_t accounts = accounts_of(file, bytes);
    for (uint64_t slot = 0; slot < accounts; slot++) {
        const struct ct_ledger_account *account = account_of(file, slot);
        uint32_t used = used_count(&account->shares_used, CT_LEDGER_SHARES);
        for (uint32_t i = 0; i < used; i++)
            if (share_role(load_seq_cst(&account->share[i].place)) == CT_LEDGER_IMPORT &&
                load_seq_cst(&account->share[i].key) == key)
                return 1;
    }
    return 0;
}

uint64_t ct_ledger_exported_bytes(const struct ct_ledger_header *file, size_t bytes, uint64_t key)
{
    uint64_t accounts = accounts_of(file, bytes);
    for (uint64_t slot = 0; slot < accounts; slot++) {
        const struct ct_ledger_account *account = account_of(file, slot);
        uint32_t used = used_count(&account->shares_used, CT_LEDGER_SHARES);
        for (uint32_t i = 0; i < used; i++) {
            enum ct_ledger_role role = share_role(load_seq_cst(&account->share[i].place));
            if ((role == CT_LEDGER_EXPORT || role == CT_LEDGER_ORPHANED) && load_seq_cst(&account->share[i].key) == key)
                return load_seq_cst(&account->share[i].bytes);
        }
    }
    return 0;
}

void ct_ledger_share_drop(struct ct_ledger *ledger, enum ct_ledger_role role, uint64_t key)
{
    struct ct_ledger_share *share = line_in(ledger) ? find(ledger, role, key) : NULL;
    if (!share || load_seq_cst(&ledger->account->generation) != ledger->generation)
        return;
    uint64_t bytes = load_seq_cst(&share->bytes);
    int is_open = role == CT_LEDGER_EXPORT && ct_ledger_is_imported(ledger->file, ledger->bytes, key);
    store_seq_cst(&share->place, is_open ? share_place(CT_LEDGER_ORPHANED, line_number(ledger)) : 0);
    if (role == CT_LEDGER_EXPORT)
        ct_ledger_release(ledger, CT_LEDGER_ALLOCATED, bytes); /* afterwards: for an instant it counts twice, but never
                                                                * not at all */
}

void ct_ledger_share_resize(struct ct_ledger *ledger, uint64_t key, uint64_t bytes)
{
    struct ct_ledger_share *share = line_in(ledger) ? find(ledger, CT_LEDGER_EXPORT, key) : NULL;
    if (share)
        store_seq_cst(&share->bytes, bytes);
}

uint64_t ct_ledger_orphaned_bytes(const struct ct_ledger_header *file, size_t bytes,
                                  const struct ct_ledger_account *account)
{
    uint32_t used = used_count(&account->shares_used, CT_LEDGER_SHARES);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct ct_ledger_share *share = &account->share[i];
        if (share_role(load_seq_cst(&share->place)) == CT_LEDGER_ORPHANED &&
            ct_ledger_is_imported(file, bytes, load_seq_cst(&share->key)))
            sum = sat_add_u64(sum, load_seq_cst(&share->bytes));
    }
    return sum;
}

void ct_ledger_shares_end(const struct ct_ledger_header *file, size_t bytes, struct ct_ledger_account *account,
                          uint64_t line_number_plus_one)
{
    uint32_t used = used_count(&account->shares_used, CT_LEDGER_SHARES);
    for (uint32_t i = 0; i < used; i++) {
        struct ct_ledger_share *share = &account->share[i];
        uint64_t place = load_seq_cst(&share->place);
        enum ct_ledger_role role = share_role(place);
        if (!place || (uint32_t)place != line_number_plus_one)
            continue;
        int was_exported = role == CT_LEDGER_EXPORT || role == CT_LEDGER_ORPHANED;
        store_seq_cst(&share->place, was_exported && ct_ledger_is_imported(file, bytes, load_seq_cst(&share->key))
                                ? share_place(CT_LEDGER_ORPHANED, 0)
                                : 0);
    }
}

void ct_ledger_shares_clear(struct ct_ledger *ledger)
{
    ct_ledger_shares_end(ledger->file, ledger->bytes, ledger->account, line_number(ledger));
}

/* The node's functions on a tenant's account. */
#include "ledger/internal.h"

void ct_ledger_account_write(struct ct_ledger_account *account, uint64_t context_bytes, uint64_t unattached_bytes,
                             uint64_t reclaimable_bytes)
{
    store_seq_cst(&account->context_bytes, context_bytes);
    store_seq_cst(&account->unattached_bytes, unattached_bytes);
    store_seq_cst(&account->reclaimable_bytes, reclaimable_bytes);
}

void ct_ledger_measurement_write(struct ct_ledger_account *account, uint32_t index, uint32_t generation,
                                 int64_t excess_bytes, uint64_t measured_version)
{
    if (index >= CT_PROCESSES)
        return;
    struct ct_ledger_measurement *measurement = &account->measurement[index];
    store_seq_cst(&measurement->measured_version, 0); /* a reader in between ignores a negative excess */
    store_seq_cst(&measurement->excess_bytes, excess_bytes);
    store_seq_cst(&measurement->generation, generation);
    store_seq_cst(&measurement->measured_version, measured_version);
}

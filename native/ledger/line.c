/* The line of a process: reserving memory in it, and the sum over the lines of a tenant. */
#include "ledger/internal.h"


void ct_ledger_open(struct ct_ledger *ledger, const struct ct_tenant_table *table, const void *processes,
                    const struct ct_ledger_account *account, struct ct_ledger_page *page, uint32_t index,
                    uint32_t generation, uint32_t tenant)
{
    *ledger = (struct ct_ledger){.table = table,
                                 .processes = processes,
                                 .account = account,
                                 .page = page,
                                 .index = index,
                                 .generation = generation,
                                 .tenant = tenant};
    store_seq_cst(&page->generation, generation);
}

uint64_t ct_ledger_context_bytes(const struct ct_ledger *ledger)
{
    return load_seq_cst(&ledger->account->context_bytes);
}

uint64_t ct_ledger_reclaimable_bytes(const struct ct_ledger *ledger)
{
    return load_seq_cst(&ledger->account->reclaimable_bytes);
}

/* ---- sums --------------------------------------------------------------------------------------------------------- */

/* Returns the estimated memory of contexts and modules, corrected by the measurement. A negative excess counts only if
 * nothing has changed since the measurement. */
static uint64_t own_bytes_of(const struct ct_ledger_line *line, const struct ct_ledger_measurement *measurement,
                             uint32_t generation)
{
    const uint64_t version = load_seq_cst(&line->own_version), measured = load_seq_cst(&measurement->measured_version),
        own = load_seq_cst(&line->own_bytes);
    const int64_t excess = load_seq_cst(&measurement->excess_bytes);
    if (load_seq_cst(&measurement->generation) != generation)
        return own; /* of an earlier process at this index */
    if (excess >= 0)
        return sat_add_u64(own, (uint64_t)excess);
    if (measured != version + 1 || load_seq_cst(&measurement->measured_version) != measured ||
        load_seq_cst(&line->own_version) != version)
        return own;
    return sat_sub_u64(own, UINT64_C(0) - (uint64_t)excess);
}

/* Returns what a line counts for: allocated and managed memory, and that of contexts and modules. */
static uint64_t line_bytes(const struct ct_ledger *ledger, const struct ct_ledger_page *page,
                           const struct ct_process_id *process)
{
    const uint64_t own = own_bytes_of(&page->line, &ledger->account->measurement[process->index], process->generation);
    return sat_add_u64(sat_add_u64(load_seq_cst(&page->line.allocated_bytes), load_seq_cst(&page->line.managed_bytes)),
                       own);
}

struct sum {
    uint64_t bytes;
    int is_unsettled; /* a process was changing its line during the read */
    int has_entry;    /* this process is in the tenant table */
    int is_known;     /* the tenant table could be read */
};

/* Adds up what the tenant holds. In our own line `own_calls` calls are in progress: those of the caller. The table is
 * read before the account: the node writes the account before it removes a process from the table, so the memory of an
 * ended process counts twice for an instant, but never not at all. */
static struct sum sum_of(const struct ct_ledger *ledger, uint64_t own_calls)
{
    struct ct_process_id siblings[CT_PROCESSES];
    const int count = ct_tenant_table_siblings(ledger->table, ledger->tenant, siblings);
    struct sum sum = {.is_known = count >= 0};
    for (int i = 0; i < count; i++) {
        const struct ct_ledger_page *page = page_of(ledger, siblings[i].index, siblings[i].generation);
        if (!page || siblings[i].index >= CT_PROCESSES)
            continue;
        const int is_own = page == ledger->page;
        /* Read first: if it equals `begun` afterwards, no call was in progress meanwhile. */
        const uint64_t ended = load_seq_cst(&page->line.ended);
        sum.bytes = sat_add_u64(sum.bytes, line_bytes(ledger, page, &siblings[i]));
        sum.bytes = sat_add_u64(sum.bytes, ct_ledger_orphaned_bytes(ledger, page, siblings, count));
        sum.is_unsettled |= load_seq_cst(&page->line.begun) - ended > (is_own ? own_calls : 0);
        sum.has_entry |= is_own;
    }
    sum.bytes = sat_add_u64(sum.bytes, load_seq_cst(&ledger->account->unattached_bytes));
    return sum;
}

/* Returns whether the process has an entry, without the sum. */
static struct sum entry_of(const struct ct_ledger *ledger)
{
    struct ct_process_id siblings[CT_PROCESSES];
    const int count = ct_tenant_table_siblings(ledger->table, ledger->tenant, siblings);
    struct sum sum = {.is_known = count >= 0};
    for (int i = 0; i < count; i++)
        sum.has_entry |= siblings[i].index == ledger->index && siblings[i].generation == ledger->generation;
    return sum;
}

uint64_t ct_ledger_held(const struct ct_ledger *ledger)
{
    const struct sum sum = sum_of(ledger, 0);
    return sum.is_known ? sum.bytes : UINT64_MAX;
}

/* ---- reservations ------------------------------------------------------------------------------------------------- */

static _Atomic uint64_t *word_of(struct ct_ledger_line *line, enum ct_ledger_kind kind)
{
    return kind == CT_LEDGER_OWN       ? &line->own_bytes
           : kind == CT_LEDGER_MANAGED ? &line->managed_bytes
                                       : &line->allocated_bytes;
}

static void bump_version(struct ct_ledger_line *line, enum ct_ledger_kind kind)
{
    if (kind == CT_LEDGER_OWN)
        atomic_fetch_add(&line->own_version, 1);
}

void ct_ledger_begin(struct ct_ledger *ledger)
{
    atomic_fetch_add(&ledger->page->line.begun, 1);
}

/* Ends a change. The count never exceeds `begun`: a call may have begun before the process had a ledger. */
void ct_ledger_end(struct ct_ledger *ledger)
{
    struct ct_ledger_line *line = &ledger->page->line;
    uint64_t ended = load_seq_cst(&line->ended);
    while (ended != load_seq_cst(&line->begun) && !atomic_compare_exchange_weak(&line->ended, &ended, ended + 1))
        ;
}

/* Subtracts without going below zero. */
static void subtract(struct ct_ledger_line *line, enum ct_ledger_kind kind, uint64_t bytes)
{
    _Atomic uint64_t *word = word_of(line, kind);
    uint64_t value = load_seq_cst(word);
    while (!atomic_compare_exchange_weak(word, &value, sat_sub_u64(value, bytes)))
        ;
    bump_version(line, kind);
}

int ct_ledger_reserve(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes, uint64_t quota_bytes)
{
    struct ct_ledger_line *line = &ledger->page->line;
    if (bytes > UINT64_MAX / 4) /* no device has as much, and no word may overflow */
        return CT_LEDGER_OVER;
    atomic_fetch_add(word_of(line, kind), bytes);
    bump_version(line, kind);
    const struct sum sum = quota_bytes ? sum_of(ledger, 1) : entry_of(ledger);
    if (sum.has_entry && sum.bytes <= quota_bytes)
        return CT_LEDGER_OK;
    subtract(line, kind, bytes);
    if (!sum.is_known)
        return CT_LEDGER_CONTENDED;
    if (!sum.has_entry)
        return CT_LEDGER_REVOKED;
    return sum.is_unsettled ? CT_LEDGER_CONTENDED : CT_LEDGER_OVER;
}

void ct_ledger_invalidate_measurement(struct ct_ledger *ledger)
{
    atomic_fetch_add(&ledger->page->line.own_version, 1);
}

void ct_ledger_release(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes)
{
    subtract(&ledger->page->line, kind, bytes);
}

void ct_ledger_denied(struct ct_ledger *ledger, uint64_t bytes)
{
    atomic_fetch_add(&ledger->page->line.denied, 1);
    atomic_fetch_add(&ledger->page->line.denied_bytes, bytes);
}

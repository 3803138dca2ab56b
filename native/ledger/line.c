/* The line of a process: claiming it, and reserving memory in it. */
#include "ledger/internal.h"

#include <string.h>

/* ---- claiming a line ---------------------------------------------------------------------------------------------- */

static void clear_line(struct ct_ledger_line *line)
{
    store_seq_cst(&line->allocated_bytes, 0);
    store_seq_cst(&line->own_bytes, 0);
    store_seq_cst(&line->managed_bytes, 0);
    store_seq_cst(&line->contexts, 0);
    store_seq_cst(&line->code_bytes, 0);
    store_seq_cst(&line->own_version, load_seq_cst(&line->own_version) + 1); /* the measurement was of another
                                                                              * process */
    store_seq_cst(&line->excess_bytes, 0);
    store_seq_cst(&line->ended, load_seq_cst(&line->begun));
    store_seq_cst(&line->wanted_bytes, 0);
    store_seq_cst(&line->fault, 0);
}

static struct ct_ledger_line *line_of(struct ct_ledger_account *account, uint64_t identity)
{
    for (uint32_t i = 0; i < CT_LEDGER_LINES; i++)
        if (load_seq_cst(&account->line[i].owner) == identity)
            return &account->line[i];
    return NULL;
}

static struct ct_ledger_line *claim(struct ct_ledger_account *account, uint64_t identity)
{
    for (uint32_t i = 0; i < CT_LEDGER_LINES; i++) {
        uint64_t none = 0;
        raise_to(&account->lines_used, i + 1); /* before the claim: a process that dies here has only made sums
                                                * longer */
        if (!load_seq_cst(&account->line[i].owner) && atomic_compare_exchange_strong(&account->line[i].owner, &none,
                                                                                     identity))
            return &account->line[i];
    }
    return NULL;
}

int ct_ledger_open(struct ct_ledger *ledger, const void *file, size_t bytes, struct ct_ledger_account *account,
                   uint32_t slot, uint64_t generation, uint64_t identity)
{
    memset(ledger, 0, sizeof *ledger);
    if (ct_ledger_check(file, bytes) < 0 || slot >= accounts_of(file, bytes) || !identity ||
        load_seq_cst(&account->generation) != generation)
        return -1;
    ledger->file = file;
    ledger->bytes = bytes;
    ledger->account = account;
    ledger->slot = slot;
    ledger->generation = generation;
    ledger->identity = identity;
    struct ct_ledger_line *existing = line_of(account, identity);
    if (existing) {
        clear_line(existing);
        store_release(&ledger->line, existing);
        ct_ledger_shares_clear(ledger);
    } else {
        ct_ledger_claim(ledger);
    }
    return 0;
}

int ct_ledger_claim(struct ct_ledger *ledger)
{
    if (load_seq_cst(&ledger->account->generation) != ledger->generation)
        return 0;
    struct ct_ledger_line *line = claim(ledger->account, ledger->identity);
    if (!line)
        return 0;
    clear_line(line);
    store_release(&ledger->line, line);
    return 1;
}

/* ---- sums --------------------------------------------------------------------------------------------------------- */

uint64_t ct_ledger_line_bytes(const struct ct_ledger_line *line)
{
    uint64_t version = load_seq_cst(&line->own_version), measured = load_seq_cst(&line->measured_version),
        own = load_seq_cst(&line->own_bytes);
    int64_t excess = load_seq_cst(&line->excess_bytes);
    if (excess >= 0)
        own = sat_add_u64(own, (uint64_t)excess);
    else if (measured == version + 1 && load_seq_cst(&line->measured_version) == measured &&
             load_seq_cst(&line->own_version) == version) {
        uint64_t deficit = UINT64_C(0) - (uint64_t)excess;
        own = own > deficit ? own - deficit : 0;
    }
    return sat_add_u64(sat_add_u64(load_seq_cst(&line->allocated_bytes), load_seq_cst(&line->managed_bytes)), own);
}

/* Returns the sum over all lines, and whether a process was changing its line during the read. In our own line (`mine`)
 * one call is in progress: this one. */
static uint64_t sum_of(const struct ct_ledger_header *file, size_t bytes, const struct ct_ledger_account *account,
                       const struct ct_ledger_line *mine, int *is_unsettled)
{
    uint64_t sum = ct_ledger_orphaned_bytes(file, bytes, account);
    uint32_t used = used_count(&account->lines_used, CT_LEDGER_LINES);
    for (uint32_t i = 0; i < used; i++) {
        const struct ct_ledger_line *line = &account->line[i];
        if (!load_seq_cst(&line->owner))
            continue;
        uint64_t ended = load_seq_cst(&line->ended); /* read first: if it equals `begun` afterwards, no call was in
                                                      * progress meanwhile */
        sum = sat_add_u64(sum, ct_ledger_line_bytes(line));
        *is_unsettled |= load_seq_cst(&line->begun) - ended > (uint64_t)(line == mine);
    }
    return sum;
}

uint64_t ct_ledger_held(const struct ct_ledger_header *file, size_t bytes, const struct ct_ledger_account *account)
{
    int ignored = 0;
    return sum_of(file, bytes, account, NULL, &ignored);
}

/* ---- reservations ------------------------------------------------------------------------------------------------- */

static int is_own_line(const struct ct_ledger *ledger, const struct ct_ledger_line *line)
{
    return load_seq_cst(&ledger->account->generation) == ledger->generation &&
        load_seq_cst(&line->owner) == ledger->identity;
}

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
    struct ct_ledger_line *line = line_in(ledger);
    if (line)
        atomic_fetch_add(&line->begun, 1);
}

/* Ends a change. The count never exceeds `begun`: a call may have begun before the process had a line. */
void ct_ledger_end(struct ct_ledger *ledger)
{
    struct ct_ledger_line *line = line_in(ledger);
    uint64_t ended = line ? load_seq_cst(&line->ended) : 0;
    while (line && ended != load_seq_cst(&line->begun) &&
           !atomic_compare_exchange_weak(&line->ended, &ended, ended + 1))
        ;
}

static void subtract(struct ct_ledger_line *line, enum ct_ledger_kind kind, uint64_t bytes)
{
    subtract_saturating(word_of(line, kind), bytes);
    bump_version(line, kind);
}

int ct_ledger_reserve(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes, uint64_t quota_bytes)
{
    struct ct_ledger_line *line = line_in(ledger);
    int is_unsettled = 0;
    if (!line)
        return CT_LEDGER_NO_LINE;
    if (!is_own_line(ledger, line))
        return CT_LEDGER_REVOKED;
    if (bytes > UINT64_MAX / 4) /* no device has as much, and no word may overflow */
        return CT_LEDGER_OVER;
    atomic_fetch_add(word_of(line, kind), bytes);
    bump_version(line, kind);
    if (!is_own_line(ledger, line)) { /* the line was reassigned in between: its new owner must not keep our bytes */
        subtract(line, kind, bytes);
        return CT_LEDGER_REVOKED;
    }
    if (!quota_bytes || sum_of(ledger->file, ledger->bytes, ledger->account, line, &is_unsettled) <= quota_bytes)
        return CT_LEDGER_OK;
    subtract(line, kind, bytes);
    return is_unsettled ? CT_LEDGER_CONTENDED : CT_LEDGER_OVER;
}

void ct_ledger_invalidate_measurement(struct ct_ledger *ledger)
{
    struct ct_ledger_line *line = line_in(ledger);
    if (line && is_own_line(ledger, line))
        atomic_fetch_add(&line->own_version, 1);
}

void ct_ledger_release(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes)
{
    struct ct_ledger_line *line = line_in(ledger);
    if (line && is_own_line(ledger, line))
        subtract(line, kind, bytes);
}

void ct_ledger_denied(struct ct_ledger *ledger, uint64_t bytes)
{
    struct ct_ledger_line *line = line_in(ledger);
    if (!line || !is_own_line(ledger, line))
        return;
    atomic_fetch_add(&line->denied, 1);
    atomic_fetch_add(&line->denied_bytes, bytes);
}

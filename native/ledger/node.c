/* The node's functions on a ledger: creating it, granting accounts, and clearing the lines of dead processes. */
#include "ledger/internal.h"

#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x314744454c544f43); /* "COTLEDG1" in little-endian bytes */

enum { SLOTS_MAX = 1 << 20 };

int ct_ledger_check(const void *memory, size_t bytes)
{
    const struct ct_ledger_header *header = memory;
    if (bytes < CT_LEDGER_HEADER_BYTES || header->magic != MAGIC || header->version != CT_LEDGER_VERSION)
        return -1;
    uint64_t slots = load_seq_cst(&header->slots);
    return slots <= SLOTS_MAX && ct_ledger_offset((uint32_t)slots) <= bytes ? 0 : -1;
}

int ct_ledger_init(void *memory, size_t bytes, uint64_t slots)
{
    struct ct_ledger_header *header = memory;
    if (slots > SLOTS_MAX || bytes < ct_ledger_offset((uint32_t)slots))
        return -1;
    if (ct_ledger_check(memory, bytes) == 0) {
        raise_to(&header->slots, slots); /* tenants check how much of the file they have mapped */
        return 0;
    }
    header->magic = 0;
    memset((unsigned char *)memory + sizeof header->magic, 0, bytes - sizeof header->magic);
    header->version = CT_LEDGER_VERSION;
    store_seq_cst(&header->slots, slots);
    atomic_thread_fence(memory_order_release);
    header->magic = MAGIC;
    return 0;
}

void ct_ledger_grant(struct ct_ledger_account *account, uint64_t generation)
{
    if (load_seq_cst(&account->generation) == generation)
        return;
    store_seq_cst(&account->generation, 0); /* processes of the previous tenant reserve nothing more */
    unsigned char *rest = (unsigned char *)account + sizeof account->generation;
    memset(rest, 0, sizeof *account - sizeof account->generation);
    store_seq_cst(&account->generation, generation);
}

static struct ct_ledger_account *writable_account(void *file, size_t bytes, uint32_t slot)
{
    if (ct_ledger_check(file, bytes) < 0 || slot >= accounts_of(file, bytes))
        return NULL;
    return (void *)((unsigned char *)file + ct_ledger_offset(slot));
}

void ct_ledger_clear(void *file, size_t bytes, uint32_t slot, uint32_t line, uint64_t owner)
{
    struct ct_ledger_account *account = writable_account(file, bytes, slot);
    if (!account || line >= CT_LEDGER_LINES || !owner || load_seq_cst(&account->line[line].owner) != owner)
        return;
    /* Orphaned memory is recorded first: for an instant it counts twice, but never not at all. */
    ct_ledger_shares_end(file, bytes, account, line + 1);
    struct ct_ledger_line *cleared = &account->line[line];
    store_seq_cst(&cleared->allocated_bytes, 0);
    store_seq_cst(&cleared->own_bytes, 0);
    store_seq_cst(&cleared->managed_bytes, 0);
    store_seq_cst(&cleared->contexts, 0);
    store_seq_cst(&cleared->code_bytes, 0);
    store_seq_cst(&cleared->excess_bytes, 0);
    store_seq_cst(&cleared->wanted_bytes, 0);
    store_seq_cst(&cleared->fault, 0); /* must not be attributed to the next owner of the line */
    store_seq_cst(&cleared->ended, load_seq_cst(&cleared->begun));
    atomic_fetch_add(&account->denied, atomic_exchange(&cleared->denied, 0));
    atomic_fetch_add(&account->denied_bytes, atomic_exchange(&cleared->denied_bytes, 0));
    store_seq_cst(&cleared->owner, 0);
}

/* Returns the memory that the device may or may not attribute to this process: managed memory, imports, and exports
 * that it freed while others have them open. */
static uint64_t unattributed_bytes(const struct ct_ledger_header *file, size_t bytes,
                                   const struct ct_ledger_account *account, uint32_t line)
{
    uint32_t used = used_count(&account->shares_used, CT_LEDGER_SHARES);
    uint64_t sum = load_seq_cst(&account->line[line].managed_bytes);
    for (uint32_t i = 0; i < used; i++) {
        const struct ct_ledger_share *share = &account->share[i];
        uint64_t place = load_seq_cst(&share->place);
        if ((uint32_t)place != line + 1)
            continue;
        if (share_role(place) == CT_LEDGER_ORPHANED)
            sum = sat_add_u64(sum, load_seq_cst(&share->bytes));
        else if (share_role(place) == CT_LEDGER_IMPORT) /* an importer need not know the size */
            sum = sat_add_u64(sum, ct_ledger_exported_bytes(file, bytes, load_seq_cst(&share->key)));
    }
    return sum;
}

int ct_ledger_measured(void *file, size_t bytes, uint32_t slot, uint32_t number, uint64_t owner, uint64_t begun_before,
                       uint64_t ended_before, uint64_t held_bytes)
{
    struct ct_ledger_account *account = writable_account(file, bytes, slot);
    if (!account || number >= CT_LEDGER_LINES)
        return 0;
    struct ct_ledger_line *line = &account->line[number];
    uint64_t allocated = load_seq_cst(&line->allocated_bytes), own = load_seq_cst(&line->own_bytes),
        version = load_seq_cst(&line->own_version);
    uint64_t unattributed = unattributed_bytes(file, bytes, account, number);
    if (begun_before != ended_before || load_seq_cst(&line->begun) != begun_before ||
        load_seq_cst(&line->ended) != ended_before ||
        load_seq_cst(&line->owner) != owner)
        return 0;
    uint64_t beyond_allocated = held_bytes > allocated ? held_bytes - allocated : 0,
        lower_bound = beyond_allocated > unattributed ? beyond_allocated - unattributed : 0;
    int is_known = load_seq_cst(&line->measured_version) == version + 1; /* measured before, possibly without such
                                                                          * memory */
    if (lower_bound > INT64_MAX || own > INT64_MAX)
        return 0; /* not a value that the hook writes */
    if (unattributed && is_known && (int64_t)lower_bound - (int64_t)own <= load_seq_cst(&line->excess_bytes))
        return 1;
    if (unattributed && !is_known && lower_bound < own)
        lower_bound = own < beyond_allocated ? own : beyond_allocated;
    store_seq_cst(&line->measured_version, 0); /* a reader in between ignores a negative excess */
    store_seq_cst(&line->excess_bytes, (int64_t)lower_bound - (int64_t)own);
    store_seq_cst(&line->measured_version, version + 1);
    return 1;
}

void ct_ledger_sweep(void *file, size_t bytes, uint32_t slot)
{
    struct ct_ledger_account *account = writable_account(file, bytes, slot);
    for (uint32_t i = 0; account && i < CT_LEDGER_SHARES; i++) {
        struct ct_ledger_share *share = &account->share[i];
        uint64_t place = load_seq_cst(&share->place);
        if (share_role(place) == CT_LEDGER_ORPHANED && !ct_ledger_is_imported(file, bytes, load_seq_cst(&share->key)))
            atomic_compare_exchange_strong(&share->place, &place, 0);
    }
}

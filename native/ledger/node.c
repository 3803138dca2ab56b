/* The node's side of a ledger: making it, granting accounts, and ending the lines of the dead. */
#include "ledger/words.h"

#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x314744454c544f43); /* "COTLEDG1" in little-endian bytes */

enum { MOST_SLOTS = 1 << 20 };

int ct_ledger_check(const void *memory, size_t bytes)
{
    const struct ct_ledger_header *header = memory;
    if (bytes < CT_LEDGER_HEADER_BYTES || header->magic != MAGIC || header->version != CT_LEDGER_VERSION)
        return -1;
    uint64_t slots = LOAD(header->slots);
    return slots <= MOST_SLOTS && ct_ledger_offset((uint32_t)slots) <= bytes ? 0 : -1;
}

int ct_ledger_init(void *memory, size_t bytes, uint64_t slots)
{
    struct ct_ledger_header *header = memory;
    if (slots > MOST_SLOTS || bytes < ct_ledger_offset((uint32_t)slots))
        return -1;
    if (ct_ledger_check(memory, bytes) == 0) {
        raise_to(&header->slots, slots); /* tenants know how far they mapped it */
        return 0;
    }
    header->magic = 0;
    memset((unsigned char *)memory + sizeof header->magic, 0, bytes - sizeof header->magic);
    header->version = CT_LEDGER_VERSION;
    STORE(header->slots, slots);
    atomic_thread_fence(memory_order_release);
    header->magic = MAGIC;
    return 0;
}

void ct_ledger_grant(struct ct_ledger_account *account, uint64_t generation)
{
    if (LOAD(account->generation) == generation)
        return;
    STORE(account->generation, 0); /* whoever is still there from before asks for nothing more */
    unsigned char *rest = (unsigned char *)account + sizeof account->generation;
    memset(rest, 0, sizeof *account - sizeof account->generation);
    STORE(account->generation, generation);
}

static struct ct_ledger_account *writable(void *file, size_t bytes, uint32_t slot)
{
    if (ct_ledger_check(file, bytes) < 0 || slot >= accounts_of(file, bytes))
        return NULL;
    return (void *)((unsigned char *)file + ct_ledger_offset(slot));
}

void ct_ledger_clear(void *file, size_t bytes, uint32_t slot, uint32_t line, uint64_t owner)
{
    struct ct_ledger_account *account = writable(file, bytes, slot);
    if (!account || line >= CT_LEDGER_LINES || !owner || LOAD(account->line[line].owner) != owner)
        return;
    /* What others have open first: for an instant it counts twice, never not at all. */
    ct_ledger_shares_end(file, bytes, account, line + 1);
    struct ct_ledger_line *ended = &account->line[line];
    STORE(ended->booked_bytes, 0);
    STORE(ended->own_bytes, 0);
    STORE(ended->managed_bytes, 0);
    STORE(ended->contexts, 0);
    STORE(ended->code_bytes, 0);
    STORE(ended->excess_bytes, 0);
    STORE(ended->wanted_bytes, 0);
    STORE(ended->fault, 0); /* whoever claims it next is not to be taken for the one that had it */
    STORE(ended->ended, LOAD(ended->begun));
    atomic_fetch_add(&account->denied, atomic_exchange(&ended->denied, 0));
    atomic_fetch_add(&account->denied_bytes, atomic_exchange(&ended->denied_bytes, 0));
    STORE(ended->owner, 0);
}

/* What the device may count to this process or not: managed memory, what it opened, what it freed and others have open. */
static uint64_t doubtful_bytes(const struct ct_ledger_header *file, size_t bytes,
                               const struct ct_ledger_account *account, uint32_t line)
{
    uint32_t used = used_of(&account->shares_used, CT_LEDGER_SHARES);
    uint64_t sum = LOAD(account->line[line].managed_bytes);
    for (uint32_t i = 0; i < used; i++) {
        const struct ct_ledger_share *share = &account->share[i];
        uint64_t place = LOAD(share->place);
        if ((uint32_t)place != line + 1)
            continue;
        if (share_role(place) == CT_LEDGER_LEFT)
            sum = plus(sum, LOAD(share->bytes));
        else if (share_role(place) == CT_LEDGER_IMPORT) /* whoever opened it need not know how large it is */
            sum = plus(sum, ct_ledger_exported_bytes(file, bytes, LOAD(share->key)));
    }
    return sum;
}

int ct_ledger_measured(void *file, size_t bytes, uint32_t slot, uint32_t number, uint64_t owner, uint64_t begun_before,
                       uint64_t ended_before, uint64_t held_bytes)
{
    struct ct_ledger_account *account = writable(file, bytes, slot);
    if (!account || number >= CT_LEDGER_LINES)
        return 0;
    struct ct_ledger_line *line = &account->line[number];
    uint64_t booked = LOAD(line->booked_bytes), own = LOAD(line->own_bytes), version = LOAD(line->own_version);
    uint64_t doubtful = doubtful_bytes(file, bytes, account, number);
    if (begun_before != ended_before || LOAD(line->begun) != begun_before || LOAD(line->ended) != ended_before ||
        LOAD(line->owner) != owner)
        return 0;
    uint64_t beyond = held_bytes > booked ? held_bytes - booked : 0, least = beyond > doubtful ? beyond - doubtful : 0;
    int is_known = LOAD(line->measured_version) == version + 1; /* from before, perhaps without such doubt */
    if (least > INT64_MAX || own > INT64_MAX)
        return 0; /* nothing that a process of ours wrote */
    if (doubtful && is_known && (int64_t)least - (int64_t)own <= LOAD(line->excess_bytes))
        return 1;
    if (doubtful && !is_known && least < own)
        least = own < beyond ? own : beyond;
    STORE(line->measured_version, 0); /* a reader in between takes less than own for nobody's word */
    STORE(line->excess_bytes, (int64_t)least - (int64_t)own);
    STORE(line->measured_version, version + 1);
    return 1;
}

void ct_ledger_sweep(void *file, size_t bytes, uint32_t slot)
{
    struct ct_ledger_account *account = writable(file, bytes, slot);
    for (uint32_t i = 0; account && i < CT_LEDGER_SHARES; i++) {
        struct ct_ledger_share *share = &account->share[i];
        uint64_t place = LOAD(share->place);
        if (share_role(place) == CT_LEDGER_LEFT && !ct_ledger_is_imported(file, bytes, LOAD(share->key)))
            atomic_compare_exchange_strong(&share->place, &place, 0);
    }
}

/* The roster: what the node says to all tenants of a device, in one piece. As the terms page: two copies and a count. */
#include "gate/pages.h"

#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x3145544147544f43); /* "COTGATE1" in little-endian bytes */

enum { READ_ATTEMPTS = 64 };

int ct_roster_check(const void *memory, size_t bytes)
{
    const struct ct_gate_roster *roster = memory;
    if (bytes < CT_GATE_PAGE_BYTES || roster->magic != MAGIC || roster->version != CT_GATE_VERSION)
        return -1;
    return 0;
}

void ct_roster_write(struct ct_gate_roster *roster, const struct ct_gate_rules *rules)
{
    uint64_t words[CT_GATE_RULES_WORDS];
    memcpy(words, rules, sizeof words);
    uint64_t writes = atomic_load_explicit(&roster->writes, memory_order_relaxed);
    _Atomic uint64_t *spare = roster->copy[(writes + 1) & 1];
    atomic_thread_fence(memory_order_release); /* a reader that sees one of these also sees the count before */
    for (int i = 0; i < CT_GATE_RULES_WORDS; i++)
        atomic_store_explicit(&spare[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&roster->writes, writes + 1, memory_order_release);
}

int ct_roster_read(const struct ct_gate_roster *roster, struct ct_gate_rules *rules, uint64_t *writes)
{
    uint64_t words[CT_GATE_RULES_WORDS];
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        uint64_t before = atomic_load_explicit(&roster->writes, memory_order_acquire);
        const _Atomic uint64_t *valid = roster->copy[before & 1];
        for (int i = 0; i < CT_GATE_RULES_WORDS; i++)
            words[i] = atomic_load_explicit(&valid[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&roster->writes, memory_order_relaxed) == before) {
            memcpy(rules, words, sizeof words);
            if (rules->seats > CT_GATE_SEATS)
                rules->seats = 0; /* no roster of a node of ours: nobody is above anybody */
            *writes = before;
            return 0;
        }
    }
    return -1;
}

int ct_roster_init(void *memory, size_t bytes, uint64_t slots)
{
    struct ct_gate_roster *roster = memory;
    if (bytes < CT_GATE_PAGE_BYTES)
        return -1;
    if (ct_roster_check(memory, bytes) == 0) {
        if (atomic_load_explicit(&roster->slots, memory_order_relaxed) < slots) /* tenants know how far they mapped it */
            atomic_store_explicit(&roster->slots, slots, memory_order_release);
        return 0;                  /* and what it says stays */
    }
    const struct ct_gate_rules nothing = {0};
    ct_roster_write(roster, &nothing);
    ct_roster_write(roster, &nothing); /* both copies: nobody who reads meanwhile gets a mixture */
    roster->version = CT_GATE_VERSION;
    atomic_store_explicit(&roster->slots, slots, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    roster->magic = MAGIC;
    return 0;
}

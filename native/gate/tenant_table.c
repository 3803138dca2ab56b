/* The tenant table: the node's rules for all tenants of a device. As in the grant page, there are two copies and a
 * count of writes. */
#include "gate/pages.h"

#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x3145544147544f43); /* "COTGATE1" in little-endian bytes */

enum { READ_ATTEMPTS = 64 };

int ct_tenant_table_check(const void *memory, size_t bytes)
{
    const struct ct_tenant_table *table = memory;
    if (bytes < CT_GATE_PAGE_BYTES || table->magic != MAGIC || table->version != CT_GATE_VERSION)
        return -1;
    return 0;
}

void ct_tenant_table_write(struct ct_tenant_table *table, const struct ct_gate_rules *rules)
{
    uint64_t words[CT_GATE_RULES_WORDS];
    memcpy(words, rules, sizeof words);
    uint64_t writes = load_relaxed(&table->writes);
    _Atomic uint64_t *spare = table->copy[(writes + 1) & 1];
    atomic_thread_fence(memory_order_release); /* a reader that sees one of these also sees the previous count */
    for (int i = 0; i < CT_GATE_RULES_WORDS; i++)
        store_relaxed(&spare[i], words[i]);
    store_release(&table->writes, writes + 1);
}

int ct_tenant_table_read(const struct ct_tenant_table *table, struct ct_gate_rules *rules, uint64_t *writes)
{
    uint64_t words[CT_GATE_RULES_WORDS];
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        uint64_t before = load_acquire(&table->writes);
        const _Atomic uint64_t *valid = table->copy[before & 1];
        for (int i = 0; i < CT_GATE_RULES_WORDS; i++)
            words[i] = load_relaxed(&valid[i]);
        atomic_thread_fence(memory_order_acquire);
        if (load_relaxed(&table->writes) == before) {
            memcpy(rules, words, sizeof words);
            if (rules->tenant_count > CT_GATE_TENANTS)
                rules->tenant_count = 0; /* not written by a node of this version: treat all tenants as equal */
            *writes = before;
            return 0;
        }
    }
    return -1;
}

int ct_tenant_table_init(void *memory, size_t bytes, uint64_t slots)
{
    struct ct_tenant_table *table = memory;
    if (bytes < CT_GATE_PAGE_BYTES)
        return -1;
    if (ct_tenant_table_check(memory, bytes) == 0) {
        if (load_relaxed(&table->slots) < slots) /* tenants check how much of the file they have mapped */
            store_release(&table->slots, slots);
        return 0;                  /* and the contents are kept */
    }
    const struct ct_gate_rules empty = {0};
    ct_tenant_table_write(table, &empty);
    ct_tenant_table_write(table, &empty); /* both copies, so that a concurrent reader never gets a mixture */
    table->version = CT_GATE_VERSION;
    store_relaxed(&table->slots, slots);
    atomic_thread_fence(memory_order_release);
    table->magic = MAGIC;
    return 0;
}

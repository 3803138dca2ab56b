/* The tenant table: the node's rules for all processes of a device. As in the grant page, there are two copies and a
 * count of writes. */
#include "gate/pages.h"

#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x3145544147544f43); /* "COTGATE1" in little-endian bytes */

enum { READ_ATTEMPTS = 64 };

int ct_tenant_table_check(const void *memory, size_t bytes)
{
    const struct ct_tenant_table *table = memory;
    return bytes < CT_TABLE_BYTES || table->magic != MAGIC || table->version != CT_GATE_VERSION ? -1 : 0;
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
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        const uint64_t before = load_acquire(&table->writes);
        const _Atomic uint64_t *valid = table->copy[before & 1];
        for (int i = 0; i < CT_GATE_RULES_WORDS; i++) {
            const uint64_t word = load_relaxed(&valid[i]);
            memcpy((unsigned char *)rules + (size_t)i * sizeof word, &word, sizeof word);
        }
        atomic_thread_fence(memory_order_acquire);
        if (load_relaxed(&table->writes) == before) {
            if (rules->process_count > CT_PROCESSES)
                rules->process_count = 0; /* not written by a node of this version: treat all processes as equal */
            *writes = before;
            return 0;
        }
    }
    return -1;
}

/* Lists the processes of a tenant in one copy of the rules. */
static int list_siblings(const _Atomic uint64_t *words, uint32_t tenant, struct ct_process_id *siblings)
{
    const uint64_t count = load_relaxed(&words[offsetof(struct ct_gate_rules, process_count) / sizeof(uint64_t)]);
    const _Atomic uint64_t *word = &words[offsetof(struct ct_gate_rules, processes) / sizeof(uint64_t)];
    int listed = 0;
    for (uint64_t i = 0; count <= CT_PROCESSES && i < count; i++, word += CT_TENANT_ENTRY_WORDS) {
        uint64_t copy[CT_TENANT_ENTRY_WORDS];
        struct ct_tenant_entry entry;
        for (int j = 0; j < CT_TENANT_ENTRY_WORDS; j++)
            copy[j] = load_relaxed(&word[j]);
        memcpy(&entry, copy, sizeof entry);
        if (entry.tenant == tenant)
            siblings[listed++] = (struct ct_process_id){.index = entry.index, .generation = entry.generation};
    }
    return listed;
}

int ct_tenant_table_siblings(const struct ct_tenant_table *table, uint32_t tenant,
                             struct ct_process_id siblings[CT_PROCESSES])
{
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        const uint64_t before = load_acquire(&table->writes);
        const int listed = list_siblings(table->copy[before & 1], tenant, siblings);
        atomic_thread_fence(memory_order_acquire);
        if (load_relaxed(&table->writes) == before)
            return listed;
    }
    return -1;
}

int ct_tenant_table_init(void *memory, size_t bytes)
{
    struct ct_tenant_table *table = memory;
    if (bytes < CT_TABLE_BYTES)
        return -1;
    if (ct_tenant_table_check(memory, bytes) == 0)
        return 0;
    memset(table, 0, sizeof *table); /* no process has it mapped yet */
    table->version = CT_GATE_VERSION;
    atomic_thread_fence(memory_order_release);
    table->magic = MAGIC;
    return 0;
}

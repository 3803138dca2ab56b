/* The ledgers of a device's processes in the memory of one test. */
#ifndef COTENANT_TESTS_LEDGER_PAGES_H
#define COTENANT_TESTS_LEDGER_PAGES_H

#include "tests/device_pages.h"
#include "tests/expect.h"

enum { TENANTS = 3 };

struct ledger_device {
    struct device_pages pages;
    struct ct_ledger_account account[TENANTS];
};

/* Lists processes in the tenant table: process i has generation i + 1 and belongs to tenant[i]; -1: it has ended. */
static inline void list_processes(struct ledger_device *device, const int *tenant, int count)
{
    static struct ct_gate_rules rules;
    rules = (struct ct_gate_rules){.policy = CT_GATE_FILL};
    for (int i = 0; i < count; i++)
        if (tenant[i] >= 0)
            rules.processes[rules.process_count++] = (struct ct_tenant_entry){
                .generation = (uint32_t)i + 1, .index = (uint16_t)i, .tenant = (uint32_t)tenant[i]};
    ct_tenant_table_write(&device->pages.table, &rules);
}

static inline void make_device(struct ledger_device *device, const int *tenant, int count)
{
    memset(device, 0, page_start((uint32_t)count));
    memset(device->account, 0, sizeof device->account);
    EXPECT_EQ(ct_tenant_table_init(&device->pages.table, CT_TABLE_BYTES), 0);
    list_processes(device, tenant, count);
}

static inline struct ct_ledger open_ledger(struct ledger_device *device, uint32_t index, uint32_t tenant)
{
    struct ct_ledger ledger;
    ct_ledger_open(&ledger, &device->pages.table, device->pages.process, &device->account[tenant],
                   &device->pages.process[index].ledger, index, index + 1, tenant);
    return ledger;
}

#endif

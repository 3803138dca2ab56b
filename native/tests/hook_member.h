/* Makes this process a member of a tenant without a node: shared memory stands in for the pages that the node would pass
 * on, so that a test can write all of them. */
#ifndef COTENANT_TESTS_HOOK_MEMBER_H
#define COTENANT_TESTS_HOOK_MEMBER_H

#include "hook_setup.h"

#include "hook/entry/membership.h"

#include <sys/mman.h>

struct node_pages {
    struct ct_process_pages processes[CT_PROCESSES];
    union {
        struct ct_grant_page grant;
        unsigned char grant_bytes[CT_GRANT_BYTES];
    };
    union {
        struct ct_tenant_table table;
        unsigned char table_bytes[CT_TABLE_BYTES];
    };
    union {
        struct ct_arbitration_page arbitration;
        unsigned char arbitration_bytes[CT_GATE_PAGE_BYTES];
    };
};
static struct node_pages *node; /* a forked child shares it */

static inline void make_node_pages(const struct ct_gate_rules *rules)
{
    node = mmap(NULL, sizeof *node, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(node != MAP_FAILED);
    EXPECT_EQ(ct_grant_init(&node->grant, CT_GRANT_BYTES), CT_GRANT_OK);
    EXPECT_EQ(ct_tenant_table_init(&node->table, CT_TABLE_BYTES), 0);
    ct_tenant_table_write(&node->table, rules);
}

static inline struct ct_ledger_account *node_account(void)
{
    return (struct ct_ledger_account *)(node->grant_bytes + CT_GRANT_ACCOUNT_OFFSET);
}

/* Joins this process on one of the tenant's devices, as if the node had answered; before its first driver call there. */
static inline void become_member_on(uint32_t device, uint32_t index, uint32_t process_generation, uint64_t slot,
                                    uint64_t generation)
{
    struct ct_membership *membership =
        mmap(NULL, sizeof *membership, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct ct_page *page = ct_page_open();
    EXPECT(membership != MAP_FAILED && page != NULL);
    membership->grant = &node->grant;
    membership->account = node_account();
    membership->table = &node->table;
    membership->arbitration = &node->arbitration;
    membership->region = node->processes;
    membership->pages = &node->processes[index];
    membership->slot = slot;
    membership->generation = generation;
    membership->index = index;
    membership->process_generation = process_generation;
    membership->attachments = 1;
    membership->state = CT_MEMBERSHIP_JOINED;
    membership->pages->gate.generation = process_generation;
    page->devices[device].membership = membership;
    page->devices[device].is_membership_tried = 1;
    page->device_count = page->device_count > device ? page->device_count : device + 1;
}

static inline void become_member(uint32_t index, uint32_t process_generation, uint64_t slot, uint64_t generation)
{
    become_member_on(0, index, process_generation, slot, generation);
}

#endif

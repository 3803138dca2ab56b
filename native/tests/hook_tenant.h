/* Makes this process the only one of a tenant with a quota. */
#ifndef COTENANT_TESTS_HOOK_TENANT_H
#define COTENANT_TESTS_HOOK_TENANT_H

#include "hook_member.h"

#include "hook/memory/memory.h"

#include <stdbool.h>

enum { SLOT = 1, GENERATION = 3, INDEX = 2, PROCESS_GENERATION = 5, KIB = 1024 };

static inline struct ct_ledger_line *line(void)
{
    return &node->processes[INDEX].ledger.line;
}

static inline uint64_t held(void)
{
    return ct_memory_held(ct_memory());
}

static inline void set_quota(uint64_t bytes, bool is_online)
{
    const struct ct_grant grant = {.state = CT_GRANT_ACTIVE, .slot = SLOT, .generation = GENERATION,
                                   .online = is_online, .memory_bytes = bytes};
    ct_grant_write(&node->grant, &grant);
}

static inline struct ct_gate_rules tenant_rules(void)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_OPEN, .process_count = 1};
    rules.processes[0] = (struct ct_tenant_entry){.generation = PROCESS_GENERATION, .index = INDEX, .tenant = SLOT};
    return rules;
}

/* Creates a tenant with a quota; there is no directory for records. */
static inline void make_tenant(uint64_t quota, bool is_online)
{
    const struct ct_gate_rules rules = tenant_rules();
    make_node_pages(&rules);
    set_quota(quota, is_online);
    become_member(INDEX, PROCESS_GENERATION, SLOT, GENERATION);
    unsetenv("COTENANT_RECORD");
}

#endif

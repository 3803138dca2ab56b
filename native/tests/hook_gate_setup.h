/* Makes this process one of two tenants on a device, for the hook with a driver that does nothing. */
#ifndef COTENANT_TESTS_HOOK_GATE_SETUP_H
#define COTENANT_TESTS_HOOK_GATE_SETUP_H

#include "hook_member.h"

#include "hook/launch/gateway.h"

#include <sys/wait.h>

enum { ONLINE = 0, OFFLINE = 1 }; /* index of the process and slot of the tenant */

static inline struct ct_gate_page *page_of(uint32_t index)
{
    return &node->processes[index].gate;
}

static inline struct ct_gate_rules rules_of(uint8_t online_priority, uint8_t offline_priority)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL,
                                  .bound_ns = 500000,
                                  .delay_ppm = 20000,
                                  .patience_ns = 2000000,
                                  .spin_ppm = 350000,
                                  .process_count = 2};
    rules.processes[0] =
        (struct ct_tenant_entry){.generation = 1, .index = ONLINE, .tenant = ONLINE, .priority = online_priority};
    rules.processes[1] =
        (struct ct_tenant_entry){.generation = 1, .index = OFFLINE, .tenant = OFFLINE, .priority = offline_priority};
    return rules;
}

/* Creates the pages with these rules, and makes this process one of the two. */
static inline void make_gate(const struct ct_gate_rules *rules, uint32_t index)
{
    make_node_pages(rules);
    become_member(index, 1, index, 1);
}

static inline struct ct_session *open_session(void)
{
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS); /* the first call finds the driver */
    struct ct_session *session = ct_session();
    EXPECT(session != NULL);
    return session;
}

static inline void *driver_symbol(const char *name)
{
    void *driver = dlopen(IDLE_DRIVER, RTLD_NOW | RTLD_LOCAL); /* stays loaded */
    EXPECT(driver != NULL);
    void *symbol = dlsym(driver, name);
    EXPECT(symbol != NULL);
    return symbol;
}

/* Runs each case in a separate process. */
static inline int run_cases(void (*const cases[])(void), size_t count)
{
    test_hook_open("0", "8");
    for (size_t i = 0; i < count; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            cases[i]();
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child);
        if (status)
            fprintf(stderr, "case %zu ended with %d\n", i, status);
        EXPECT_EQ(status, 0);
    }
    EXPECT(test_hook_close() > 0);
    return 0;
}

#endif

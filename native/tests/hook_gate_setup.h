/* Creates a device's gate file as the node does, for the hook with a driver that does nothing. */
#ifndef COTENANT_TESTS_HOOK_GATE_SETUP_H
#define COTENANT_TESTS_HOOK_GATE_SETUP_H

#include "hook_setup.h"

#include "hook/launch/gateway.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SLOTS = 4, ONLINE = 0, OFFLINE = 1 };

static char gate_path[96];
static char *file;

static inline struct ct_gate_page *page_of(uint32_t slot)
{
    return (struct ct_gate_page *)(file + ct_gate_offset(slot));
}

static inline struct ct_gate_rules rules_of(uint8_t online_priority, uint8_t offline_priority)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL,
                                  .bound_ns = 500000,
                                  .delay_ppm = 20000,
                                  .patience_ns = 2000000,
                                  .spin_ppm = 350000,
                                  .tenant_count = 2};
    rules.tenants[0] = (struct ct_tenant_entry){.generation = 1, .slot = ONLINE, .priority = online_priority};
    rules.tenants[1] = (struct ct_tenant_entry){.generation = 1, .slot = OFFLINE, .priority = offline_priority};
    return rules;
}

/* Creates the gate file under the name that the hook opens. */
static inline void make_gate(const struct ct_gate_rules *rules, size_t bytes, uint32_t slot)
{
    char text[16];
    snprintf(gate_path, sizeof gate_path, "%s/gate", test_records);
    int descriptor = open(gate_path, O_RDWR | O_CREAT, 0600);
    EXPECT(descriptor >= 0 && ftruncate(descriptor, (off_t)ct_gate_offset(SLOTS)) == 0);
    file = mmap(NULL, ct_gate_offset(SLOTS), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    EXPECT(file != MAP_FAILED);
    EXPECT_EQ(ct_tenant_table_init(file, ct_gate_offset(SLOTS), SLOTS), 0);
    ct_tenant_table_write((struct ct_tenant_table *)file, rules);
    if (bytes < ct_gate_offset(SLOTS)) {
        munmap(file, ct_gate_offset(SLOTS));
        EXPECT_EQ(ftruncate(descriptor, (off_t)bytes), 0);
    }
    close(descriptor);
    snprintf(text, sizeof text, "%u/1", slot);
    setenv("COTENANT_SLOT", text, 1);
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
            if (file && file != MAP_FAILED && gate_path[0])
                unlink(gate_path);
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child);
        if (status)
            fprintf(stderr, "case %zu ended with %d\n", i, status);
        EXPECT_EQ(status, 0);
        snprintf(gate_path, sizeof gate_path, "%s/gate", test_records);
        unlink(gate_path);
    }
    EXPECT(test_hook_close() > 0);
    return 0;
}

#endif

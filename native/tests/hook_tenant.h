/* Makes this process a tenant with a quota: creates the grant page and the ledger as the node does. */
#ifndef COTENANT_TESTS_HOOK_TENANT_H
#define COTENANT_TESTS_HOOK_TENANT_H

#include "hook_setup.h"

#include "hook/memory/memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>

enum { SLOTS = 2, SLOT = 1, GENERATION = 3, KIB = 1024,
      FILE_BYTES = CT_LEDGER_HEADER_BYTES + SLOTS * CT_LEDGER_ACCOUNT_BYTES };

static unsigned char *file;
static struct ct_grant_page *page;

static struct ct_ledger_account *account(void)
{
    return (struct ct_ledger_account *)(file + ct_ledger_offset(SLOT));
}

static uint64_t held(void)
{
    return ct_ledger_held((const void *)file, FILE_BYTES, account());
}

static void set_quota(uint64_t bytes, bool is_online)
{
    const struct ct_grant grant = {.state = CT_GRANT_ACTIVE, .slot = SLOT, .generation = GENERATION,
                                   .online = is_online, .memory_bytes = bytes};
    ct_grant_write(page, &grant);
}

static void *shared_file(const char *name, size_t bytes, int descriptors[2])
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", test_records, name);
    descriptors[1] = open(path, O_RDWR | O_CREAT, 0600);
    descriptors[0] = open(path, O_RDONLY);
    EXPECT(descriptors[0] >= 0 && descriptors[1] >= 0 && ftruncate(descriptors[1], (off_t)bytes) == 0);
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[1], 0);
    EXPECT(mapped != MAP_FAILED);
    unlink(path);
    return mapped;
}

/* Creates a tenant with a quota, whose files are passed by descriptors; there is no directory for records. */
static void make_tenant(uint64_t quota, bool is_online)
{
    char text[32];
    int grant[2], ledger[2];
    page = shared_file("grant", CT_GRANT_BYTES, grant);
    file = shared_file("ledger", FILE_BYTES, ledger);
    EXPECT_EQ(ct_grant_init(page, CT_GRANT_BYTES), CT_GRANT_OK);
    EXPECT_EQ(ct_ledger_init(file, FILE_BYTES, SLOTS), 0);
    ct_ledger_grant(account(), GENERATION);
    set_quota(quota, is_online);
    snprintf(text, sizeof text, "%d,%d", ledger[0], ledger[1]);
    setenv("COTENANT_LEDGER_FD", text, 1);
    snprintf(text, sizeof text, "%d", grant[0]);
    setenv("COTENANT_GRANT_FD", text, 1);
    snprintf(text, sizeof text, "%d/%d", SLOT, GENERATION);
    setenv("COTENANT_SLOT", text, 1);
    unsetenv("COTENANT_RECORD");
}

#endif

/* What a tenant holds is the sum over its processes and its account, after reservations, deaths, exports and forgery. */
#include "tests/ledger_pages.h"

enum { MIB = 1 << 20, PROCESSES = 5 };

static struct ledger_device device;
/* The first two processes are siblings, each of the next two is a tenant of its own, and the last is not attached. */
static const int tenant_of[PROCESSES] = {0, 0, 1, 2, -1};

static void begin(void)
{
    make_device(&device, tenant_of, PROCESSES);
}

static struct ct_ledger ledger_of(uint32_t index)
{
    return open_ledger(&device, index, tenant_of[index] < 0 ? 0 : (uint32_t)tenant_of[index]);
}

static struct ct_ledger_line *line_of(uint32_t index)
{
    return &device.pages.process[index].ledger.line;
}

static uint64_t held(uint32_t tenant)
{
    /* As a process of the tenant sees it that has nothing itself. */
    struct ct_ledger observer = {.table = &device.pages.table, .processes = device.pages.process,
                                 .account = &device.account[tenant], .index = UINT32_MAX, .tenant = tenant};
    return ct_ledger_held(&observer);
}

static int reserve(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes, uint64_t quota)
{
    ct_ledger_begin(ledger);
    int result = ct_ledger_reserve(ledger, kind, bytes, quota);
    ct_ledger_end(ledger);
    return result;
}

static void quota_covers_all_processes_and_kinds(void)
{
    begin();
    struct ct_ledger first = ledger_of(0), second = ledger_of(1), other_tenant = ledger_of(2);
    EXPECT_EQ(reserve(&other_tenant, CT_LEDGER_ALLOCATED, 50 * MIB, 50 * MIB), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&first, CT_LEDGER_ALLOCATED, 4 * MIB, 10 * MIB), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&second, CT_LEDGER_MANAGED, 3 * MIB, 10 * MIB), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 3 * MIB, 10 * MIB), CT_LEDGER_OK); /* exactly the quota */
    EXPECT_EQ(held(0), 10 * MIB);
    EXPECT_EQ(ct_ledger_held(&first), 10 * MIB);
    EXPECT_EQ(ct_ledger_held(&second), 10 * MIB);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 1, 10 * MIB), CT_LEDGER_OVER);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 1, 0), CT_LEDGER_OK); /* no quota, but counted */
    EXPECT_EQ(held(0), 10 * MIB + 1);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, UINT64_MAX, 0), CT_LEDGER_OVER);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 0, 10 * MIB), CT_LEDGER_OVER); /* already exceeded */
    ct_ledger_release(&second, CT_LEDGER_ALLOCATED, 1);
    ct_ledger_release(&first, CT_LEDGER_ALLOCATED, 4 * MIB);
    ct_ledger_release(&first, CT_LEDGER_ALLOCATED, 4 * MIB); /* releasing twice does not go below zero */
    EXPECT_EQ(held(0), 6 * MIB);
    ct_ledger_denied(&second, 5);
    ct_ledger_denied(&second, 6);
    EXPECT_EQ(line_of(1)->denied, 2);
    EXPECT_EQ(line_of(1)->denied_bytes, 11);
    EXPECT_EQ(held(1), 50 * MIB);
}

static void refusal_during_other_calls_is_reported_as_contended(void)
{
    begin();
    struct ct_ledger first = ledger_of(0), second = ledger_of(1);
    ct_ledger_begin(&first);
    EXPECT_EQ(ct_ledger_reserve(&first, CT_LEDGER_ALLOCATED, 8, 10), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 3, 10), CT_LEDGER_CONTENDED);
    EXPECT_EQ(ct_ledger_reserve(&first, CT_LEDGER_ALLOCATED, 3, 10), CT_LEDGER_OVER); /* the call in progress is our
                                                                                     * own */
    ct_ledger_begin(&first);
    /* and that of another thread */
    EXPECT_EQ(ct_ledger_reserve(&first, CT_LEDGER_ALLOCATED, 3, 10), CT_LEDGER_CONTENDED);
    ct_ledger_end(&first);
    ct_ledger_end(&first);
    ct_ledger_end(&first); /* a call that began before there was a ledger does not end another one */
    EXPECT_EQ(line_of(0)->begun, line_of(0)->ended);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 3, 10), CT_LEDGER_OVER);
    EXPECT_EQ(held(0), 8);
}

static void process_without_an_entry_gets_nothing(void)
{
    begin();
    struct ct_ledger ended = ledger_of(0), detached = ledger_of(4);
    EXPECT_EQ(reserve(&detached, CT_LEDGER_ALLOCATED, 1, 0), CT_LEDGER_REVOKED);
    EXPECT_EQ(reserve(&detached, CT_LEDGER_ALLOCATED, 1, 100), CT_LEDGER_REVOKED);
    EXPECT_EQ(reserve(&ended, CT_LEDGER_ALLOCATED, 5, 100), CT_LEDGER_OK);
    list_processes(&device, (const int[]){-1, 0, 1, 2}, 4);
    EXPECT_EQ(reserve(&ended, CT_LEDGER_ALLOCATED, 5, 100), CT_LEDGER_REVOKED);
    EXPECT_EQ(line_of(0)->allocated_bytes, 5);
    EXPECT_EQ(held(0), 0);
}

/* The node adds the memory of an ended process to the account before it removes the process from the table. */
static void memory_of_an_ended_process_counts_until_the_node_drops_it(void)
{
    begin();
    struct ct_ledger first = ledger_of(0), second = ledger_of(1);
    EXPECT_EQ(reserve(&first, CT_LEDGER_ALLOCATED, 60, 100), CT_LEDGER_OK);
    ct_ledger_account_write(&device.account[0], 7, 60, 9);
    EXPECT_EQ(held(0), 120); /* for an instant it counts twice */
    list_processes(&device, (const int[]){-1, 0, 1, 2}, 4);
    EXPECT_EQ(held(0), 60);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 41, 100), CT_LEDGER_OVER);
    ct_ledger_account_write(&device.account[0], 7, 0, 9);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 41, 100), CT_LEDGER_OK);
    EXPECT_EQ(ct_ledger_context_bytes(&second), 7);
    EXPECT_EQ(ct_ledger_reclaimable_bytes(&second), 9);
}

/* Opening the ledger again, under another generation after a reconnection, keeps what the process holds. */
static void ledger_that_is_opened_again_keeps_its_line(void)
{
    begin();
    struct ct_ledger first = ledger_of(0);
    EXPECT_EQ(reserve(&first, CT_LEDGER_ALLOCATED, 5, 100), CT_LEDGER_OK);
    first = ledger_of(0);
    EXPECT_EQ(held(0), 5);
    store_seq_cst(&device.pages.process[0].ledger.generation, 77); /* not the process of the table: it counts for none */
    EXPECT_EQ(held(0), 0);
}

static void measured_excess_is_counted(void)
{
    begin();
    struct ct_ledger first = ledger_of(0);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 300, 0), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&first, CT_LEDGER_ALLOCATED, 1000, 0), CT_LEDGER_OK);
    ct_ledger_measurement_write(&device.account[0], 0, 1, 200, line_of(0)->own_version + 1);
    EXPECT_EQ(held(0), 1500);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 10, 0), CT_LEDGER_OK); /* in addition to what is measured */
    EXPECT_EQ(held(0), 1510);
    ct_ledger_measurement_write(&device.account[0], 0, 1, -110, line_of(0)->own_version + 1);
    EXPECT_EQ(held(0), 1200); /* contexts and modules use less than estimated */
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 10, 0), CT_LEDGER_OK); /* a negative excess counts only while nothing has
                                                                   * changed */
    EXPECT_EQ(held(0), 1320);
    ct_ledger_measurement_write(&device.account[0], 0, 1, -5000, line_of(0)->own_version + 1);
    EXPECT_EQ(held(0), 1000); /* it reduces nothing but the estimate */
    ct_ledger_invalidate_measurement(&first);
    EXPECT_EQ(held(0), 1320);
    ct_ledger_measurement_write(&device.account[0], 0, 2, 5000, line_of(0)->own_version + 1);
    EXPECT_EQ(held(0), 1320); /* of another process at this index */
    ct_ledger_measurement_write(&device.account[0], CT_PROCESSES, 1, 5000, 1); /* no such index */
    ct_ledger_measurement_write(&device.account[0], 0, 1, INT64_MIN, line_of(0)->own_version + 1);
    EXPECT_EQ(held(0), 1000);
}

static void exports_count_until_siblings_have_closed_them(void)
{
    begin();
    struct ct_ledger exporter = ledger_of(0), importer = ledger_of(1);
    EXPECT_EQ(reserve(&exporter, CT_LEDGER_ALLOCATED, 100, 0), CT_LEDGER_OK);
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 42, 100));
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 42, 100)); /* the same again */
    EXPECT(!ct_ledger_is_imported(&exporter, 42));
    EXPECT_EQ(ct_ledger_exported_bytes(&importer, 42), 100);
    EXPECT(ct_ledger_share_add(&importer, CT_LEDGER_IMPORT, 42, 100));
    EXPECT(ct_ledger_is_imported(&exporter, 42) && ct_ledger_is_imported(&importer, 42));
    EXPECT_EQ(held(0), 100);
    ct_ledger_share_drop(&exporter, CT_LEDGER_EXPORT, 42); /* freed: it stays on the device */
    EXPECT_EQ(line_of(0)->allocated_bytes, 0);
    EXPECT_EQ(held(0), 100);
    EXPECT_EQ(ct_ledger_exported_bytes(&importer, 42), 100);
    EXPECT_EQ(reserve(&importer, CT_LEDGER_ALLOCATED, 1, 100), CT_LEDGER_OVER);
    ct_ledger_share_drop(&importer, CT_LEDGER_IMPORT, 42);
    ct_ledger_share_drop(&importer, CT_LEDGER_IMPORT, 42); /* dropping twice has no effect */
    EXPECT_EQ(held(0), 0);
    EXPECT_EQ(ct_ledger_exported_bytes(&importer, 43), 0);
    EXPECT(!ct_ledger_share_add(&importer, CT_LEDGER_IMPORT, 0, 1)); /* not a key */
}

/* Another tenant can state that it has any memory open. That keeps neither the memory counted nor the entry in use. */
static void statements_of_other_tenants_do_not_count(void)
{
    begin();
    struct ct_ledger exporter = ledger_of(0), stranger = ledger_of(2);
    for (uint64_t key = 1; key <= CT_LEDGER_SHARES; key++)
        EXPECT(ct_ledger_share_add(&stranger, CT_LEDGER_IMPORT, key, 1));
    EXPECT(!ct_ledger_share_add(&stranger, CT_LEDGER_IMPORT, 999, 1)); /* no entry is free */
    EXPECT_EQ(reserve(&exporter, CT_LEDGER_ALLOCATED, 100, 0), CT_LEDGER_OK);
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 42, 100));
    ct_ledger_share_drop(&exporter, CT_LEDGER_EXPORT, 42);
    EXPECT_EQ(device.pages.process[0].ledger.share[0].role, CT_LEDGER_ORPHANED); /* for the node */
    EXPECT_EQ(held(0), 0);
    EXPECT_EQ(held(1), 0);
    for (uint64_t key = 1; key <= 3 * CT_LEDGER_SHARES; key++) {
        EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, key, 1));
        ct_ledger_share_drop(&exporter, CT_LEDGER_EXPORT, key);
    }
    EXPECT_EQ(held(0), 0);
}

int main(void)
{
    quota_covers_all_processes_and_kinds();
    refusal_during_other_calls_is_reported_as_contended();
    process_without_an_entry_gets_nothing();
    memory_of_an_ended_process_counts_until_the_node_drops_it();
    ledger_that_is_opened_again_keeps_its_line();
    measured_excess_is_counted();
    exports_count_until_siblings_have_closed_them();
    statements_of_other_tenants_do_not_count();
    return 0;
}

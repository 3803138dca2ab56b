/* What a tenant holds is the sum of its lines, after claims, releases, deaths, exports and corruption. */
#include "ledger/ledger.h"
#include "tests/expect.h"

#include <stdbool.h>
#include <string.h>

enum { SLOTS = 3, MIB = 1 << 20 };

/* A whole file, as the functions require. */
static _Alignas(4096) unsigned char file[CT_LEDGER_HEADER_BYTES + SLOTS * CT_LEDGER_ACCOUNT_BYTES];

static struct ct_ledger_account *account_at(uint32_t slot)
{
    return (struct ct_ledger_account *)(file + ct_ledger_offset(slot));
}

static void make_file(void)
{
    memset(file, 0, sizeof file);
    EXPECT_EQ(ct_ledger_init(file, sizeof file, SLOTS), 0);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        ct_ledger_grant(account_at(slot), 7 + slot);
}

static struct ct_ledger open_ledger(uint32_t slot, uint64_t pid)
{
    struct ct_ledger ledger;
    EXPECT_EQ(ct_ledger_open(&ledger, file, sizeof file, account_at(slot), slot, 7 + slot,
                             ct_ledger_identity(pid, 5, 9)), 0);
    return ledger;
}

static uint64_t held(uint32_t slot)
{
    return ct_ledger_held((const void *)file, sizeof file, account_at(slot));
}

static int reserve(struct ct_ledger *ledger, enum ct_ledger_kind kind, uint64_t bytes, uint64_t quota)
{
    ct_ledger_begin(ledger);
    int result = ct_ledger_reserve(ledger, kind, bytes, quota);
    ct_ledger_end(ledger);
    return result;
}

static void quota_covers_all_lines_and_kinds(void)
{
    make_file();
    struct ct_ledger first = open_ledger(0, 1), second = open_ledger(0, 2), other_tenant = open_ledger(1, 3);
    EXPECT(first.line != second.line);
    EXPECT_EQ(reserve(&other_tenant, CT_LEDGER_ALLOCATED, 50 * MIB, 50 * MIB), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&first, CT_LEDGER_ALLOCATED, 4 * MIB, 10 * MIB), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&second, CT_LEDGER_MANAGED, 3 * MIB, 10 * MIB), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 3 * MIB, 10 * MIB), CT_LEDGER_OK); /* exactly the quota */
    EXPECT_EQ(held(0), 10 * MIB);
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
    EXPECT_EQ(second.line->denied, 2);
    EXPECT_EQ(second.line->denied_bytes, 11);
    second = open_ledger(0, 2); /* the same process after exec: the refusal still counts */
    EXPECT_EQ(second.line->denied, 2);
    second.line->fault = 719;
    ct_ledger_clear(file, sizeof file, 0, 1, second.line->owner);
    EXPECT_EQ(second.line->fault, 0); /* otherwise the next owner would appear to have it */
    EXPECT_EQ(account_at(0)->denied, 2);
    EXPECT_EQ(account_at(0)->denied_bytes, 11);
    EXPECT_EQ(second.line->denied, 0);
    EXPECT_EQ(held(1), 50 * MIB);
}

static void refusal_during_other_calls_is_reported_as_contended(void)
{
    make_file();
    struct ct_ledger first = open_ledger(0, 1), second = open_ledger(0, 2);
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
    ct_ledger_end(&first); /* a call that began before there was a line does not end another one */
    EXPECT_EQ(first.line->begun, first.line->ended);
    EXPECT_EQ(reserve(&second, CT_LEDGER_ALLOCATED, 3, 10), CT_LEDGER_OVER);
    EXPECT_EQ(held(0), 8);
}

static void process_after_exec_keeps_its_line_with_cleared_amounts(void)
{
    make_file();
    struct ct_ledger before = open_ledger(0, 1), observer = open_ledger(0, 2);
    EXPECT_EQ(reserve(&observer, CT_LEDGER_ALLOCATED, 1, 100), CT_LEDGER_OK);
    ct_ledger_begin(&before);
    EXPECT_EQ(ct_ledger_reserve(&before, CT_LEDGER_ALLOCATED, 60, 100), CT_LEDGER_OK); /* it never ends */
    EXPECT(ct_ledger_share_add(&before, CT_LEDGER_EXPORT, 77, 60));
    before.line->fault = 700;
    struct ct_ledger after = open_ledger(0, 1);
    EXPECT(after.line == before.line);
    EXPECT_EQ(after.line->fault, 0);
    EXPECT_EQ(held(0), 1);
    EXPECT_EQ(account_at(0)->share[0].place, 0);
    EXPECT_EQ(reserve(&observer, CT_LEDGER_ALLOCATED, 100, 100), CT_LEDGER_OVER); /* and no call is in progress */
}

static void process_without_a_line_gets_nothing_until_a_line_is_cleared(void)
{
    make_file();
    for (uint64_t pid = 1; pid <= CT_LEDGER_LINES; pid++) {
        struct ct_ledger ledger = open_ledger(0, pid);
        EXPECT_EQ(reserve(&ledger, CT_LEDGER_ALLOCATED, pid, 1 << 20), CT_LEDGER_OK);
    }
    struct ct_ledger late = open_ledger(0, 1000);
    EXPECT(!late.line);
    EXPECT_EQ(reserve(&late, CT_LEDGER_ALLOCATED, 1, 1 << 20), CT_LEDGER_NO_LINE);
    EXPECT(!ct_ledger_share_add(&late, CT_LEDGER_IMPORT, 3, 4));
    ct_ledger_share_drop(&late, CT_LEDGER_IMPORT, 3);
    ct_ledger_release(&late, CT_LEDGER_ALLOCATED, 1);
    ct_ledger_denied(&late, 1);
    EXPECT(!ct_ledger_claim(&late));
    EXPECT_EQ(held(0), 63 * 64 / 2);
    ct_ledger_clear(file, sizeof file, 0, 40, ct_ledger_identity(99, 5, 9)); /* not the owner */
    EXPECT_EQ(held(0), 63 * 64 / 2);
    ct_ledger_clear(file, sizeof file, 0, 40, ct_ledger_identity(41, 5, 9));
    EXPECT_EQ(held(0), 63 * 64 / 2 - 41);
    EXPECT(ct_ledger_claim(&late));
    EXPECT(late.line == &account_at(0)->line[40]);
    EXPECT_EQ(reserve(&late, CT_LEDGER_ALLOCATED, 1, 1 << 20), CT_LEDGER_OK);
}

static void new_generation_starts_empty_and_revokes_the_earlier_one(void)
{
    make_file();
    struct ct_ledger old = open_ledger(0, 1);
    EXPECT_EQ(reserve(&old, CT_LEDGER_ALLOCATED, 5, 0), CT_LEDGER_OK);
    ct_ledger_grant(account_at(0), 7); /* the same generation: a restarted node */
    EXPECT_EQ(held(0), 5);
    ct_ledger_grant(account_at(0), 8);
    EXPECT_EQ(held(0), 0);
    EXPECT_EQ(reserve(&old, CT_LEDGER_ALLOCATED, 5, 0), CT_LEDGER_REVOKED);
    struct ct_ledger new;
    EXPECT_EQ(ct_ledger_open(&new, file, sizeof file, account_at(0), 0, 7, 1), (uint64_t)-1);
    EXPECT_EQ(ct_ledger_open(&new, file, sizeof file, account_at(0), 0, 8, ct_ledger_identity(2, 5, 9)), 0);
    EXPECT_EQ(reserve(&new, CT_LEDGER_ALLOCATED, 9, 0), CT_LEDGER_OK);
    EXPECT(new.line == old.line); /* reassigned: frees of the earlier tenant do not affect it */
    ct_ledger_release(&old, CT_LEDGER_ALLOCATED, 5);
    ct_ledger_denied(&old, 5);
    EXPECT(!ct_ledger_claim(&old));
    EXPECT_EQ(held(0), 9);
    EXPECT_EQ(new.line->denied, 0);
}

static int measure(struct ct_ledger_line *line, uint64_t measured_bytes)
{
    return ct_ledger_measured(file, sizeof file, 0, (uint32_t)(line - account_at(0)->line), line->owner, line->begun,
                              line->ended, measured_bytes);
}

static void measured_excess_is_counted(void)
{
    make_file();
    struct ct_ledger first = open_ledger(0, 1);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 300, 0), CT_LEDGER_OK);
    EXPECT_EQ(reserve(&first, CT_LEDGER_ALLOCATED, 1000, 0), CT_LEDGER_OK);
    EXPECT_EQ(measure(first.line, 1500), 1);
    EXPECT_EQ(held(0), 1500);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 10, 0), CT_LEDGER_OK); /* another module, in addition to what is
                                                                     * measured */
    EXPECT_EQ(held(0), 1510);
    EXPECT_EQ(measure(first.line, 1200), 1); /* they use less than estimated */
    EXPECT_EQ(held(0), 1200);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 10, 0), CT_LEDGER_OK); /* a negative excess counts only while nothing has
                                                                   * changed */
    EXPECT_EQ(held(0), 1320);
    EXPECT_EQ(measure(first.line, 900), 1); /* allocated bytes are not reduced: the memory may be requested at any
                                           * instant */
    EXPECT_EQ(held(0), 1000);
    EXPECT_EQ(reserve(&first, CT_LEDGER_MANAGED, 5000, 0), CT_LEDGER_OK); /* on the device or not */
    EXPECT_EQ(measure(first.line, 1400), 1);
    EXPECT_EQ(held(0), 6000); /* what was measured without such memory stays */
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 0, 0), CT_LEDGER_OK); /* a change */
    EXPECT_EQ(measure(first.line, 1100), 1);
    EXPECT_EQ(held(0), 6000 + 100);
    EXPECT_EQ(reserve(&first, CT_LEDGER_OWN, 0, 0), CT_LEDGER_OK);
    EXPECT_EQ(measure(first.line, 1400), 1);
    EXPECT_EQ(held(0), 6000 + 320);
    EXPECT_EQ(measure(first.line, 7000), 1); /* all of it is on the device, and 1000 more */
    EXPECT_EQ(held(0), 7000);
    uint64_t begun = first.line->begun;
    /* a call in between */
    EXPECT_EQ(ct_ledger_measured(file, sizeof file, 0, 0, first.line->owner, begun - 1, begun - 1, 1), 0);
    ct_ledger_begin(&first);
    EXPECT_EQ(measure(first.line, 1), 0); /* in progress */
    ct_ledger_end(&first);
    /* another process */
    EXPECT_EQ(ct_ledger_measured(file, sizeof file, 0, 0, 99, first.line->begun, first.line->ended, 1), 0);
    EXPECT_EQ(held(0), 7000);
    EXPECT_EQ(ct_ledger_measured(file, sizeof file, 0, CT_LEDGER_LINES, 0, 0, 0, 1), 0); /* no such line */
    ct_ledger_clear(file, sizeof file, 0, 0, first.line->owner);
    EXPECT_EQ(held(0), 0);
    /* The device may attribute imported memory to the process: it must not be counted twice. */
    first = open_ledger(0, 1);
    struct ct_ledger exporter = open_ledger(1, 2);
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 42, 100));
    EXPECT(ct_ledger_share_add(&first, CT_LEDGER_IMPORT, 42, 0)); /* of unknown size */
    EXPECT_EQ(measure(first.line, 100), 1);
    EXPECT_EQ(held(0), 0);
    EXPECT_EQ(measure(first.line, 130), 1);
    EXPECT_EQ(held(0), 30);
}

static void exports_count_until_all_imports_are_closed(void)
{
    make_file();
    struct ct_ledger exporter = open_ledger(0, 1), importer = open_ledger(1, 2), other = open_ledger(2, 3);
    EXPECT_EQ(reserve(&exporter, CT_LEDGER_ALLOCATED, 100, 0), CT_LEDGER_OK);
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 42, 100));
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 42, 100)); /* the same again */
    EXPECT(!ct_ledger_is_imported((void *)file, sizeof file, 42));
    EXPECT(ct_ledger_share_add(&importer, CT_LEDGER_IMPORT, 42, 100));
    EXPECT(ct_ledger_share_add(&other, CT_LEDGER_IMPORT, 42, 100));
    EXPECT(ct_ledger_is_imported((void *)file, sizeof file, 42));
    EXPECT_EQ(held(0) + held(1) + held(2), 100);
    ct_ledger_share_drop(&exporter, CT_LEDGER_EXPORT, 42); /* freed: it stays on the device, and counts for its
                                                            * exporter */
    EXPECT_EQ(exporter.line->allocated_bytes, 0);
    EXPECT_EQ(held(0), 100);
    ct_ledger_sweep(file, sizeof file, 0);
    EXPECT_EQ(held(0), 100);
    ct_ledger_clear(file, sizeof file, 0, 0, exporter.line->owner);
    EXPECT_EQ(held(0), 100);
    ct_ledger_share_drop(&importer, CT_LEDGER_IMPORT, 42);
    EXPECT_EQ(held(0), 100);
    ct_ledger_clear(file, sizeof file, 2, 0, other.line->owner); /* the last importer dies */
    EXPECT_EQ(held(0), 0);
    EXPECT(account_at(0)->share[0].place != 0);
    ct_ledger_sweep(file, sizeof file, 0);
    EXPECT_EQ(account_at(0)->share[0].place, 0);
}

static void exports_of_a_dead_process_stay_counted(void)
{
    make_file();
    struct ct_ledger exporter = open_ledger(0, 1), importer = open_ledger(0, 2);
    EXPECT_EQ(reserve(&exporter, CT_LEDGER_ALLOCATED, 130, 0), CT_LEDGER_OK);
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 42, 100));
    EXPECT(ct_ledger_share_add(&exporter, CT_LEDGER_EXPORT, 43, 10)); /* not imported */
    EXPECT(ct_ledger_share_add(&importer, CT_LEDGER_IMPORT, 42, 100));
    ct_ledger_clear(file, sizeof file, 0, 0, exporter.line->owner);
    EXPECT_EQ(held(0), 100);
    EXPECT_EQ(reserve(&importer, CT_LEDGER_ALLOCATED, 1, 100), CT_LEDGER_OVER);
    ct_ledger_share_drop(&importer, CT_LEDGER_IMPORT, 42);
    EXPECT_EQ(held(0), 0);
    ct_ledger_share_drop(&importer, CT_LEDGER_IMPORT, 42); /* dropping twice has no effect */
    for (uint64_t key = 100; key < 100 + CT_LEDGER_SHARES - 1; key++) /* one entry belongs to the dead process until it
                                                                       * is swept */
        EXPECT(ct_ledger_share_add(&importer, CT_LEDGER_IMPORT, key, 1));
    EXPECT(!ct_ledger_share_add(&importer, CT_LEDGER_IMPORT, 9, 1));
    ct_ledger_sweep(file, sizeof file, 0);
    EXPECT(ct_ledger_share_add(&importer, CT_LEDGER_IMPORT, 9, 1));
}

static void invalid_ledgers_are_rejected(void)
{
    make_file();
    struct ct_ledger_header *header = (struct ct_ledger_header *)file;
    EXPECT_EQ(ct_ledger_check(file, sizeof file), 0);
    EXPECT(ct_ledger_check(file, sizeof file - 1) < 0);
    EXPECT(ct_ledger_check(file, CT_LEDGER_HEADER_BYTES - 1) < 0);
    header->slots = UINT64_MAX;
    EXPECT(ct_ledger_check(file, sizeof file) < 0);
    header->slots = SLOTS;
    header->version++;
    EXPECT(ct_ledger_check(file, sizeof file) < 0);
    header->version--;
    header->magic++;
    EXPECT(ct_ledger_check(file, sizeof file) < 0);
    EXPECT(ct_ledger_init(file, sizeof file, SLOTS + 1) < 0);
    EXPECT(ct_ledger_init(file, sizeof file, UINT64_MAX) < 0);
    make_file();
    account_at(1)->line[0].allocated_bytes = 3;
    EXPECT_EQ(ct_ledger_init(file, sizeof file, 1), 0); /* it is larger already, and keeps its contents */
    EXPECT_EQ(header->slots, SLOTS);
    EXPECT_EQ(account_at(1)->line[0].allocated_bytes, 3);
}

int main(void)
{
    quota_covers_all_lines_and_kinds();
    refusal_during_other_calls_is_reported_as_contended();
    process_after_exec_keeps_its_line_with_cleared_amounts();
    process_without_a_line_gets_nothing_until_a_line_is_cleared();
    new_generation_starts_empty_and_revokes_the_earlier_one();
    measured_excess_is_counted();
    exports_count_until_all_imports_are_closed();
    exports_of_a_dead_process_stay_counted();
    invalid_ledgers_are_rejected();
    return 0;
}

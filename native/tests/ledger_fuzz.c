/* Fuzz test: whatever the file contains, nothing outside of it is accessed, and every call returns. */
#include "ledger/ledger.h"
#include "tests/expect.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2, ROUNDS = 3000, BYTES = CT_LEDGER_HEADER_BYTES + SLOTS * CT_LEDGER_ACCOUNT_BYTES };

static uint64_t rng = 20;

static uint64_t random_word(void)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return rng >> 16;
}

static uint64_t random_edge_value(void)
{
    static const uint64_t edges[] = {0, 1, 63, 64, 255, 256, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_C(1) << 63};
    return random_word() % 2 ? edges[random_word() % (sizeof edges / sizeof edges[0])] : random_word();
}

static void corrupt_file(unsigned char *file)
{
    for (uint64_t words = random_word() % 40; words; words--) {
        uint64_t word = random_edge_value();
        /* The beginning of each account is hit as often as the rest. */
        uint64_t at = random_word() % 2 ? ct_ledger_offset((uint32_t)(random_word() % SLOTS)) + 8 * (random_word() % 40)
            : 8 * (random_word() % (BYTES / 8));
        memcpy(file + at, &word, sizeof word);
    }
}

static void call_all_functions(unsigned char *file, size_t bytes)
{
    uint32_t slot = (uint32_t)(random_word() % (SLOTS + 1));
    struct ct_ledger ledger;
    struct ct_ledger_account *account = (void *)(file + ct_ledger_offset(slot % SLOTS));
    ct_ledger_held((const void *)file, bytes, account);
    for (uint32_t line = 0; line < CT_LEDGER_LINES; line++)
        ct_ledger_measured(file, bytes, slot, line, account->line[line].owner, account->line[line].begun,
                           account->line[line].ended, random_edge_value());
    if (ct_ledger_open(&ledger, file, bytes, account, slot, account->generation, 1 + random_word() % 3) == 0) {
        for (int i = 0; i < 8; i++) {
            uint64_t quota = random_edge_value(), request_bytes = random_edge_value();
            corrupt_file(file);
            ct_ledger_begin(&ledger);
            int result = ct_ledger_reserve(&ledger, (enum ct_ledger_kind)(random_word() % 3), request_bytes, quota);
            EXPECT(result >= CT_LEDGER_OK && result <= CT_LEDGER_REVOKED);
            ct_ledger_share_add(&ledger, (enum ct_ledger_role)(1 + random_word() % 3), 1 + random_word() % 4,
                                random_edge_value());
            ct_ledger_share_drop(&ledger, (enum ct_ledger_role)(1 + random_word() % 3), 1 + random_word() % 4);
            ct_ledger_release(&ledger, (enum ct_ledger_kind)(random_word() % 3), random_edge_value());
            ct_ledger_end(&ledger);
        }
    }
    ct_ledger_clear(file, bytes, slot, (uint32_t)(random_word() % 70), account->line[0].owner);
    ct_ledger_sweep(file, bytes, slot);
    ct_ledger_is_imported((const void *)file, bytes, random_word() % 4);
}

int main(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        /* Of exactly its size, so that the sanitizer detects every access outside. */
        unsigned char *file = aligned_alloc(64, BYTES);
        EXPECT(file != NULL);
        memset(file, 0, BYTES);
        EXPECT_EQ(ct_ledger_init(file, BYTES, SLOTS), 0);
        ct_ledger_grant((void *)(file + ct_ledger_offset(0)), 1);
        for (int repetition = 0; repetition < 3; repetition++) {
            corrupt_file(file);
            if (ct_ledger_check(file, BYTES) == 0)
                call_all_functions(file, BYTES);
        }
        free(file);
    }
    return 0;
}

/* Fuzz test: whatever the pages contain, nothing outside of them is accessed, every call returns, and pages of other
 * tenants have no effect on what a tenant holds. */
#include "tests/ledger_pages.h"

enum { ROUNDS = 3000, PROCESSES = 4 };

static uint64_t rng = 20;
static const int tenant_of[PROCESSES] = {0, 0, 1, 2};

static uint64_t random_word(void)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return rng >> 16;
}

static uint64_t random_edge_value(void)
{
    static const uint64_t edges[] = {0, 1, 2, 3, 255, 256, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_C(1) << 63};
    return random_word() % 2 ? edges[random_word() % (sizeof edges / sizeof edges[0])] : random_word();
}

static void corrupt_page(struct ledger_device *device, uint32_t index)
{
    uint64_t *words = (uint64_t *)&device->pages.process[index].ledger;
    for (uint64_t count = random_word() % 40; count; count--)
        /* The beginning of the page is hit as often as the rest. */
        words[random_word() % 2 ? random_word() % 40 : random_word() % (sizeof(struct ct_ledger_page) / 8)] =
            random_edge_value();
    if (random_word() % 4)
        store_seq_cst(&device->pages.process[index].ledger.generation, index + 1);
}

static void call_all_functions(struct ledger_device *device, struct ct_ledger *ledger)
{
    const uint64_t quota = random_edge_value(), bytes = random_edge_value();
    ct_ledger_begin(ledger);
    int result = ct_ledger_reserve(ledger, (enum ct_ledger_kind)(random_word() % 3), bytes, quota);
    EXPECT(result >= CT_LEDGER_OK && result <= CT_LEDGER_REVOKED);
    ct_ledger_share_add(ledger, (enum ct_ledger_role)(1 + random_word() % 3), 1 + random_word() % 4,
                        random_edge_value());
    ct_ledger_share_drop(ledger, (enum ct_ledger_role)(1 + random_word() % 3), 1 + random_word() % 4);
    ct_ledger_share_resize(ledger, 1 + random_word() % 4, random_edge_value());
    ct_ledger_release(ledger, (enum ct_ledger_kind)(random_word() % 3), random_edge_value());
    ct_ledger_end(ledger);
    ct_ledger_is_imported(ledger, random_word() % 4);
    ct_ledger_exported_bytes(ledger, random_word() % 4);
    ct_ledger_measurement_write(&device->account[0], (uint32_t)random_word() % (CT_PROCESSES + 1),
                                (uint32_t)random_word() % 3, (int64_t)random_edge_value(), random_word() % 4);
}

int main(void)
{
    /* Of exactly its size, so that the sanitizer detects every access outside. */
    struct ledger_device *device = aligned_alloc(4096, sizeof *device);
    EXPECT(device != NULL);
    memset(device, 0, sizeof *device);
    for (int round = 0; round < ROUNDS; round++) {
        make_device(device, tenant_of, PROCESSES);
        struct ct_ledger ledger = open_ledger(device, 0, 0);
        for (int i = 0; i < 8; i++) {
            corrupt_page(device, (uint32_t)(random_word() % PROCESSES));
            call_all_functions(device, &ledger);
            const uint64_t held = ct_ledger_held(&ledger);
            corrupt_page(device, 2 + (uint32_t)(random_word() % 2));
            EXPECT_EQ(ct_ledger_held(&ledger), held);
        }
    }
    free(device);
    return 0;
}

/* Do the times of a kernel become the numbers to plan with that the golden table says? Python reads the same table. */
#include "../hook/known.c"

#include "expect.h"

static void becomes(uint64_t mean_ns, uint64_t p90_ns, uint64_t p99_ns, uint32_t blocks, uint32_t blocks_per_sm, uint32_t sms,
                    uint64_t expect_ns, uint64_t sure_ns, uint64_t grain_ns)
{
    static struct ct_known_file file;
    struct ct_record_kernel kernel = {.name = "one", .grid = {blocks, 1, 1}, .block = {32, 1, 1}};
    struct ct_known known = {0};
    kernel.work = CT_WORK_KERNEL;
    kernel.blocks_per_sm = blocks_per_sm;
    file.count = 1;
    file.entries[0] = (struct ct_known_entry){key_of("device", &kernel), mean_ns, p90_ns, p99_ns};
    ct_known_find(&file, "device", &kernel, &known);
    ct_known_spread(&known, &kernel, &(struct ct_sms){sms, sms, sms});
    EXPECT(known.is_known && known.may_fill);
    EXPECT_EQ(known.expect_ns, expect_ns);
    EXPECT_EQ(known.sure_ns, sure_ns);
    EXPECT_EQ(ct_known_grain(&known), grain_ns);
    EXPECT_EQ(known.pieces, 1);
}

static void a_graph_gives_way_kernel_by_kernel(void)
{
    struct ct_record_kernel graph = {.name = "graph of 50"};
    struct ct_known known = {.expect_ns = 65536000};
    graph.work = CT_WORK_GRAPH;
    ct_known_spread(&known, &graph, &(struct ct_sms){80, 80, 80});
    EXPECT_EQ(known.pieces, 50);
    EXPECT_EQ(ct_known_grain(&known), 1310000); /* the fiftieth part, but for what 2^-16 cannot say */
    ct_known_spread(&known, &graph, &(struct ct_sms){80, 80, 0});
    EXPECT_EQ(known.pieces, 50);
    EXPECT_EQ(ct_known_grain(&known), 0); /* nothing gives way */
}

static uint32_t free_beside(enum ct_work work, uint32_t blocks, uint32_t blocks_per_sm, struct ct_sms device)
{
    struct ct_record_kernel kernel = {.name = "one", .grid = {blocks, 1, 1}, .block = {32, 1, 1}, .blocks_per_sm = blocks_per_sm};
    struct ct_known known = {0};
    kernel.work = work;
    ct_known_spread(&known, &kernel, &device);
    return known.free_ppm;
}

static void few_blocks_leave_sms_free(void)
{
    const struct ct_sms whole = {80, 80, 0}, part = {24, 80, 0}, unknown = {0};
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 40, 16, whole), 500000);
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 80, 16, whole), 0);
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 120, 1, whole), 250000); /* a whole wave, then a half */
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 160, 1, whole), 0);
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 240, 1, part), 700000); /* of an MPS client that was given 30 % */
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 12, 1, part), 850000);
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 40, 0, whole), 0); /* nobody knows how many fit */
    EXPECT_EQ(free_beside(CT_WORK_KERNEL, 40, 16, unknown), 0);
    EXPECT_EQ(free_beside(CT_WORK_GRAPH, 1, 0, whole), 0);
    EXPECT_EQ(free_beside(CT_WORK_GRAPH, 1, 0, part), 700000);
    EXPECT_EQ(free_beside(CT_WORK_COPY, 1, 0, whole), 1000000);
    EXPECT_EQ(free_beside(CT_WORK_MEMSET, 1, 0, unknown), 1000000);
    EXPECT_EQ(ct_known_free(UINT64_MAX - 7, 16, &whole), 0); /* of any number of blocks */
    EXPECT_EQ(ct_known_free(UINT64_MAX - 7, 1, &part), 700000);
}

static uint64_t beside_shows(uint64_t expect_ns, const uint64_t *lengths_ns, int count)
{
    struct ct_known known = {.expect_ns = expect_ns, .is_known = 1};
    uint64_t shown_ns = 0;
    for (int i = 0; i < count; i++)
        shown_ns = ct_known_beside(&known, lengths_ns[i], 0);
    return shown_ns;
}

static void time_slices_of_a_neighbour_are_told_from_a_wrong_profile(void)
{
    const uint64_t slow[] = {200, 2200, 201, 200, 4200, 202, 2201}, fast[] = {50, 51, 50, 2050, 50, 2051, 52};
    const uint64_t right[] = {100, 2100, 99, 101, 2100, 102, 2100}, sliced[] = {2100, 2100, 100, 2100, 101, 4100, 2100};
    EXPECT_EQ(beside_shows(100, slow, 7), 200);
    EXPECT_EQ(beside_shows(100, fast, 7), 52);
    EXPECT_EQ(beside_shows(100, right, 7), 0);
    EXPECT_EQ(beside_shows(101, sliced, 7), 0); /* most have a slice in them: what was expected counts */
    EXPECT_EQ(beside_shows(100, slow, 6), 0); /* too few */
    const uint64_t longest[] = {1200000, 1200000, 1200000, 1200000, 1200000, 1200000, 1200000};
    EXPECT_EQ(beside_shows(600000, longest, 7), 0); /* nearly every one may have a slice in it */
}

/* Nothing of ours was before them: each waits for our turn, and events around it show that as well. */
static void a_wait_for_the_turn_is_not_taken_for_use(void)
{
    struct ct_known known = {.expect_ns = 500000, .is_known = 1};
    for (uint64_t i = 0; i < 20; i++)
        EXPECT_EQ(ct_known_beside(&known, 600000 + i % 7 * 200000, 1), 0);
    for (int i = 0; i < CT_KNOWN_BESIDE - 1; i++)
        ct_known_beside(&known, 300000, 1);
    EXPECT_EQ(ct_known_beside(&known, 2300000, 1), 300000); /* but that they take less is shown by them, too */
    for (int i = 0; i < CT_KNOWN_BESIDE - 1; i++)
        ct_known_beside(&known, 700000, 0);
    EXPECT_EQ(ct_known_beside(&known, 2700000, 0), 700000); /* and that they take more by those that follow work of ours */
}

/* One in two is short and one in two is long, under one name: that most of a few are short shows nothing. */
static void launches_that_differ_are_not_taken_for_a_wrong_profile(void)
{
    struct ct_known known = {.expect_ns = 950, .sure_ns = 1500, .is_known = 1, .varies = 1};
    const uint64_t lengths_ns[] = {400, 400, 1500, 400, 400, 400, 1500, 1500, 1500, 1500, 1500, 1500, 1500, 1500};
    for (int i = 0; i < 14; i++)
        EXPECT_EQ(ct_known_beside(&known, lengths_ns[i], 0), 0);
    for (int i = 0; i < CT_KNOWN_BESIDE - 1; i++)
        ct_known_beside(&known, 3000, 0);
    EXPECT_EQ(ct_known_beside(&known, 2900, 0), 2900); /* longer than it hardly ever was */
}

static void a_profile_tells_whether_launches_differ(void)
{
    const uint64_t times_ns[][3] = {{1000, 1010, 1100}, {950, 1500, 1500}, {1900, 1000, 15000}, {1000, 1000, 9000}};
    const uint32_t varies[] = {0, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        struct ct_known known = {0};
        set(&known, times_ns[i][0], times_ns[i][1], times_ns[i][2]);
        EXPECT_EQ(known.varies, varies[i]);
    }
}

/* A program that launches short and long in turns: both are measured about as often, and each stands for about as many. */
static void measured_ones_do_not_keep_step_with_the_program(void)
{
    for (uint64_t every = 2; every <= 7; every++) {
        struct ct_known known = {.expect_ns = 950000, .sure_ns = 950000, .is_known = 1};
        uint64_t dice = 1, stood_for[7] = {0}, all = 0;
        for (uint64_t i = 0; i < 40000; i++) {
            const int must_check = ct_known_must_check(&known);
            ct_known_charge(&known, 500000);
            if (!must_check)
                continue;
            stood_for[i % every] += known.charges;
            all += known.charges;
            dice = dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ct_known_checked(&known, dice >> 33);
        }
        for (uint64_t i = 0; i < every; i++)
            EXPECT(stood_for[i] * every > all * 9 / 10 && stood_for[i] * every < all * 11 / 10);
    }
}

/* So one of those is waited for, and not for ever. */
static void one_that_tells_more_is_waited_for(void)
{
    struct ct_known known = {.expect_ns = 500000, .is_known = 1}, brief = {.expect_ns = 1000, .is_known = 1}, unknown = {0};
    int charges = 0;
    for (; !ct_known_must_check(&known); charges++)
        ct_known_charge(&known, 500000);
    EXPECT_EQ(charges, 3);
    for (; ct_known_can_wait(&known); charges++)
        ct_known_charge(&known, 500000);
    EXPECT_EQ(charges, 16);
    for (charges = 0; ct_known_can_wait(&brief); charges++)
        ct_known_charge(&brief, 500000);
    EXPECT_EQ(charges, 64);
    EXPECT(!ct_known_can_wait(&unknown)); /* what nobody knows is always measured */
}

static void what_nobody_knows_is_learned_beside_a_neighbour_if_it_is_short(void)
{
    struct ct_known known = {0}, longer = {0};
    for (int i = 0; i < CT_KNOWN_BESIDE; i++) {
        EXPECT(!known.is_known);
        ct_known_guess(&known, i % 3 ? 2050000 : 50000 + (uint64_t)i);
        ct_known_guess(&longer, 3000000);
    }
    EXPECT(known.is_known && !longer.is_known);
    EXPECT_EQ(known.expect_ns, 50003);
}

static void one_is_measured_for_all_of_its_kind(void)
{
    struct ct_known known = {.expect_ns = 50000, .is_known = 1, .free_ppm = 500000};
    for (int i = 0; i < 15; i++) {
        EXPECT(!ct_known_must_check(&known));
        ct_known_charge(&known, 500000);
    }
    EXPECT(ct_known_must_check(&known));
    EXPECT_EQ(known.charged_ns, 15 * 25000);
    struct ct_known longer = {.expect_ns = 2000000, .is_known = 1}, unknown = {0}, copy = {.free_ppm = 1000000};
    EXPECT(ct_known_must_check(&longer)); /* every one of them */
    EXPECT(ct_known_must_check(&unknown));
    EXPECT(!ct_known_must_check(&copy));
    ct_known_charge(&unknown, 500000);
    EXPECT_EQ(unknown.charged_ns, 500000);
}

int main(void)
{
#define GOLDEN(...) becomes(__VA_ARGS__);
#include "known_golden.def"
    a_graph_gives_way_kernel_by_kernel();
    few_blocks_leave_sms_free();
    time_slices_of_a_neighbour_are_told_from_a_wrong_profile();
    a_wait_for_the_turn_is_not_taken_for_use();
    launches_that_differ_are_not_taken_for_a_wrong_profile();
    a_profile_tells_whether_launches_differ();
    measured_ones_do_not_keep_step_with_the_program();
    one_that_tells_more_is_waited_for();
    what_nobody_knows_is_learned_beside_a_neighbour_if_it_is_short();
    one_is_measured_for_all_of_its_kind();
    return 0;
}

/* Parts of a launch: they add up to the grid, consist of whole waves, and none is longer than the bound unless it is one
 * wave. */
#include "gate/slice.h"
#include "tests/expect.h"

static const uint64_t US = 1000;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Launches a kernel in parts and checks each. */
static void launch_all(uint64_t length_ns, uint64_t blocks, uint64_t bound_ns, uint64_t wave)
{
    const uint64_t all = blocks, wave_ns = ct_slice_time(length_ns, blocks, wave, wave);
    uint64_t launched = 0;
    while (blocks) {
        const uint64_t rest_ns = ct_slice_time(length_ns, all, blocks, wave);
        const uint64_t part = ct_slice_blocks((int64_t)rest_ns, blocks, (int64_t)bound_ns, wave);
        const uint64_t part_ns = ct_slice_time(rest_ns, blocks, part ? part : blocks, wave);
        EXPECT(part < blocks);
        EXPECT(!part || part % wave == 0);
        EXPECT(part_ns <= bound_ns || (part ? part : blocks) <= wave);
        /* As many waves as fit, up to rounding: one more would exceed the bound. */
        EXPECT(!part || part_ns + wave_ns + 2 >= bound_ns);
        launched += part ? part : blocks;
        blocks -= part ? part : blocks;
    }
    EXPECT_EQ(launched, all);
}

static void parts_add_up_and_stay_within_the_bound(void)
{
    uint64_t state = 88172645463325252u;
    for (uint64_t i = 0; i < rounds_of(20000, 2000000); i++) {
        const uint64_t wave = 1 + next_random(&state) % 2000, blocks = 1 + next_random(&state) % (wave * 64);
        launch_all(1 + next_random(&state) % (20000 * US), blocks, 20 * US + next_random(&state) % (500 * US), wave);
    }
}

static void short_kernels_and_single_waves_run_whole(void)
{
    EXPECT_EQ(ct_slice_blocks(100000, 800, 100000, 80), 0); /* as long as the bound */
    EXPECT_EQ(ct_slice_blocks(100001, 800, 100000, 80), 9 * 80);
    EXPECT_EQ(ct_slice_blocks(5000000, 80, 100000, 80), 0); /* one wave ends no sooner in parts */
    EXPECT_EQ(ct_slice_blocks(5000000, 800, 0, 80), 0);     /* no bound applies */
    EXPECT_EQ(ct_slice_blocks(5000000, 800, -1, 80), 0);
    EXPECT_EQ(ct_slice_blocks(5000000, 1, 100000, 0), 0);
    EXPECT_EQ(ct_slice_blocks(5000000, 0, 100000, 80), 0);
}

static void unknown_kernels_begin_with_one_wave(void)
{
    EXPECT_EQ(ct_slice_blocks(0, 100000, 100000, 80), 80);
    EXPECT_EQ(ct_slice_blocks(-5, 100000, 100000, 0), 1);
    EXPECT_EQ(ct_slice_time(0, 100, 10, 10), 0);
}

static void times_follow_waves(void)
{
    EXPECT_EQ(ct_slice_time(1000, 100, 10, 10), 100);
    EXPECT_EQ(ct_slice_time(1000, 100, 1, 10), 100);  /* a part of a wave takes as long as a wave */
    EXPECT_EQ(ct_slice_time(100, 10, 95, 10), 1000);  /* and the reverse */
    EXPECT_EQ(ct_slice_time(1000, 84, 80, 80), 500);
    EXPECT_EQ(ct_slice_time(1000, 0, 0, 0), 0);
}

static void extreme_values_do_not_overflow(void)
{
    const uint64_t huge = UINT64_MAX;
    EXPECT(ct_slice_blocks(INT64_MAX, huge, 1, 1) == 1);
    EXPECT(ct_slice_blocks(INT64_MAX, huge, INT64_MAX - 1, huge / 2) <= huge);
    EXPECT(ct_slice_time(huge, huge, 1, 1) == 1);
    EXPECT(ct_slice_time(huge, 1, huge, 1) == huge);
    EXPECT(ct_slice_time(huge, 1, 1, 1) == huge);
}

int main(void)
{
    parts_add_up_and_stay_within_the_bound();
    short_kernels_and_single_waves_run_whole();
    unknown_kernels_begin_with_one_wave();
    times_follow_waves();
    extreme_values_do_not_overflow();
    return 0;
}

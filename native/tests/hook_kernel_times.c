/* The times of a kernel are converted to the planning values of the golden table, which a Python test reads as well. */
#include "../hook/timing/kernel_times.c"

#include "expect.h"

static void check_planning_values(uint64_t mean_ns, uint64_t p90_ns, uint64_t p99_ns, uint32_t blocks,
                                  uint32_t blocks_per_sm,
                                  uint32_t sms,
                                  uint64_t expect_ns, uint64_t upper_ns, uint64_t granularity_ns)
{
    static struct ct_kernel_time_file file;
    struct ct_record_kernel kernel = {.name = "one", .grid = {blocks, 1, 1}, .block = {32, 1, 1}};
    struct ct_kernel_time time = {0};
    kernel.work = CT_WORK_KERNEL;
    kernel.blocks_per_sm = blocks_per_sm;
    file.count = 1;
    file.entries[0] = (struct ct_kernel_time_entry){key_of("device", &kernel), mean_ns, p90_ns, p99_ns};
    ct_kernel_time_find(&file, "device", &kernel, &time);
    ct_kernel_time_set_layout(&time, &kernel, &(struct ct_sms){sms, sms, sms});
    EXPECT(time.is_known && time.may_fill);
    EXPECT_EQ(time.expect_ns, expect_ns);
    EXPECT_EQ(time.upper_ns, upper_ns);
    EXPECT_EQ(ct_kernel_time_granularity(&time), granularity_ns);
    EXPECT_EQ(time.kernel_count, 1);
}

static void graph_is_preemptible_between_its_kernels(void)
{
    struct ct_record_kernel graph = {.name = "graph of 50"};
    struct ct_kernel_time time = {.expect_ns = 65536000};
    graph.work = CT_WORK_GRAPH;
    ct_kernel_time_set_layout(&time, &graph, &(struct ct_sms){80, 80, 80});
    EXPECT_EQ(time.kernel_count, 50);
    EXPECT_EQ(ct_kernel_time_granularity(&time), 1310000); /* one fiftieth, within the precision of 2^-16 */
    ct_kernel_time_set_layout(&time, &graph, &(struct ct_sms){80, 80, 0});
    EXPECT_EQ(time.kernel_count, 50);
    EXPECT_EQ(ct_kernel_time_granularity(&time), 0); /* not preemptible */
}

static uint32_t free_ppm_of(enum ct_work work, uint32_t blocks, uint32_t blocks_per_sm, struct ct_sms device)
{
    struct ct_record_kernel kernel = {.name = "one", .grid = {blocks, 1, 1}, .block = {32, 1, 1},
                                      .blocks_per_sm = blocks_per_sm};
    struct ct_kernel_time time = {0};
    kernel.work = work;
    ct_kernel_time_set_layout(&time, &kernel, &device);
    return time.free_ppm;
}

static void small_grids_leave_sms_free(void)
{
    const struct ct_sms whole = {80, 80, 0}, part = {24, 80, 0}, unknown = {0};
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 40, 16, whole), 500000);
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 80, 16, whole), 0);
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 120, 1, whole), 250000); /* one and a half waves */
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 160, 1, whole), 0);
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 240, 1, part), 700000); /* of an MPS client limited to 30 % */
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 12, 1, part), 850000);
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 40, 0, whole), 0); /* unknown occupancy */
    EXPECT_EQ(free_ppm_of(CT_WORK_KERNEL, 40, 16, unknown), 0);
    EXPECT_EQ(free_ppm_of(CT_WORK_GRAPH, 1, 0, whole), 0);
    EXPECT_EQ(free_ppm_of(CT_WORK_GRAPH, 1, 0, part), 700000);
    EXPECT_EQ(free_ppm_of(CT_WORK_COPY, 1, 0, whole), 1000000);
    EXPECT_EQ(free_ppm_of(CT_WORK_MEMSET, 1, 0, unknown), 1000000);
    EXPECT_EQ(ct_kernel_free_ppm(UINT64_MAX - 7, 16, &whole), 0); /* of any number of blocks */
    EXPECT_EQ(ct_kernel_free_ppm(UINT64_MAX - 7, 1, &part), 700000);
}

static uint64_t corun_result(uint64_t expect_ns, const uint64_t *lengths_ns, int count)
{
    struct ct_kernel_time time = {.expect_ns = expect_ns, .is_known = 1};
    uint64_t corrected_ns = 0;
    for (int i = 0; i < count; i++)
        corrected_ns = ct_kernel_time_corun(&time, lengths_ns[i], 0);
    return corrected_ns;
}

static void time_slices_do_not_contradict_the_profile(void)
{
    const uint64_t slow[] = {200, 2200, 201, 200, 4200, 202, 2201}, fast[] = {50, 51, 50, 2050, 50, 2051, 52};
    const uint64_t right[] = {100, 2100, 99, 101, 2100, 102, 2100}, sliced[] = {2100, 2100, 100, 2100, 101, 4100, 2100};
    EXPECT_EQ(corun_result(100, slow, 7), 200);
    EXPECT_EQ(corun_result(100, fast, 7), 52);
    EXPECT_EQ(corun_result(100, right, 7), 0);
    EXPECT_EQ(corun_result(101, sliced, 7), 0); /* most contain a time slice: the expected time is kept */
    EXPECT_EQ(corun_result(100, slow, 6), 0); /* too few */
    const uint64_t longest[] = {1200000, 1200000, 1200000, 1200000, 1200000, 1200000, 1200000};
    EXPECT_EQ(corun_result(600000, longest, 7), 0); /* nearly every one may contain a time slice */
}

/* If no work of ours precedes them, measurements include the wait for our time slice. */
static void wait_for_a_time_slice_is_not_counted(void)
{
    struct ct_kernel_time time = {.expect_ns = 500000, .is_known = 1};
    for (uint64_t i = 0; i < 20; i++)
        EXPECT_EQ(ct_kernel_time_corun(&time, 600000 + i % 7 * 200000, 1), 0);
    for (int i = 0; i < CT_KERNEL_TIME_CORUNS - 1; i++)
        ct_kernel_time_corun(&time, 300000, 1);
    EXPECT_EQ(ct_kernel_time_corun(&time, 2300000, 1), 300000); /* but they can show that the kernel takes less */
    for (int i = 0; i < CT_KERNEL_TIME_CORUNS - 1; i++)
        ct_kernel_time_corun(&time, 700000, 0);
    EXPECT_EQ(ct_kernel_time_corun(&time, 2700000, 0), 700000); /* and measurements after our own work show that it
                                                                  * takes more */
}

/* Alternately short and long launches under one name: a majority of short ones among a few shows nothing. */
static void varying_launches_do_not_contradict_the_profile(void)
{
    struct ct_kernel_time time = {.expect_ns = 950, .upper_ns = 1500, .is_known = 1, .varies = 1};
    const uint64_t lengths_ns[] = {400, 400, 1500, 400, 400, 400, 1500, 1500, 1500, 1500, 1500, 1500, 1500, 1500};
    for (int i = 0; i < 14; i++)
        EXPECT_EQ(ct_kernel_time_corun(&time, lengths_ns[i], 0), 0);
    for (int i = 0; i < CT_KERNEL_TIME_CORUNS - 1; i++)
        ct_kernel_time_corun(&time, 3000, 0);
    EXPECT_EQ(ct_kernel_time_corun(&time, 2900, 0), 2900); /* longer than its upper estimate */
}

static void profile_shows_variation(void)
{
    const uint64_t times_ns[][3] = {{1000, 1010, 1100}, {950, 1500, 1500}, {1900, 1000, 15000}, {1000, 1000, 9000}};
    const uint32_t varies[] = {0, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        struct ct_kernel_time time = {0};
        set_time(&time, times_ns[i][0], times_ns[i][1], times_ns[i][2]);
        EXPECT_EQ(time.varies, varies[i]);
    }
}

/* In a program that launches short and long ones alternately, both are measured about equally often, and represent
 * about equally many. */
static void measurements_are_not_periodic(void)
{
    for (uint64_t every = 2; every <= 7; every++) {
        struct ct_kernel_time time = {.expect_ns = 950000, .upper_ns = 950000, .is_known = 1};
        uint64_t rng = 1, represented[7] = {0}, total = 0;
        for (uint64_t i = 0; i < 40000; i++) {
            const int must_check = ct_kernel_time_must_check(&time);
            ct_kernel_time_charge(&time, 500000);
            if (!must_check)
                continue;
            represented[i % every] += time.charges;
            total += time.charges;
            rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ct_kernel_time_checked(&time, rng >> 33);
        }
        for (uint64_t i = 0; i < every; i++)
            EXPECT(represented[i] * every > total * 9 / 10 && represented[i] * every < total * 11 / 10);
    }
}

/* A measurement is postponed until a more informative launch, but not forever. */
static void measurement_is_postponed_for_a_bounded_time(void)
{
    struct ct_kernel_time time = {.expect_ns = 500000, .is_known = 1}, short_kernel = {.expect_ns = 1000, .is_known =
        1},
        unknown = {0};
    int charges = 0;
    for (; !ct_kernel_time_must_check(&time); charges++)
        ct_kernel_time_charge(&time, 500000);
    EXPECT_EQ(charges, 3);
    for (; ct_kernel_time_can_wait(&time); charges++)
        ct_kernel_time_charge(&time, 500000);
    EXPECT_EQ(charges, 16);
    for (charges = 0; ct_kernel_time_can_wait(&short_kernel); charges++)
        ct_kernel_time_charge(&short_kernel, 500000);
    EXPECT_EQ(charges, 64);
    EXPECT(!ct_kernel_time_can_wait(&unknown)); /* an unknown kernel is always measured */
}

static void short_unknown_kernels_are_learned_next_to_neighbours(void)
{
    struct ct_kernel_time time = {0}, longer = {0};
    for (int i = 0; i < CT_KERNEL_TIME_CORUNS; i++) {
        EXPECT(!time.is_known);
        ct_kernel_time_learn_corun(&time, i % 3 ? 2050000 : 50000 + (uint64_t)i);
        ct_kernel_time_learn_corun(&longer, 3000000);
    }
    EXPECT(time.is_known && !longer.is_known);
    EXPECT_EQ(time.expect_ns, 50003);
}

static void one_measurement_represents_several_launches(void)
{
    struct ct_kernel_time time = {.expect_ns = 50000, .is_known = 1, .free_ppm = 500000};
    for (int i = 0; i < 15; i++) {
        EXPECT(!ct_kernel_time_must_check(&time));
        ct_kernel_time_charge(&time, 500000);
    }
    EXPECT(ct_kernel_time_must_check(&time));
    EXPECT_EQ(time.charged_ns, 15 * 25000);
    struct ct_kernel_time longer = {.expect_ns = 2000000, .is_known = 1}, unknown = {0}, copy = {.free_ppm = 1000000};
    EXPECT(ct_kernel_time_must_check(&longer)); /* every one of them */
    EXPECT(ct_kernel_time_must_check(&unknown));
    EXPECT(!ct_kernel_time_must_check(&copy));
    ct_kernel_time_charge(&unknown, 500000);
    EXPECT_EQ(unknown.charged_ns, 500000);
}

int main(void)
{
#define GOLDEN(...) check_planning_values(__VA_ARGS__);
#include "kernel_times_golden.def"
    graph_is_preemptible_between_its_kernels();
    small_grids_leave_sms_free();
    time_slices_do_not_contradict_the_profile();
    wait_for_a_time_slice_is_not_counted();
    varying_launches_do_not_contradict_the_profile();
    profile_shows_variation();
    measurements_are_not_periodic();
    measurement_is_postponed_for_a_bounded_time();
    short_unknown_kernels_are_learned_next_to_neighbours();
    one_measurement_represents_several_launches();
    return 0;
}

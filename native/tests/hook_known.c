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

int main(void)
{
#define GOLDEN(...) becomes(__VA_ARGS__);
#include "known_golden.def"
    a_graph_gives_way_kernel_by_kernel();
    return 0;
}

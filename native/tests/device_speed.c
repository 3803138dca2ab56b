/* How many kernels a second the batch driver computes; prints figures, fails only if work is lost. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime: the test may read a clock, the model may not */
#include "device/script.h"
#include "expect.h"

#include <string.h>
#include <time.h>

enum { STEPS = 8, REPEATS = 12500, KERNELS = 4 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Two clients that launch every 4 us and wait every 8 launches, on a V100. */
static void measure(const char *what, const struct ct_kernel *kernels, uint32_t group_label)
{
    struct ct_device_limits limits = {.clients = 2, .contexts = 2, .streams = 2, .events = 1, .ops = 4096, .records = 8192};
    size_t bytes = ct_device_bytes(&limits);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    struct ct_device *device;
    struct ct_script_step steps[STEPS];
    struct ct_script_stream stream = {CT_STREAM_BLOCKING, 0};
    struct ct_script_client clients[2];
    struct ct_device_counters counters;
    EXPECT_EQ(ct_device_init(memory, bytes, ct_device_preset("v100"), &limits, 0, &device), CT_DEVICE_OK);
    for (uint32_t i = 0; i < STEPS; i++)
        steps[i] = (struct ct_script_step){4000, i % KERNELS, 0, i == STEPS - 1 ? CT_SCRIPT_SYNC : 0};
    memset(clients, 0, sizeof clients);
    for (int i = 0; i < 2; i++) {
        clients[i].steps = steps;
        clients[i].step_count = STEPS;
        clients[i].repeats = REPEATS;
        clients[i].streams = &stream;
        clients[i].stream_count = 1;
        clients[i].group_label = group_label;
    }
    double began = seconds();
    EXPECT_EQ(ct_script_run(device, kernels, KERNELS, clients, 2, CT_DEVICE_NEVER - 1), CT_DEVICE_OK);
    double took = seconds() - began;
    ct_device_count(device, &counters);
    EXPECT_EQ(counters.kernels, 2 * STEPS * REPEATS);
    EXPECT(ct_device_check(device) == NULL);
    printf("%-44s %10.0f kernels/s\n", what, (double)counters.kernels / took);
    free(memory);
}

int main(void)
{
    static const struct ct_kernel mixed[KERNELS] = {
        {.blocks = 640, .block_ns = 10000, .threads_per_block = 256},
        {.blocks = 2000, .block_ns = 5000, .threads_per_block = 256, .bytes_per_block = 100000},
        {.blocks = 40, .block_ns = 20000, .threads_per_block = 128},
        {.blocks = 10000, .block_ns = 4000, .threads_per_block = 512},
    };
    static const struct ct_kernel small[KERNELS] = {
        {.blocks = 64, .block_ns = 10000, .threads_per_block = 256},
        {.blocks = 200, .block_ns = 5000, .threads_per_block = 256, .bytes_per_block = 10000},
        {.blocks = 40, .block_ns = 20000, .threads_per_block = 128},
        {.blocks = 100, .block_ns = 4000, .threads_per_block = 512},
    };
    measure("time slices, 1 to 32 waves a kernel", mixed, CT_GROUP_OWN);
    measure("time slices, one wave a kernel", small, CT_GROUP_OWN);
    measure("one group (MPS), one wave a kernel", small, 1);
    measure("one group (MPS), 1 to 32 waves a kernel", mixed, 1);
    return 0;
}

/* Kernels of collectives are recognized by their names, mangled or not, and others are not. */
#include "hook/launch/collective.h"
#include "tests/expect.h"

int main(void)
{
    static const char *const collectives[] = {
        "_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "rcclGenericKernel",
        "_ZN7nvshmem12barrier_kernelEv",
        "_ZN4vllm26cross_device_reduce_1stageI6__halfLi2EEEvPNS_8RankDataE",
        "_ZN12tensorrt_llm7kernels23oneShotAllReduceKernelI6__halfLi8EEEv",
        "two_shot_all_reduce_kernel",
    };
    static const char *const others[] = {
        "", "n", "ampere_sgemm_128x64_tn", "void at::native::reduce_kernel<512, 1>", "encoder_cclayer", "reduce",
    };
    for (size_t i = 0; i < sizeof collectives / sizeof collectives[0]; i++)
        EXPECT(ct_name_is_collective(collectives[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        EXPECT(!ct_name_is_collective(others[i]));
    return 0;
}

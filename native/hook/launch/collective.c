/* Recognizes kernels of collective communication by their names. */
#include "hook/launch/collective.h"

#include <string.h>

/* Parts of the names of kernels that wait for kernels of other ranks: of the libraries NCCL, RCCL, MSCCL, NVSHMEM and
 * oneCCL, and of the reductions that PyTorch, vLLM, FlashInfer and TensorRT-LLM contain themselves. */
static const char *const PARTS[] = {
    "nccl", "rccl", "msccl", "nvshmem", "oneccl", "all_reduce", "allreduce", "AllReduce", "cross_device_reduce",
};

int ct_name_is_collective(const char *name)
{
    for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++)
        if (strstr(name, PARTS[i]))
            return 1;
    return 0;
}

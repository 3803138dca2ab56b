/* cuDeviceGetAttribute. Values come from the preset where the model has them, otherwise from a table of typical
 * values. */
#include "softgpu/driver/internal.h"

/* Numbers of the attributes that depend on the preset. */
enum {
    MAX_THREADS_PER_BLOCK = 1,
    SHARED_PER_BLOCK = 8,
    CLOCK_KHZ = 13,
    SM_COUNT = 16,
    COMPUTE_MODE = 20,
    PCI_BUS = 33,
    MEMORY_CLOCK_KHZ = 36,
    BUS_BITS = 37,
    L2_BYTES = 38,
    THREADS_PER_SM = 39,
    ASYNC_ENGINES = 40,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
    SHARED_PER_SM = 81,
    REGISTERS_PER_SM = 82,
    SHARED_PER_BLOCK_OPTIN = 97,
    BLOCKS_PER_SM = 106,
    PERSISTING_L2 = 108,
    SHARED_RESERVED = 111,
    CLUSTER_LAUNCH = 120,
    MPS_ENABLED = 133,
    LAST = 161,
};

/* Values of all other attributes by number; missing ones are 0. */
static const int fixed[LAST + 1] = {
    [2] = 1024,  [3] = 1024,  [4] = 64, /* block dimensions */
    [5] = 2147483647, [6] = 65535, [7] = 65535, /* grid dimensions */
    [9] = 65536, /* constant memory */
    [10] = CT_DEVICE_WARP_THREADS,
    [11] = 2147483647, /* pitch */
    [12] = 65536,      /* registers per block */
    [14] = 512,        /* texture alignment */
    [15] = 1,          /* copies overlap kernels */
    [19] = 1,          /* maps host memory */
    [21] = 131072, [22] = 131072, [23] = 65536, [24] = 16384, [25] = 16384, [26] = 16384, [27] = 32768, [28] = 32768,
    [29] = 2048, [30] = 512, /* textures, surfaces */
    [42] = 32768, [43] = 2048, [45] = 32768, [46] = 32768, [47] = 8192, [48] = 8192, [49] = 32768,
    [52] = 32768, [53] = 32768, [54] = 2046, /* layers, gathering, cube maps */
    [55] = 32768, [56] = 131072, [57] = 65536, [58] = 16384, [59] = 16384, [60] = 16384, [61] = 32768, [62] = 2048,
    [63] = 32768, [64] = 32768, [65] = 2048, [66] = 32768, [67] = 32768, [68] = 2046, /* surfaces */
    [69] = 1 << 28, [70] = 131072, [71] = 65000, [72] = 2097120, [73] = 32768, [74] = 32768, [77] = 32768,
    [31] = 1,                                           /* concurrent kernels */
    [32] = 1,                                           /* ECC */
    [41] = 1,                                           /* unified addressing */
    [51] = 32,                                          /* texture pitch */
    [78] = 1,                                           /* stream priorities */
    [79] = 1, [80] = 1,                                 /* L1 */
    [83] = 1,                                           /* managed memory */
    [87] = 2,                                           /* single to double precision */
    [89] = 1,                                           /* concurrent managed access */
    [90] = 1,                                           /* compute preemption */
    [91] = 1,                                           /* host pointers of registered memory */
    [92] = 1, [93] = 1, [94] = 1, [122] = 1, [123] = 1, /* stream memory operations */
    [95] = 1,                                           /* cooperative launch */
    [99] = 1,                                           /* host register */
    [102] = 1, [103] = 1,                               /* virtual memory, exported as file descriptors */
    [115] = 1, [119] = 1,                               /* memory pools, exported as file descriptors */
    [125] = 1,                                          /* events between processes */
    [129] = 1,                                          /* unified function pointers: entry points only */
    [131] = -1,                                         /* no NUMA node of its own; the host is node 0 */
    [141] = 1, [142] = 1, [144] = 1, [145] = 1,         /* virtual memory and pools of the host */
};

/* The SMs that an MPS client can use; if contexts have their own percentages, those of the current context. */
static uint32_t usable_sms(const struct sg_device *device)
{
    CUcontext current = sg_current();
    uint32_t cap = device->sm_cap;
    if (sg_mps.is_per_context && current && sg_alive(SG_CONTEXT, current) && current->device == device)
        cap = current->sm_cap;
    return cap ? cap : device->config.sm_count;
}

static int compute_mode(struct sg_device *device)
{
    struct sg_request request = {.kind = SG_COMPUTE_MODE};
    struct sg_reply reply;
    return sg_call(&device->connection, &request, &reply) == 0 ? (int)reply.a : SG_MODE_DEFAULT;
}

int sg_attribute(struct sg_device *device, int attribute)
{
    const struct ct_device_config *c = &device->config;
    switch (attribute) {
    case MAX_THREADS_PER_BLOCK:
        return (int)c->threads_per_block;
    case SHARED_PER_BLOCK:
        return (int)c->shared_bytes_per_block;
    case CLOCK_KHZ:
        return (int)c->clock_khz;
    case SM_COUNT:
        return (int)usable_sms(device);
    case COMPUTE_MODE:
        return compute_mode(device);
    case MPS_ENABLED:
        return sg_mps.is_client;
    case PCI_BUS:
        return SG_PCI_BUS_FIRST + (int)device->number;
    case MEMORY_CLOCK_KHZ:
        return (int)c->memory_clock_khz;
    case BUS_BITS:
        return (int)c->memory_bus_bits;
    case L2_BYTES:
        return (int)c->l2_bytes;
    case THREADS_PER_SM:
        return (int)c->threads_per_sm;
    case ASYNC_ENGINES:
        return (int)c->copy_engines;
    case CAPABILITY_MAJOR:
        return (int)c->compute_major;
    case CAPABILITY_MINOR:
        return (int)c->compute_minor;
    case SHARED_PER_SM:
        return (int)c->shared_bytes_per_sm;
    case REGISTERS_PER_SM:
        return (int)c->registers_per_sm;
    case SHARED_PER_BLOCK_OPTIN:
        return (int)c->shared_bytes_per_block_optin;
    case BLOCKS_PER_SM:
        return (int)c->blocks_per_sm;
    case PERSISTING_L2:
        return c->compute_major >= 8 ? (int)(c->l2_bytes / 4 * 3) : 0;
    case SHARED_RESERVED:
        return (int)c->shared_reserved_bytes;
    case CLUSTER_LAUNCH:
        return c->compute_major >= 9;
    default:
        return fixed[attribute];
    }
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!value || (int)attribute <= 0 || (int)attribute > LAST)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    *value = sg_attribute(device, (int)attribute);
    return sg_leave(CUDA_SUCCESS);
}

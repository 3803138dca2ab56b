/* Occupancy: the number of blocks that fit an SM, and the block size that fills it best. */
#include "softgpu/driver/internal.h"

uint32_t sg_function_occupancy(const struct sg_device *device, const struct CUfunc_st *function, uint32_t threads,
                               size_t shared_bytes)
{
    const struct sg_kernel *kernel = function->kernel;
    if (shared_bytes > UINT32_MAX - kernel->shared_bytes || threads > device->config.threads_per_block)
        return 0;
    uint32_t fits = ct_device_occupancy(&device->config, threads, kernel->registers,
                                        kernel->shared_bytes + (uint32_t)shared_bytes);
    return kernel->blocks_per_sm ? kernel->blocks_per_sm : fits;
}

static CUresult enter(const void *function, CUcontext *context)
{
    CUresult result = sg_enter_context(context);
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_FUNCTION, function) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
                                                                  size_t shared_bytes, unsigned int flags)
{
    CUcontext context;
    CUresult result = enter(function, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!blocks || threads <= 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *blocks = (int)sg_function_occupancy(context->device, function, (uint32_t)threads, shared_bytes);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                         size_t shared_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

/* Maximise the number of resident threads. Among equals choose the largest block, which needs fewer blocks. */
API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                       CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit,
                                                       unsigned int flags)
{
    CUcontext context;
    CUresult result = enter(function, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!grid || !block || limit < 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int max_threads = (int)function->kernel->max_threads, best = 0, best_blocks = 0;
    if (limit && limit < max_threads)
        max_threads = limit;
    for (int threads = (max_threads + 31) / 32 * 32; threads > 0; threads -= 32) {
        int size = threads < max_threads ? threads : max_threads;
        size_t shared = shared_of ? shared_of(size) : shared_bytes;
        int blocks = (int)sg_function_occupancy(context->device, function, (uint32_t)size, shared);
        if (blocks * size > best * best_blocks) {
            best = size;
            best_blocks = blocks;
        }
    }
    *block = best;
    *grid = best_blocks * (int)sg_context_sms(context);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
                                              size_t shared_bytes, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared_bytes, limit, 0);
}

/* Clusters exist from compute capability 9: up to 8 blocks that run at the same time on neighbouring SMs. */
static CUresult clusters(CUfunction function, const CUlaunchConfig *config, uint32_t *resident_blocks, uint32_t *size)
{
    CUcontext context;
    CUresult result = enter(function, &context);
    if (result != CUDA_SUCCESS)
        return result;
    const struct sg_device *device = context->device;
    if (!config || (config->numAttrs && !config->attrs))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (device->config.compute_major < 9)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    *size = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            *size = config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
                    config->attrs[i].value.clusterDim.z;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (!*size || *size > SG_CLUSTER_BLOCKS || !threads || threads > device->config.threads_per_block)
        return sg_leave(CUDA_ERROR_INVALID_CLUSTER_SIZE);
    *resident_blocks = device->config.sm_count *
               sg_function_occupancy(device, function, (uint32_t)threads, config->sharedMemBytes);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config)
{
    uint32_t resident_blocks = 0, size = 1;
    CUresult result = clusters(function, config, &resident_blocks, &size);
    if (result == CUDA_SUCCESS && !count)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *count = (int)(resident_blocks / size);
    return result;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config)
{
    uint32_t resident_blocks = 0, asked = 1;
    CUresult result = clusters(function, config, &resident_blocks, &asked);
    if (result == CUDA_SUCCESS && !size)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *size = resident_blocks < SG_CLUSTER_BLOCKS ? (int)resident_blocks : SG_CLUSTER_BLOCKS;
    return result;
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int threads)
{
    CUcontext context;
    CUresult result = enter(function, &context);
    if (result != CUDA_SUCCESS)
        return result;
    const struct ct_device_config *config = &context->device->config;
    if (!bytes || blocks <= 0 || threads <= 0)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    size_t low = 0, high = config->shared_bytes_per_block_optin + 1;
    if (sg_function_occupancy(context->device, function, (uint32_t)threads, 0) < (uint32_t)blocks)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (sg_function_occupancy(context->device, function, (uint32_t)threads, middle) >= (uint32_t)blocks)
            low = middle;
        else
            high = middle;
    }
    *bytes = low;
    return sg_leave(CUDA_SUCCESS);
}

/* Kernel launches: conversion of a function, a grid and parameters into a ring slot. */
#include "softgpu/driver/internal.h"
#include "softgpu/abi/names.h"
#include "softgpu/ptx/ptx.h"

#include <string.h>

enum { PARAM_END = 0, PARAM_BUFFER = 1, PARAM_BYTES = 2 };

/* Return a repeatable deviate with mean 0 and standard deviation 1. It depends on the kernel's name and the number of
 * its launches, not on the clock. */
static double jitter_deviate(const struct CUfunc_st *function)
{
    uint64_t x = UINT64_C(0xcbf29ce484222325);
    for (const char *p = function->kernel->name; *p; p++)
        x = (x ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    x = x * UINT64_C(0x9e3779b97f4a7c15) + function->launches;
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        x += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t z = x;
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        sum += (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
    }
    return (sum - 2) * 1.7320508075688772;
}

/* Return the bytes of a parameter; NULL: the caller passed none. */
static const void *parameter(const struct sg_kernel *kernel, uint32_t index, void **params, const unsigned char *buffer,
                             size_t buffer_bytes)
{
    if (params)
        return params[index];
    uint64_t end = (uint64_t)kernel->param_offset[index] + kernel->param_bytes[index];
    return buffer && end <= buffer_bytes ? buffer + kernel->param_offset[index] : NULL;
}

static uint64_t waves(const struct sg_device *device, uint64_t blocks, uint32_t per_sm)
{
    uint64_t resident = (uint64_t)per_sm * device->config.sm_count;
    return (blocks + resident - 1) / resident;
}

/* Return the number of blocks of this shape that one SM holds at a time. */
static uint32_t resident_blocks_per_sm(const struct sg_device *device, struct CUfunc_st *function, uint32_t threads,
                                       unsigned shared_bytes)
{
    if (function->fit.device != device || function->fit.threads != threads ||
        function->fit.shared_bytes != shared_bytes) {
        function->fit.device = device;
        function->fit.threads = threads;
        function->fit.shared_bytes = shared_bytes;
        function->fit.resident_blocks = sg_function_occupancy(device, function, threads, shared_bytes);
    }
    return function->fit.resident_blocks;
}

/* Return the traffic of a block with which the kernel asks for its part of the bandwidth. */
static uint64_t bandwidth_bytes(const struct sg_device *device, const struct sg_kernel *k,
                                const struct ct_kernel *kernel, uint32_t per_sm)
{
    uint64_t sms = device->config.sm_count, resident = per_sm * sms;
    double running = (double)(kernel->blocks < resident ? kernel->blocks : resident);
    double used_sms = (double)(kernel->blocks < sms ? kernel->blocks : sms) / (double)sms;
    double bytes_per_ns = k->bandwidth * used_sms * (double)device->config.memory_bytes_per_s / 1e9;
    return (uint64_t)(bytes_per_ns * (double)kernel->block_ns / running);
}

static CUresult cost(const struct sg_device *device, struct CUfunc_st *function, uint64_t threads, uint64_t blocks,
                     unsigned shared_bytes, const void *duration, struct ct_kernel *kernel)
{
    const struct sg_kernel *k = function->kernel;
    uint64_t duration_ns = k->duration_ns;
    kernel->blocks = blocks;
    kernel->threads_per_block = (uint32_t)threads;
    kernel->registers_per_thread = k->registers;
    kernel->shared_bytes_per_block = k->shared_bytes + shared_bytes;
    kernel->blocks_per_sm = k->blocks_per_sm;
    kernel->bytes_per_block = (uint64_t)(k->bytes_per_block + k->bytes_per_thread * (double)threads);
    uint32_t per_sm = resident_blocks_per_sm(device, function, (uint32_t)threads, shared_bytes);
    if (!per_sm)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (duration)
        memcpy(&duration_ns, duration, sizeof duration_ns);
    double block_ns = (double)k->block_ns + k->thread_ns * (double)threads;
    double rounds = (double)waves(device, blocks, per_sm);
    if (duration_ns || duration)
        block_ns = (double)duration_ns / rounds;
    /* The image's own jitter takes the place of the device's spread if it is larger. */
    double data_spread = (double)device->costs.data_spread_ppm / 1e6;
    double spread = k->jitter > data_spread ? k->jitter : data_spread;
    if (spread > 0) {
        double factor = 1 + spread * jitter_deviate(function);
        block_ns *= factor < 0.05 ? 0.05 : factor;
    }
    if (block_ns * rounds > (double)SG_KERNEL_MAX_NS)
        return CUDA_ERROR_INVALID_VALUE;
    kernel->block_ns = block_ns < 1 ? 1 : (uint64_t)block_ns;
    if (k->bandwidth > 0)
        kernel->bytes_per_block = bandwidth_bytes(device, k, kernel, per_sm);
    return CUDA_SUCCESS;
}

/* Return the address of the duration of a launch, NULL: the image has it. A duration in device memory is read when the
 * kernel is launched; writes of work that is still queued come too late for it. */
static CUresult find_duration(const struct sg_device *device, const struct sg_kernel *kernel, const void **values,
                              const void **duration)
{
    uint64_t address;
    *duration = kernel->duration_param < 0 ? NULL : values[kernel->duration_param];
    if (kernel->duration_data < 0)
        return CUDA_SUCCESS;
    memcpy(&address, values[kernel->duration_data], sizeof address);
    if (!sg_memory_at(address) || !sg_memory_allows(device, address, sizeof(uint64_t), 0))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    *duration = (const void *)(uintptr_t)address;
    return CUDA_SUCCESS;
}

static CUresult unpack(void **extra, const unsigned char **buffer, size_t *bytes)
{
    for (int i = 0; i < 8; i += 2) {
        uintptr_t key = (uintptr_t)extra[i];
        if (key == PARAM_END)
            return CUDA_SUCCESS;
        if (key == PARAM_BUFFER)
            *buffer = extra[i + 1];
        else if (key == PARAM_BYTES && extra[i + 1])
            *bytes = *(const size_t *)extra[i + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sg_launch_check(const struct sg_device *device, const struct CUfunc_st *function, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes)
{
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || !threads || grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > device->config.threads_per_block)
        return CUDA_ERROR_INVALID_VALUE;
    if (threads > function->kernel->max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    if (shared_bytes > function->dynamic_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sg_launch_params(const struct sg_kernel *kernel, void **params, void **extra, const void **values)
{
    const unsigned char *buffer = NULL;
    size_t buffer_bytes = 0;
    if (params && extra)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = extra ? unpack(extra, &buffer, &buffer_bytes) : CUDA_SUCCESS;
    for (uint32_t i = 0; i < kernel->param_count && result == CUDA_SUCCESS; i++) {
        values[i] = parameter(kernel, i, params, buffer, buffer_bytes);
        if (!values[i])
            result = CUDA_ERROR_INVALID_VALUE;
    }
    return result;
}

static CUresult add_effect(CUstream stream, const struct sg_kernel *kernel, const unsigned grid[3],
                           const unsigned block[3], const void **values)
{
    struct sg_effect effect = {.kind = SG_EFFECT_KERNEL, .kernel = {.builtin = (int)kernel->builtin}};
    for (int i = 0; i < 3; i++) {
        effect.kernel.grid[i] = grid[i];
        effect.kernel.block[i] = block[i];
    }
    effect.kernel.param_count = kernel->param_count;
    for (uint32_t i = 0; i < kernel->param_count; i++) {
        effect.kernel.offsets[i] = kernel->param_offset[i];
        memcpy(effect.kernel.params + kernel->param_offset[i], values[i], kernel->param_bytes[i]);
    }
    return sg_effect_add(stream, &effect);
}

/* Launch a kernel whose code is executed. The effect owns the copy of what it needs. */
static CUresult launch_code(CUcontext context, struct CUfunc_st *function, const struct sg_code_shape *shape,
                            const void **values, CUstream stream, struct sg_slot *slot)
{
    struct sg_effect effect = {.kind = SG_EFFECT_KERNEL};
    CUresult result = sg_code_prepare(context, function, shape, values, &effect.kernel.code);
    if (result != CUDA_SUCCESS)
        return result;
    result = sg_submit(stream, slot);
    if (result == CUDA_SUCCESS)
        result = sg_effect_add(stream, &effect);
    if (result != CUDA_SUCCESS)
        sg_code_drop(effect.kernel.code);
    return result;
}

/* Launch a kernel that spins. In the model its blocks end only when the callback thread ends them. */
static CUresult launch_spin(const struct sg_device *device, const struct CUfunc_st *function, const void **values,
                            uint64_t blocks, CUstream stream, struct sg_slot *slot)
{
    uint64_t rounds = waves(device, blocks, function->fit.resident_blocks);
    uint64_t duration_ns = rounds * slot->kernel.block_ns;
    slot->kernel.block_ns = SG_SPIN_NS / rounds;
    slot->kernel.bytes_per_block = 0;
    CUresult result = sg_spin_reserve();
    if (result == CUDA_SUCCESS)
        result = sg_submit(stream, slot);
    if (result == CUDA_SUCCESS)
        sg_spin_add(stream, function->kernel, values, duration_ns);
    return result;
}

/* Clusters of up to 8 blocks exist from compute capability 9 on, and of up to 16 if the program allows it. */
static CUresult check_cluster(const struct sg_device *device, const struct CUfunc_st *function, const unsigned grid[3],
                              const struct sg_launch_options *options)
{
    uint32_t cluster[3];
    uint64_t blocks = 1;
    sg_ptx_cluster(function->module->image.program, function->kernel->entry, cluster);
    const int is_required = cluster[0] * cluster[1] * cluster[2] > 1;
    for (int k = 0; k < 3; k++) {
        if (options->cluster[0] && is_required && options->cluster[k] != cluster[k])
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        cluster[k] = options->cluster[0] ? options->cluster[k] : cluster[k];
        if (!cluster[k] || cluster[k] > SG_CLUSTER_BLOCKS_ALLOWED || grid[k] % cluster[k])
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        blocks *= cluster[k];
    }
    if (blocks > 1 && device->config.compute_major < 9)
        return CUDA_ERROR_NOT_SUPPORTED;
    return blocks <= (function->cluster_allowed ? SG_CLUSTER_BLOCKS_ALLOWED : SG_CLUSTER_BLOCKS) ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

static int shares_owner(CUcontext one, CUcontext other)
{
    return one == other || sg_owner_context(one) == sg_owner_context(other);
}

CUresult sg_function_launch(CUcontext context, struct CUfunc_st *function, const unsigned grid[3],
                            const unsigned block[3], unsigned shared_bytes, CUstream handle, void **params,
                            void **extra, const struct sg_launch_options *options)
{
    struct sg_device *device = context->device;
    const void *values[SG_MAX_PARAMS];
    if (!sg_alive(SG_FUNCTION, function))
        return CUDA_ERROR_INVALID_HANDLE;
    CUcontext code_context = function->module->context;
    CUresult result = code_context ? CUDA_SUCCESS : sg_code_load(context, function->module);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!stream || !shares_owner(stream->context, context) || (code_context && !shares_owner(code_context, context)))
        return CUDA_ERROR_INVALID_HANDLE;
    result = sg_launch_check(device, function, grid, block, shared_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    const struct sg_kernel *kernel = function->kernel;
    result = sg_launch_params(kernel, params, extra, values);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return sg_capture_kernel(stream, function, grid, block, shared_bytes, params, extra, options);
    if (kernel->entry >= 0 && sg_ptx_reason(function->module->image.program, kernel->entry))
        return CUDA_ERROR_NOT_SUPPORTED; /* the load has reported it */
    result = kernel->entry >= 0 ? check_cluster(device, function, grid, options) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_slot slot = {.kind = SG_SLOT_KERNEL};
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2], blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    const void *duration;
    result = find_duration(device, kernel, values, &duration);
    if (result != CUDA_SUCCESS)
        return result;
    function->launches++;
    result = cost(device, function, threads, blocks, shared_bytes, duration, &slot.kernel);
    if (result != CUDA_SUCCESS)
        return result;
    if (options->is_cooperative && blocks > (uint64_t)sg_context_sms(stream->context) * function->fit.resident_blocks)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    if (kernel->entry >= 0) {
        uint64_t resident = (uint64_t)sg_context_sms(stream->context) * function->fit.resident_blocks;
        struct sg_code_shape shape = {grid, block, shared_bytes, resident, options};
        return launch_code(context, function, &shape, values, stream, &slot);
    }
    if (kernel->spin_counter >= 0)
        return launch_spin(device, function, values, blocks, stream, &slot);
    result = sg_submit(stream, &slot);
    if (result == CUDA_SUCCESS && kernel->builtin != SG_BUILTIN_NONE)
        result = add_effect(stream, kernel, grid, block, values);
    return result;
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                       CUstream stream, void **params, void **extra, const struct sg_launch_options *options)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(
        sg_function_launch(context, function, grid, block, shared_bytes, stream, params, extra, options));
}

static const struct sg_launch_options plain = {.is_cooperative = 0}, cooperative = {.is_cooperative = 1};

#define SHAPE                                                                                                          \
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z}

API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                            unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                            CUstream stream, void **params, void **extra)
{
    SHAPE;
    return launch(function, grid, block, shared_bytes, stream, params, extra, &plain);
}

API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_bytes, CUstream stream, void **params, void **extra)
{
    SHAPE;
    return launch(function, grid, block, shared_bytes, sg_per_thread_stream(stream), params, extra, &plain);
}

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                       unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **params)
{
    SHAPE;
    return launch(function, grid, block, shared_bytes, stream, params, NULL, &cooperative);
}

API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                            unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                            unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                            void **params)
{
    SHAPE;
    return launch(function, grid, block, shared_bytes, sg_per_thread_stream(stream), params, NULL, &cooperative);
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function, void **params, void **extra,
                              int is_per_thread)
{
    struct sg_launch_options options = plain;
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        CUresult support = sg_attribute_support((int)config->attrs[i].id);
        if (support == CUDA_ERROR_NOT_SUPPORTED)
            return (CUresult)sg_unsupported(is_per_thread ? SG_NAME_cuLaunchKernelEx_ptsz : SG_NAME_cuLaunchKernelEx);
        if (support != CUDA_SUCCESS)
            return support;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            options.is_cooperative = config->attrs[i].value.cooperative;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            memcpy(options.cluster, &config->attrs[i].value.clusterDim, sizeof options.cluster);
    }
    const unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    CUstream stream = is_per_thread && !config->hStream ? CU_STREAM_PER_THREAD : config->hStream;
    return launch(function, grid, block, config->sharedMemBytes, stream, params, extra, &options);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    return launch_config(config, function, params, extra, 0);
}

API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    return launch_config(config, function, params, extra, 1);
}

/* Launches of kernels and graphs. Each hook calls the driver's function of the same symbol with the same arguments. */
#include "hook/launch/captures.h"
#include "hook/launch/partition.h"
#include "hook/launch/parts.h"

#define SHAPE {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}

#define LAUNCH_KERNEL(symbol, is_per_thread)                                                                           \
    CT_EXPORT CUresult symbol(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,      \
                              unsigned int block_x, unsigned int block_y, unsigned int block_z,                        \
                              unsigned int shared_bytes, CUstream stream, void **params, void **extra)                 \
    {                                                                                                                  \
        const struct ct_shape shape = SHAPE;                                                                           \
        struct ct_launch launch;                                                                                       \
        ct_launch_begin(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape, stream, is_per_thread,                   \
                       CT_MAY_TIME_AND_LIMIT);                                                                         \
        if (CT_UNLIKELY(ct_parts_are_due(&launch))) {                                                                  \
            const struct ct_parts_call call = {function, stream, is_per_thread, params, extra};                        \
            return ct_launch_end(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape,                                 \
                                 ct_parts_launch(&launch, &shape, &call));                                             \
        }                                                                                                              \
        const CUstream target = ct_partition_stream(&launch, stream);                                                  \
        CUresult result = CT_NEXT(symbol)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,   \
                                          target, params, extra);                                                      \
        if (CT_UNLIKELY(target != stream) && !ct_partition_leave(&launch, result))                                     \
            result = CT_NEXT(symbol)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,        \
                                     stream, params, extra);                                                           \
        return ct_launch_end(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape, result);                            \
    }

#define LAUNCH_COOPERATIVE(symbol, is_per_thread)                                                                      \
    CT_EXPORT CUresult symbol(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,      \
                              unsigned int block_x, unsigned int block_y, unsigned int block_z,                        \
                              unsigned int shared_bytes, CUstream stream, void **params)                               \
    {                                                                                                                  \
        const struct ct_shape shape = SHAPE;                                                                           \
        struct ct_launch launch;                                                                                       \
        ct_launch_begin(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape, stream, is_per_thread,                   \
                       CT_MAY_TIME_COOPERATIVE);                                                                       \
        CUresult result = CT_NEXT(symbol)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,   \
                                          stream, params);                                                             \
        return ct_launch_end(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape, result);                            \
    }

static enum ct_permission permission_of(const CUlaunchConfig *config)
{
    int is_cooperative = 0;
    for (unsigned i = 0; config->attrs && i < config->numAttrs; i++) {
        int id = config->attrs[i].id;
        if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION ||
            id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            return CT_MAY_NOTHING;
        is_cooperative |= id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && config->attrs[i].value.cooperative;
    }
    if (is_cooperative)
        return CT_MAY_TIME_COOPERATIVE;
    return config->numAttrs ? CT_MAY_TIME : CT_MAY_TIME_AND_LIMIT;
}

#define LAUNCH_EX(symbol, is_per_thread)                                                                               \
    CT_EXPORT CUresult symbol(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)          \
    {                                                                                                                  \
        if (!config)                                                                                                   \
            return CT_NEXT(symbol)(config, function, params, extra);                                                   \
        const struct ct_shape shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},                         \
                                       {config->blockDimX, config->blockDimY, config->blockDimZ},                      \
                                       config->sharedMemBytes};                                                        \
        struct ct_launch launch;                                                                                       \
        ct_launch_begin(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape, config->hStream, is_per_thread,          \
                       permission_of(config));                                                                         \
        if (CT_UNLIKELY(ct_parts_are_due(&launch))) {                                                                  \
            const struct ct_parts_call call = {function, config->hStream, is_per_thread, params, extra};               \
            return ct_launch_end(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape,                                 \
                                 ct_parts_launch(&launch, &shape, &call));                                             \
        }                                                                                                              \
        const CUstream target = ct_partition_stream(&launch, config->hStream);                                         \
        CUlaunchConfig changed = *config;                                                                              \
        changed.hStream = target;                                                                                      \
        CUresult result = CT_NEXT(symbol)(&changed, function, params, extra);                                          \
        if (CT_UNLIKELY(target != config->hStream) && !ct_partition_leave(&launch, result))                            \
            result = CT_NEXT(symbol)(config, function, params, extra);                                                 \
        return ct_launch_end(&launch, CT_WORK_KERNEL, (uintptr_t)function, &shape, result);                            \
    }

#define LAUNCH_GRAPH(symbol, is_per_thread)                                                                            \
    CT_EXPORT CUresult symbol(CUgraphExec graph, CUstream stream)                                                      \
    {                                                                                                                  \
        const struct ct_shape shape = {{1, 1, 1}, {1, 1, 1}, 0};                                                       \
        struct ct_launch launch;                                                                                       \
        struct ct_growth growth;                                                                                       \
        if (!ct_graph_reserve(graph, &growth)) /* it may wait, and an admitted launch must not */                      \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        ct_launch_begin(&launch, CT_WORK_GRAPH, (uintptr_t)graph, &shape, stream, is_per_thread, CT_MAY_TIME);         \
        CUresult result = CT_NEXT(symbol)(graph, stream);                                                              \
        ct_graph_settle(&growth, result);                                                                              \
        return ct_launch_end(&launch, CT_WORK_GRAPH, (uintptr_t)graph, &shape, result);                                \
    }

LAUNCH_KERNEL(cuLaunchKernel, 0)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, 1)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, 0)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, 1)
LAUNCH_EX(cuLaunchKernelEx, 0)
LAUNCH_EX(cuLaunchKernelEx_ptsz, 1)
LAUNCH_GRAPH(cuGraphLaunch, 0)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, 1)

#define END_CAPTURE(symbol, is_per_thread)                                                                             \
    CT_EXPORT CUresult symbol(CUstream stream, CUgraph *graph)                                                         \
    {                                                                                                                  \
        CT_ON_DEVICE(ct_stream_device(stream));                                                                        \
        CUresult result = CT_NEXT(symbol)(stream, graph);                                                              \
        ct_capture_end(stream, is_per_thread, result);                                                                 \
        return result;                                                                                                 \
    }

END_CAPTURE(cuStreamEndCapture, 0)
END_CAPTURE(cuStreamEndCapture_ptsz, 1)

/* The operation of a node: conversion from and to the driver's parameter structs, and submission to a stream. */
#include "softgpu/driver/graph/graph.h"

#include <stdlib.h>
#include <string.h>

static CUresult set_context(struct sg_body *body, CUcontext context)
{
    if (!context)
        context = sg_current();
    if (!sg_alive(SG_CONTEXT, context))
        return CUDA_ERROR_INVALID_CONTEXT;
    body->context = context;
    body->context_id = context->object.id;
    return CUDA_SUCCESS;
}

static size_t value_bytes(const struct sg_kernel *kernel)
{
    uint32_t last = kernel->param_count - 1;
    return kernel->param_count ? (size_t)kernel->param_offset[last] + kernel->param_bytes[last] : 0;
}

/* One allocation: the pointers first, then the values. */
static void **make_params(const struct sg_kernel *kernel)
{
    size_t pointers = kernel->param_count * sizeof(void *);
    void **params = calloc(1, pointers + value_bytes(kernel) + 1);
    for (uint32_t i = 0; params && i < kernel->param_count; i++)
        params[i] = (char *)params + pointers + kernel->param_offset[i];
    return params;
}

CUresult sg_body_kernel(struct sg_body *body, CUcontext context, CUfunction function, const unsigned grid[3],
                        const unsigned block[3], unsigned shared_bytes, void **params, void **extra)
{
    *body = (struct sg_body){.type = CU_GRAPH_NODE_TYPE_KERNEL};
    CUresult result = sg_alive(SG_FUNCTION, function) ? set_context(body, context) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    if (function->module->context && sg_owner_context(function->module->context) != sg_owner_context(body->context)) {
        if (context)
            return CUDA_ERROR_INVALID_VALUE;
        /* A module's context takes precedence over the current one. */
        result = set_context(body, function->module->context);
    }
    if (result == CUDA_SUCCESS)
        result = sg_launch_check(body->context->device, function, grid, block, shared_bytes);
    const void *values[SG_MAX_PARAMS];
    if (result == CUDA_SUCCESS)
        result = sg_launch_params(function->kernel, params, extra, values);
    if (result != CUDA_SUCCESS)
        return result;
    const struct sg_kernel *kernel = function->kernel;
    body->kernel.params = make_params(kernel);
    if (!body->kernel.params)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < kernel->param_count; i++)
        memcpy(body->kernel.params[i], values[i], kernel->param_bytes[i]);
    body->kernel.function = function;
    body->kernel.function_id = function->object.id;
    memcpy(body->kernel.grid, grid, sizeof body->kernel.grid);
    memcpy(body->kernel.block, block, sizeof body->kernel.block);
    body->kernel.shared_bytes = shared_bytes;
    return CUDA_SUCCESS;
}

static CUresult read_kernel(const CUDA_KERNEL_NODE_PARAMS_v2 *p, struct sg_body *body)
{
    const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ};
    const unsigned block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    CUfunction function = p->func ? p->func : (CUfunction)p->kern;
    return sg_body_kernel(body, p->ctx, function, grid, block, p->sharedMemBytes, p->kernelParams, p->extra);
}

static CUresult read_copy(const CUDA_MEMCPY_NODE_PARAMS *p, struct sg_body *body)
{
    if (p->flags || p->reserved)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = set_context(body, p->copyCtx);
    body->copy.params = p->copyParams;
    if (result == CUDA_SUCCESS)
        result = sg_copy_read(&p->copyParams, &body->copy.copy);
    const struct sg_copy *copy = &body->copy.copy;
    if (result == CUDA_SUCCESS && (!copy->width || !copy->height || !copy->depth))
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

static CUresult read_fill(const CUDA_MEMSET_NODE_PARAMS_v2 *p, struct sg_body *body)
{
    uint64_t row;
    CUresult result = set_context(body, p->ctx);
    memcpy(&body->fill, p, sizeof body->fill);
    if (result != CUDA_SUCCESS)
        return result;
    if ((p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width || !p->height || !p->dst ||
        __builtin_mul_overflow(p->width, p->elementSize, &row) || (p->height > 1 && p->pitch < row))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult read_event(CUevent event, struct sg_body *body)
{
    if (!sg_alive(SG_EVENT, event))
        return CUDA_ERROR_INVALID_VALUE;
    body->event.event = event;
    body->event.id = event->object.id;
    return set_context(body, event->context);
}

static CUresult read_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS *p, struct sg_body *body)
{
    struct sg_device *device = sg_device_at(p->poolProps.location.id);
    if (p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device || p->poolProps.handleTypes ||
        p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || !p->bytesize ||
        (p->accessDescCount && !p->accessDescs))
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = sg_current();
    if (!sg_alive(SG_CONTEXT, context) || context->device != device)
        context = device->primary;
    CUresult result = context ? set_context(body, context) : CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS)
        return result;
    body->region = sg_region_make(device, p->bytesize, &p->poolProps);
    return body->region ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult read_free(CUdeviceptr address, struct sg_body *body)
{
    struct sg_region *region = sg_region_at(address);
    if (!region)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = sg_current();
    CUresult result = set_context(body, sg_alive(SG_CONTEXT, context) && context->device == region->device
                                            ? context : region->device->primary);
    if (result != CUDA_SUCCESS)
        return result;
    sg_region_retain(region);
    body->region = region;
    return CUDA_SUCCESS;
}

CUresult sg_body_read(const CUgraphNodeParams *params, struct sg_body *body)
{
    *body = (struct sg_body){.type = params->type};
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return read_kernel(&params->kernel, body);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return read_copy(&params->memcpy, body);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return read_fill(&params->memset, body);
    case CU_GRAPH_NODE_TYPE_HOST:
        body->host = params->host;
        return params->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        body->child.graph = params->graph.graph;
        body->child.ownership = params->graph.ownership;
        return sg_alive(SG_GRAPH, params->graph.graph) && !params->graph.graph->capture ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return read_event(params->eventWait.event, body);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return read_alloc(&params->alloc, body);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return read_free(params->free.dptr, body);
    default:
        return params->type < 0 || params->type > CU_GRAPH_NODE_TYPE_CONDITIONAL ? CUDA_ERROR_INVALID_VALUE
                                                                                 : CUDA_ERROR_NOT_SUPPORTED;
    }
}

static void write_kernel(const struct sg_body *body, CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    *p = (CUDA_KERNEL_NODE_PARAMS_v2){
        body->kernel.function, body->kernel.grid[0],  body->kernel.grid[1],      body->kernel.grid[2],
        body->kernel.block[0], body->kernel.block[1], body->kernel.block[2],     body->kernel.shared_bytes,
        body->kernel.params,   NULL,                  NULL,                      body->context,
    };
}

void sg_body_write(const struct sg_body *body, CUgraphNodeParams *params)
{
    *params = (CUgraphNodeParams){.type = body->type};
    switch (body->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        write_kernel(body, &params->kernel);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        params->memcpy.copyCtx = body->context;
        params->memcpy.copyParams = body->copy.params;
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        memcpy(&params->memset, &body->fill, sizeof body->fill);
        params->memset.ctx = body->context;
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        params->host = body->host;
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        params->graph.graph = body->child.graph;
        params->graph.ownership = body->child.ownership;
        break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        params->eventWait.event = body->event.event;
        break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        params->alloc.poolProps = body->region->props;
        params->alloc.bytesize = body->region->bytes;
        params->alloc.dptr = body->region->address;
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        params->free.dptr = body->region->address;
        break;
    default:
        break;
    }
}

int sg_body_copy(struct sg_body *copy, const struct sg_body *body)
{
    *copy = *body;
    if (body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || body->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        sg_region_retain(body->region);
    if (body->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return 0;
    copy->kernel.attributes = NULL;
    /* The function may have been unloaded; then the size of its parameters is not available. */
    const CUfunction function = body->kernel.function;
    int is_alive = sg_alive(SG_FUNCTION, function) && function->object.id == body->kernel.function_id;
    copy->kernel.params = is_alive ? make_params(function->kernel) : NULL;
    if (copy->kernel.params && body->kernel.params)
        for (uint32_t i = 0; i < function->kernel->param_count; i++)
            memcpy(copy->kernel.params[i], body->kernel.params[i], function->kernel->param_bytes[i]);
    if (body->kernel.attributes) {
        size_t bytes = SG_NODE_ATTRIBUTES * sizeof *body->kernel.attributes;
        copy->kernel.attributes = malloc(bytes);
        if (copy->kernel.attributes)
            memcpy(copy->kernel.attributes, body->kernel.attributes, bytes);
    }
    if ((!is_alive || copy->kernel.params) && (!body->kernel.attributes || copy->kernel.attributes))
        return 0;
    sg_body_end(copy);
    return -1;
}

void sg_body_end(struct sg_body *body)
{
    if (body->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        free(body->kernel.params);
        free(body->kernel.attributes);
    } else if ((body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || body->type == CU_GRAPH_NODE_TYPE_MEM_FREE) &&
               body->region) {
        sg_region_release(body->region);
    }
    body->type = CU_GRAPH_NODE_TYPE_EMPTY;
}

static CUresult submit_kernel(const struct sg_body *body, CUstream stream)
{
    CUfunction function = body->kernel.function;
    if (!sg_alive(SG_FUNCTION, function) || function->object.id != body->kernel.function_id || !body->kernel.params)
        return CUDA_ERROR_INVALID_HANDLE; /* its module was unloaded */
    struct sg_launch_options options = {.is_cooperative = body->kernel.is_cooperative};
    if (body->kernel.attributes)
        memcpy(options.cluster, &body->kernel.attributes[CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION], sizeof options.cluster);
    return sg_function_launch(stream->context, function, body->kernel.grid, body->kernel.block,
                              body->kernel.shared_bytes, stream, body->kernel.params, NULL, &options);
}

CUresult sg_body_submit(const struct sg_body *body, CUstream stream)
{
    switch (body->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return submit_kernel(body, stream);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sg_copy_submit(&body->copy.copy, stream, SG_COPY_OF_GRAPH);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const struct sg_box target = {body->fill.dst, body->fill.pitch, 0};
        return sg_fill_submit(&target, body->fill.width, body->fill.height, body->fill.value, body->fill.elementSize,
                              stream);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        return sg_host_submit(stream, NULL, body->host.fn, NULL, body->host.userData);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        if (!sg_alive(SG_EVENT, body->event.event) || body->event.event->object.id != body->event.id)
            return CUDA_ERROR_INVALID_HANDLE;
        if (body->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
            return sg_stream_wait_event(stream, body->event.event);
        return sg_event_record(body->event.event, stream);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return sg_region_free(body->region, stream);
    default:
        return CUDA_SUCCESS;
    }
}

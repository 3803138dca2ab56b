/* Memory that graphs allocate: the largest amount that a launch may allocate is computed when the graph is
 * instantiated; the actual amount is read afterwards. */
#include "arithmetic.h"
#include "hook/memory/memory.h"

#include <stdlib.h>

/* Nesting depth of child graphs; a deeper graph is treated as unbounded. */
enum { DEPTH_MAX = 64 };

/* Adds what an allocation node may allocate. Host memory is not counted. A node that cannot be read is of a kind that
 * this driver does not support. */
static void add_node(CUgraphNode node, struct ct_graph *sum)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
    if (CT_NEXT(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS ||
        params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return;
    sum->max_bytes = sat_add_u64(sum->max_bytes, ct_rounded(params.bytesize, CT_PAGE_STEP));
    sum->min_bytes = sat_add_u64(sum->min_bytes, ct_memory_rounded(params.bytesize));
}

static void add_graph(CUgraph graph, struct ct_graph *sum, int depth)
{
    size_t count = 0;
    if (CT_NEXT(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return;
    CUgraphNode *nodes = depth < DEPTH_MAX ? malloc(count * sizeof *nodes) : NULL;
    if (!nodes) { /* unknown, so no quota permits it */
        sum->max_bytes = sum->min_bytes = UINT64_MAX;
        return;
    }
    if (CT_NEXT(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type = -1;
        CUgraph child = NULL;
        if (CT_NEXT(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            add_node(nodes[i], sum);
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                 CT_NEXT(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS && child)
            add_graph(child, sum, depth + 1);
    }
    free(nodes);
}

/* Conditional nodes are not inspected: drivers do not accept allocation nodes in their bodies. */
void ct_graph_sum(CUgraph graph, struct ct_graph *sum)
{
    *sum = (struct ct_graph){0};
    if (ct_memory())
        add_graph(graph, sum, 0);
}

/* The note of a graph: the largest amount in pages of 2 MiB, and the epoch in which it was last counted. */
#define PAGES(note) ((note) & UINT32_MAX)
#define EPOCH(note) ((note) >> 32)

void ct_graph_made(CUgraphExec exec, const struct ct_graph *sum)
{
    struct ct_memory *memory = ct_memory();
    if (!memory || !sum->max_bytes || !exec)
        return;
    uint64_t pages = sum->max_bytes / CT_PAGE_STEP;
    const struct ct_holding holding = {.key = (uintptr_t)exec, .bytes = sum->min_bytes, .held = CT_HELD_GRAPH,
                                       .note = pages < UINT32_MAX ? pages : UINT32_MAX};
    if (ct_holding_add(memory, &holding))
        fetch_add_relaxed(&memory->supplies.graph_count, 1);
}

/* Memory that it allocated and did not free outlives it, and remains counted. */
void ct_graph_ended(CUgraphExec graph)
{
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    if (memory && load_relaxed(&memory->supplies.graph_count) &&
        ct_holding_take(memory, CT_HELD_GRAPH, (uintptr_t)graph, &holding))
        fetch_sub_relaxed(&memory->supplies.graph_count, 1);
}

static struct ct_supply *supply_of_graphs(struct ct_supplies *supplies)
{
    CUdevice device;
    if (CT_NEXT(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return NULL;
    ct_supplies_lock(supplies);
    struct ct_supply *supply = ct_supply_of(supplies, NULL, device);
    if (!supply)
        supply = ct_supply_make(supplies, NULL, device);
    ct_supplies_unlock(supplies);
    return supply;
}

/* Returns how much a launch may allocate. A graph that was launched before may still have its memory, and has it once.
 * All graphs launched since nothing was reserved have at most the sum of their amounts. */
static uint64_t growth_limit(struct ct_memory *memory, const struct ct_supply *supply, struct ct_holding *graph)
{
    struct ct_supplies *supplies = &memory->supplies;
    const uint64_t bytes = PAGES(graph->note) * CT_PAGE_STEP;
    ct_supplies_lock(supplies);
    if (!supply->counted_bytes && !supply->pending_bytes) {
        supplies->graphs_max_bytes = 0;
        supplies->graphs_epoch = (supplies->graphs_epoch + 1) & UINT32_MAX;
        supplies->graphs_epoch += !supplies->graphs_epoch;
    }
    const int is_counted = EPOCH(graph->note) == supplies->graphs_epoch;
    if (!is_counted)
        supplies->graphs_max_bytes = sat_add_u64(supplies->graphs_max_bytes, bytes);
    graph->note = supplies->graphs_epoch << 32 | PAGES(graph->note);
    uint64_t max = supplies->graphs_max_bytes > supply->counted_bytes
        ? supplies->graphs_max_bytes - supply->counted_bytes : 0;
    ct_supplies_unlock(supplies);
    if (!is_counted)
        ct_holding_add(memory, graph);
    return max < bytes ? max : bytes;
}

int ct_graph_reserve(CUgraphExec graph, struct ct_growth *growth)
{
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    *growth = (struct ct_growth){0};
    if (!memory || !load_relaxed(&memory->supplies.graph_count) ||
        !ct_holding_find(memory, CT_HELD_GRAPH, (uintptr_t)graph, &holding))
        return 1;
    struct ct_supply *supply = supply_of_graphs(&memory->supplies);
    if (!supply)
        return 1;
    for (int tries = 0; tries < 2; tries++) {
        uint64_t max = growth_limit(memory, supply, &holding), min = holding.bytes < max ? holding.bytes : max;
        if (ct_supply_reserve(memory, supply, max, min, growth))
            return 1;
        if (!ct_supplies_trim(memory)) /* memory that was in use before may be free by now */
            break;
    }
    return 0;
}

/* An uploaded graph gets its memory before the first launch. */
int ct_graph_uploads(const struct ct_graph *sum, unsigned long long flags, struct ct_growth *growth)
{
    struct ct_memory *memory = ct_memory();
    *growth = (struct ct_growth){0};
    if (!memory || !sum->max_bytes || !(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        return 1;
    struct ct_supply *supply = supply_of_graphs(&memory->supplies);
    return !supply || ct_supply_reserve(memory, supply, sum->max_bytes, sum->min_bytes, growth);
}

void ct_graph_settle(const struct ct_growth *growth, CUresult result)
{
    struct ct_memory *memory = growth->supply ? ct_memory() : NULL;
    if (memory)
        ct_supply_settle(memory, growth, result);
}

#define UPLOAD(symbol)                                                                                                 \
    CT_EXPORT CUresult symbol(CUgraphExec graph, CUstream stream)                                                      \
    {                                                                                                                  \
        struct ct_growth growth;                                                                                       \
        if (!ct_graph_reserve(graph, &growth))                                                                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = CT_NEXT(symbol)(graph, stream);                                                              \
        ct_graph_settle(&growth, result);                                                                              \
        return ct_fault_check(result);                                                                                 \
    }

UPLOAD(cuGraphUpload)
UPLOAD(cuGraphUpload_ptsz)

CT_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct ct_memory *memory = ct_memory();
    CUresult result = CT_NEXT(cuDeviceGraphMemTrim)(device);
    if (memory && result == CUDA_SUCCESS)
        ct_supplies_settle(memory, 0);
    return ct_fault_check(result);
}

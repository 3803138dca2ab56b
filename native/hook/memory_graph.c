/* Memory that graphs allocate: what a launch may take at most, known when the graph is made; what it took, read after it. */
#include "hook/memory.h"

#include <stdlib.h>

/* A graph in a graph in a graph: programs have two levels, and whoever has more than this is taken to have no end of it. */
enum { DEEPEST = 64 };

static uint64_t plus(uint64_t one, uint64_t other)
{
    return one > UINT64_MAX - other ? UINT64_MAX : one + other;
}

/* The host's memory counts nowhere. A node that cannot be read is one of a kind that this driver does not have. */
static void add_node(CUgraphNode node, struct ct_graph *sum)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
    if (CT_NEXT(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS ||
        params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return;
    sum->most_bytes = plus(sum->most_bytes, ct_rounded(params.bytesize, CT_PAGE_STEP));
    sum->least_bytes = plus(sum->least_bytes, ct_memory_rounded(params.bytesize));
}

static void add_graph(CUgraph graph, struct ct_graph *sum, int depth)
{
    size_t count = 0;
    if (CT_NEXT(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return;
    CUgraphNode *nodes = depth < DEEPEST ? malloc(count * sizeof *nodes) : NULL;
    if (!nodes) { /* nobody knows, so that no quota allows it */
        sum->most_bytes = sum->least_bytes = UINT64_MAX;
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

/* Bodies of conditional nodes are not looked into: no driver takes nodes there that allocate. */
void ct_graph_sum(CUgraph graph, struct ct_graph *sum)
{
    *sum = (struct ct_graph){0};
    if (ct_memory())
        add_graph(graph, sum, 0);
}

/* In the table: what it may take in whole pages of 2 MiB, and in which count of the launched it is. */
#define PAGES(note) ((note) & UINT32_MAX)
#define TURN(note) ((note) >> 32)

void ct_graph_made(CUgraphExec made, const struct ct_graph *sum)
{
    struct ct_memory *memory = ct_memory();
    if (!memory || !sum->most_bytes || !made)
        return;
    uint64_t pages = sum->most_bytes / CT_PAGE_STEP;
    const struct ct_holding holding = {.key = (uintptr_t)made, .bytes = sum->least_bytes, .held = CT_HELD_GRAPH,
                                       .note = pages < UINT32_MAX ? pages : UINT32_MAX};
    if (ct_holding_add(memory, &holding))
        atomic_fetch_add_explicit(&memory->beyond.graph_count, 1, memory_order_relaxed);
}

/* What it allocated and did not free outlives it, and stays in the count. */
void ct_graph_ended(CUgraphExec graph)
{
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    if (memory && atomic_load_explicit(&memory->beyond.graph_count, memory_order_relaxed) &&
        ct_holding_take(memory, CT_HELD_GRAPH, (uintptr_t)graph, &holding))
        atomic_fetch_sub_explicit(&memory->beyond.graph_count, 1, memory_order_relaxed);
}

static struct ct_supply *supply_of_graphs(struct ct_beyond *beyond)
{
    CUdevice device;
    if (CT_NEXT(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return NULL;
    ct_beyond_hold(beyond);
    struct ct_supply *supply = ct_supply_of(beyond, NULL, device);
    if (!supply)
        supply = ct_supply_make(beyond, NULL, device);
    ct_beyond_let_go(beyond);
    return supply;
}

/* A graph that was launched before may still have its memory, and has it once. All that were launched since nothing was
 * reserved have no more together than if each had all of its own. */
static uint64_t may_grow(struct ct_memory *memory, const struct ct_supply *supply, struct ct_holding *graph)
{
    struct ct_beyond *beyond = &memory->beyond;
    const uint64_t bytes = PAGES(graph->note) * CT_PAGE_STEP;
    ct_beyond_hold(beyond);
    if (!supply->booked_bytes && !supply->pending_bytes) {
        beyond->graphs_most_bytes = 0;
        beyond->graphs_turn = (beyond->graphs_turn + 1) & UINT32_MAX;
        beyond->graphs_turn += !beyond->graphs_turn;
    }
    const int is_counted = TURN(graph->note) == beyond->graphs_turn;
    if (!is_counted)
        beyond->graphs_most_bytes = plus(beyond->graphs_most_bytes, bytes);
    graph->note = beyond->graphs_turn << 32 | PAGES(graph->note);
    uint64_t most = beyond->graphs_most_bytes > supply->booked_bytes ? beyond->graphs_most_bytes - supply->booked_bytes : 0;
    ct_beyond_let_go(beyond);
    if (!is_counted)
        ct_holding_add(memory, graph);
    return most < bytes ? most : bytes;
}

int ct_graph_enter(CUgraphExec graph, struct ct_growth *growth)
{
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    *growth = (struct ct_growth){0};
    if (!memory || !atomic_load_explicit(&memory->beyond.graph_count, memory_order_relaxed) ||
        !ct_holding_find(memory, CT_HELD_GRAPH, (uintptr_t)graph, &holding))
        return 1;
    struct ct_supply *supply = supply_of_graphs(&memory->beyond);
    if (!supply)
        return 1;
    for (int tries = 0; tries < 2; tries++) {
        uint64_t most = may_grow(memory, supply, &holding), least = holding.bytes < most ? holding.bytes : most;
        if (ct_supply_enter(memory, supply, most, least, growth))
            return 1;
        if (!ct_beyond_squeeze(memory)) /* what a moment ago was still in use may not be any more */
            break;
    }
    return 0;
}

/* The driver then has its memory before the first launch. */
int ct_graph_uploads(const struct ct_graph *sum, unsigned long long flags, struct ct_growth *growth)
{
    struct ct_memory *memory = ct_memory();
    *growth = (struct ct_growth){0};
    if (!memory || !sum->most_bytes || !(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        return 1;
    struct ct_supply *supply = supply_of_graphs(&memory->beyond);
    return !supply || ct_supply_enter(memory, supply, sum->most_bytes, sum->least_bytes, growth);
}

void ct_graph_leave(const struct ct_growth *growth, CUresult result)
{
    struct ct_memory *memory = growth->supply ? ct_memory() : NULL;
    if (memory)
        ct_supply_leave(memory, growth, result);
}

#define UPLOAD(symbol)                                                                                                 \
    CT_EXPORT CUresult symbol(CUgraphExec graph, CUstream stream)                                                      \
    {                                                                                                                  \
        struct ct_growth growth;                                                                                       \
        if (!ct_graph_enter(graph, &growth))                                                                           \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = CT_NEXT(symbol)(graph, stream);                                                              \
        ct_graph_leave(&growth, result);                                                                               \
        return ct_fault_seen(result);                                                                                  \
    }

UPLOAD(cuGraphUpload)
UPLOAD(cuGraphUpload_ptsz)

CT_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct ct_memory *memory = ct_memory();
    CUresult result = CT_NEXT(cuDeviceGraphMemTrim)(device);
    if (memory && result == CUDA_SUCCESS)
        ct_beyond_settle(memory, 0);
    return ct_fault_seen(result);
}

/* Fuzz test of graphs, explicit and captured: every node takes effect after its dependencies, and nothing is leaked. */
#include "softgpu_graph_calls.h"
#include "softgpu_server.h"

enum { NODES = 60, ROUNDS = 50, STREAMS = 3, CALLS = 15000, SLOTS = 8, LAUNCHES = 8 };

static uint64_t state = 88172645463325252u;
static CUcontext context;
static CUfunction timed;
static CUstream streams[STREAMS];
static int ended_objects; /* number of ended user objects */

static uint64_t rng(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* Host functions record the order in which they run; one thread runs all of them. */
struct run {
    int times;
    uint64_t at;
};
static uint64_t run_clock;
static int hosts_per_launch, runs_of_launch[LAUNCHES], overlapped;

static void record_run(void *data)
{
    struct run *run = data;
    run->times++;
    run->at = ++run_clock;
    /* Launches of one executable graph run one after another, whatever their streams are. */
    if (run->times >= LAUNCHES)
        return; /* called from random_calls_return(), which does not check the order */
    runs_of_launch[run->times]++;
    overlapped |= run->times > 1 && runs_of_launch[run->times - 1] != hosts_per_launch;
}

static void record_end(void *data)
{
    *(uint64_t *)data = ++run_clock;
}

static void count_end(void *data)
{
    (void)data;
    __atomic_fetch_add(&ended_objects, 1, __ATOMIC_RELAXED);
}

struct random_graph {
    CUgraph graph;
    CUgraphNode nodes[NODES];
    uint8_t before[NODES][NODES];
    struct run run[NODES];
    int is_host[NODES], count;
};

static CUgraphNodeParams random_params(struct run *run, int *is_host, CUdeviceptr scratch)
{
    static uint64_t duration_ns;
    static void *values[] = {&duration_ns};
    *is_host = 0;
    duration_ns = 1 + rng(2) * rng(100000); /* so that the order does not occur by chance */
    switch (rng(6)) {
    case 0:
        return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_KERNEL,
                                   .kernel = {timed, 1, 1, 1, 32, 1, 1, 0, values, NULL, NULL, NULL}};
    case 1:
        return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EMPTY};
    case 2:
        return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {scratch, 0, 7, 4, 8, 1, NULL}};
    default:
        *is_host = 1;
        return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_HOST, .host = {record_run, run}};
    }
}

/* Edges lead from lower to higher indexes. Some are added later, and some edges and nodes are removed. */
static void make_random_graph(struct random_graph *random_graph, CUdeviceptr scratch)
{
    memset(random_graph, 0, sizeof *random_graph);
    random_graph->count = 1 + (int)rng(NODES);
    OK(cuGraphCreate(&random_graph->graph, 0));
    uint64_t density = 1 + rng(8);
    for (int i = 0; i < random_graph->count; i++) {
        CUgraphNode before[NODES];
        size_t count = 0;
        for (int k = 0; k < i; k++)
            if (rng(10) < density && rng(3) == 0) {
                before[count++] = random_graph->nodes[k];
                random_graph->before[i][k] = 1;
            }
        CUgraphNodeParams params = random_params(&random_graph->run[i], &random_graph->is_host[i], scratch);
        OK(cuGraphAddNode_v2(&random_graph->nodes[i], random_graph->graph, before, NULL, count, &params));
    }
    for (int n = 0; n < random_graph->count; n++) {
        int to = (int)rng((uint64_t)random_graph->count), from = to ? (int)rng((uint64_t)to) : 0;
        if (to == from)
            continue;
        CUresult expected = random_graph->before[to][from] ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        EXPECT_EQ(cuGraphAddDependencies(random_graph->graph, &random_graph->nodes[from], &random_graph->nodes[to], 1),
                  expected);
        if (rng(3) == 0)
            OK(cuGraphRemoveDependencies(random_graph->graph, &random_graph->nodes[from], &random_graph->nodes[to], 1));
        random_graph->before[to][from] = 1;
        size_t edges = 0;
        OK(cuGraphGetEdges(random_graph->graph, NULL, NULL, &edges));
        int listed = 0;
        CUgraphNode *from_nodes = calloc(edges + 1, sizeof *from_nodes);
        CUgraphNode *to_nodes = calloc(edges + 1, sizeof *to_nodes);
        OK(cuGraphGetEdges(random_graph->graph, from_nodes, to_nodes, &edges));
        for (size_t e = 0; e < edges; e++)
            listed |= from_nodes[e] == random_graph->nodes[from] && to_nodes[e] == random_graph->nodes[to];
        random_graph->before[to][from] = (uint8_t)listed;
        free(from_nodes);
        free(to_nodes);
    }
    if (rng(4) == 0) {
        int removed = (int)rng((uint64_t)random_graph->count);
        OK(cuGraphDestroyNode(random_graph->nodes[removed]));
        random_graph->is_host[removed] = 0;
        for (int i = 0; i < random_graph->count; i++)
            random_graph->before[i][removed] = random_graph->before[removed][i] = 0;
    }
}

/* Nodes that are not host functions pass their dependencies on. */
static void add_transitive(struct random_graph *random_graph)
{
    for (int i = 0; i < random_graph->count; i++)
        for (int k = 0; k < i; k++)
            for (int m = 0; m < k && random_graph->before[i][k]; m++)
                random_graph->before[i][m] |= random_graph->before[k][m];
}

static void count_hosts(const struct random_graph *random_graph)
{
    memset(runs_of_launch, 0, sizeof runs_of_launch);
    hosts_per_launch = 0;
    for (int i = 0; i < random_graph->count; i++)
        hosts_per_launch += random_graph->is_host[i];
}

static void expect_order(const struct random_graph *random_graph, int times, uint64_t end)
{
    EXPECT(!overlapped);
    for (int i = 0; i < random_graph->count; i++) {
        if (!random_graph->is_host[i])
            continue;
        EXPECT_EQ(random_graph->run[i].times, times);
        EXPECT(random_graph->run[i].at < end);
        for (int k = 0; k < i; k++)
            if (random_graph->is_host[k] && random_graph->before[i][k])
                EXPECT(random_graph->run[k].at < random_graph->run[i].at);
    }
}

static void explicit_graphs_run_in_order(CUdeviceptr scratch)
{
    static struct random_graph random_graph;
    for (int round = 0; round < ROUNDS; round++) {
        CUgraphExec exec;
        CUgraph graph, parent = NULL;
        CUgraphNode child;
        make_random_graph(&random_graph, scratch);
        add_transitive(&random_graph);
        CUuserObject object;
        OK(cuUserObjectCreate(&object, NULL, count_end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
        OK(cuGraphRetainUserObject(random_graph.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
        graph = random_graph.graph;
        if (rng(3) == 0) {
            CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = random_graph.graph}};
            OK(cuGraphCreate(&parent, 0));
            OK(cuGraphAddNode_v2(&child, parent, NULL, NULL, 0, &params));
            graph = parent;
        }
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        if (rng(2))
            OK(cuGraphUpload(exec, streams[rng(STREAMS)]));
        int times = 1 + (int)rng(3);
        uint64_t end = 0;
        count_hosts(&random_graph);
        for (int n = 0; n < times; n++) {
            CUstream stream = streams[rng(STREAMS)];
            OK(cuGraphLaunch(exec, stream));
            if (n == times - 1)
                OK(cuLaunchHostFunc(stream, record_end, &end));
            if (rng(3) == 0) {
                CUgraphExecUpdateResultInfo info;
                OK(cuGraphExecUpdate_v2(exec, graph, &info));
            }
        }
        if (rng(2))
            OK(cuCtxSynchronize());
        OK(cuGraphExecDestroy(exec)); /* with or without launches in flight */
        OK(cuGraphDestroy(random_graph.graph));
        if (parent)
            OK(cuGraphDestroy(parent));
        OK(cuCtxSynchronize());
        expect_order(&random_graph, times, end);
        EXPECT_EQ(__atomic_load_n(&ended_objects, __ATOMIC_RELAXED), round + 1);
    }
}

/* The same with captured streams: each keeps its order, and a wait orders one after another. */
static void captured_graphs_run_in_order(void)
{
    static struct random_graph random_graph;
    CUevent events[NODES];
    for (int i = 0; i < NODES; i++)
        OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    for (int round = 0; round < ROUNDS; round++) {
        int last[STREAMS] = {-1, -1, -1};
        CUgraphExec exec;
        memset(&random_graph, 0, sizeof random_graph);
        random_graph.count = 1 + (int)rng(NODES);
        OK(cuStreamBeginCapture_v2(streams[0], (int)rng(3)));
        OK(cuEventRecord(events[0], streams[0]));
        for (int s = 1; s < STREAMS; s++)
            OK(cuStreamWaitEvent(streams[s], events[0], 0));
        for (int i = 0; i < random_graph.count; i++) {
            int s = (int)rng(STREAMS);
            if (i && rng(3) == 0) { /* its event was recorded directly after it */
                int on = (int)rng((uint64_t)i);
                OK(cuStreamWaitEvent(streams[s], events[on], 0));
                random_graph.before[i][on] = 1;
            }
            if (rng(2)) {
                uint64_t duration_ns = rng(100000);
                void *values[] = {&duration_ns};
                OK(cuLaunchKernel(timed, 1, 1, 1, 32, 1, 1, 0, streams[s], values, NULL));
            }
            OK(cuLaunchHostFunc(streams[s], record_run, &random_graph.run[i]));
            OK(cuEventRecord(events[i], streams[s]));
            random_graph.is_host[i] = 1;
            if (last[s] >= 0)
                random_graph.before[i][last[s]] = 1;
            last[s] = i;
        }
        for (int s = 1; s < STREAMS; s++)
            if (last[s] >= 0)
                OK(cuStreamWaitEvent(streams[0], events[last[s]], 0));
        OK(cuStreamEndCapture(streams[0], &random_graph.graph));
        add_transitive(&random_graph);
        count_hosts(&random_graph);
        OK(cuGraphInstantiateWithFlags(&exec, random_graph.graph, 0));
        OK(cuGraphDestroy(random_graph.graph));
        OK(cuGraphLaunch(exec, streams[rng(STREAMS)]));
        OK(cuGraphLaunch(exec, streams[rng(STREAMS)]));
        OK(cuGraphExecDestroy(exec));
        OK(cuCtxSynchronize());
        expect_order(&random_graph, 2, UINT64_MAX);
    }
}

/* Handles for random_calls_return(), and the number of successful calls. */
struct handles {
    CUgraph graphs[SLOTS];
    CUgraphNode nodes[SLOTS];
    CUgraphExec execs[SLOTS];
    int launched, captured, updated;
};

static void call_randomly(struct handles *handles, CUdeviceptr scratch)
{
    static struct run run;
    CUgraph result;
    CUgraph *graph = &handles->graphs[rng(SLOTS)];
    CUgraphNode *node = &handles->nodes[rng(SLOTS)], *other = &handles->nodes[rng(SLOTS)];
    CUgraphExec *exec = &handles->execs[rng(SLOTS)];
    CUstream stream = streams[rng(STREAMS)];
    int is_host;
    CUgraphNodeParams params = random_params(&run, &is_host, scratch);
    if (rng(8) == 0)
        params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_GRAPH,
                                     .graph = {handles->graphs[rng(SLOTS)], (int)rng(3)}};
    CUgraphExecUpdateResultInfo info;
    switch (rng(16)) {
    case 0:
        cuGraphDestroy(*graph);
        cuGraphCreate(graph, 0);
        break;
    case 1:
        if (cuGraphClone(&result, handles->graphs[rng(SLOTS)]) == CUDA_SUCCESS) {
            cuGraphDestroy(*graph);
            *graph = result;
        }
        break;
    case 2:
        cuGraphDestroyNode(*node);
        break;
    case 3:
        cuGraphAddDependencies(*graph, node, other, 1);
        break;
    case 4:
        cuGraphRemoveDependencies(*graph, node, other, 1);
        break;
    case 5:
        cuGraphExecDestroy(*exec);
        cuGraphInstantiateWithFlags(exec, *graph, rng(3));
        break;
    case 6:
        handles->updated += cuGraphExecUpdate_v2(*exec, *graph, &info) == CUDA_SUCCESS;
        break;
    case 7:
        cuGraphNodeSetEnabled(*exec, *node, (unsigned)rng(2));
        break;
    case 8:
        handles->launched += cuGraphLaunch(*exec, stream) == CUDA_SUCCESS;
        break;
    case 9:
        cuStreamBeginCapture_v2(stream, (int)rng(4));
        cuMemsetD32Async(scratch, 5, 8, streams[rng(STREAMS)]);
        break;
    case 10:
        if (cuStreamEndCapture(stream, &result) == CUDA_SUCCESS) {
            handles->captured++;
            cuGraphDestroy(result);
        }
        break;
    case 11:
        cuStreamSynchronize(stream);
        break;
    default:
        cuGraphAddNode_v2(node, *graph, other, NULL, rng(2), &params);
    }
}

/* Every call with any handle, valid or stale, returns. */
static void random_calls_return(CUdeviceptr scratch)
{
    struct handles handles = {0};
    CUgraph result;
    for (int i = 0; i < CALLS; i++)
        call_randomly(&handles, scratch);
    for (int s = 0; s < STREAMS; s++)
        if (cuStreamEndCapture(streams[s], &result) == CUDA_SUCCESS)
            cuGraphDestroy(result);
    OK(cuCtxSynchronize());
    EXPECT(handles.launched > 50 && handles.captured > 50 && handles.updated > 10); /* enough calls succeeded */
    for (int i = 0; i < SLOTS; i++) {
        cuGraphExecDestroy(handles.execs[i]);
        cuGraphDestroy(handles.graphs[i]);
    }
}

int main(void)
{
    struct test_server server;
    CUmodule module;
    CUdeviceptr scratch;
    size_t free_bytes, total_bytes, after_bytes;
    test_server_start(&server, "a100");
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, "softgpu-image 1\nkernel t\n params 8\n duration_param 0\n"));
    OK(cuModuleGetFunction(&timed, module, "t"));
    for (int i = 0; i < STREAMS; i++)
        OK(cuStreamCreate(&streams[i], i == 2 ? 0 : CU_STREAM_NON_BLOCKING));
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    OK(cuMemAlloc_v2(&scratch, 4096));
    explicit_graphs_run_in_order(scratch);
    captured_graphs_run_in_order();
    random_calls_return(scratch);
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(scratch));
    OK(cuMemGetInfo_v2(&after_bytes, &total_bytes));
    EXPECT_EQ(after_bytes, free_bytes);
    EXPECT(!sg_effects_pending());
    OK(cuCtxDestroy_v2(context));
    test_server_stop(&server);
    return 0;
}

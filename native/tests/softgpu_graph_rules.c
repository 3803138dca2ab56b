/* Tests of graphs at their limits: longer than the ring, deeply nested, with memory nodes, and with several threads. */
#include "softgpu_graph_calls.h"
#include "softgpu_server.h"

#include <pthread.h>

enum { STREAMS = 3, LONG = 3000, CONCURRENT = 400 };

static CUcontext context;
static CUstream streams[STREAMS];
static int runs;

static void count_run(void *data)
{
    (void)data;
    runs++;
}

/* A graph longer than the ring, and one nested more deeply than a recursive implementation could handle. */
static void long_and_deeply_nested_graphs_run(CUdeviceptr scratch)
{
    CUgraph graph, inner = NULL;
    CUgraphNode last = NULL, node;
    CUgraphExec exec;
    OK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < LONG; i++) {
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {count_run, NULL}};
        if (i % 50)
            params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {scratch, 0, 7, 4, 8, 1, NULL}};
        OK(cuGraphAddNode_v2(&node, graph, &last, NULL, i % 3 && last, &params));
        last = node;
    }
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, streams[0]));
    OK(cuGraphLaunch(exec, streams[1]));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuCtxSynchronize());
    EXPECT_EQ(runs, 2 * (LONG / 50));
    for (int i = 0; i < 20000; i++) {
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {count_run, NULL}};
        OK(cuGraphCreate(&graph, 0));
        if (inner)
            params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_GRAPH,
                                         .graph = {inner, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
        OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
        inner = graph;
    }
    OK(cuGraphClone(&graph, inner));
    OK(cuGraphDestroy(inner));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(exec, streams[0]));
    OK(cuStreamSynchronize(streams[0]));
    OK(cuGraphExecDestroy(exec));
    EXPECT_EQ(runs, 2 * (LONG / 50) + 1);
}

/* Memory of graphs exists from the allocation node to the free node of each launch, and none remains at the end. */
static void memory_nodes_allocate_and_free_per_launch(void)
{
    CUdeviceptr out;
    cuuint64_t used = 1;
    OK(cuMemAlloc_v2(&out, 64));
    for (int round = 0; round < 20; round++) {
        CUgraph graph;
        CUgraphNode nodes[4];
        CUgraphExec exec, second;
        unsigned values[2] = {0, 0};
        CUgraphNodeParams params = {
            .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            .alloc = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                      .bytesize = 1 << 20}};
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddNode_v2(&nodes[0], graph, NULL, NULL, 0, &params));
        CUdeviceptr allocated = params.alloc.dptr;
        params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET,
                                     .memset = {allocated, 0, (unsigned)round, 4, 8, 1, NULL}};
        OK(cuGraphAddNode_v2(&nodes[1], graph, &nodes[0], NULL, 1, &params));
        params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                                     .memcpy.copyParams = {.srcMemoryType = 4, .srcDevice = allocated,
                                                           .dstMemoryType = 4,
                                                           .dstDevice = out, .WidthInBytes = 8, .Height = 1,
                                                           .Depth = 1}};
        OK(cuGraphAddNode_v2(&nodes[2], graph, &nodes[1], NULL, 1, &params));
        params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {allocated}};
        OK(cuGraphAddNode_v2(&nodes[3], graph, &nodes[2], NULL, 1, &params));
        EXPECT_EQ(cuGraphAddNode_v2(&nodes[3], graph, &nodes[2], NULL, 1, &params), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(cuGraphClone(&(CUgraph){NULL}, graph), CUDA_ERROR_NOT_SUPPORTED);
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        EXPECT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_INVALID_VALUE);
        for (int n = 0; n < 5; n++)
            OK(cuGraphLaunch(exec, streams[n % STREAMS]));
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        OK(cuCtxSynchronize());
        OK(cuMemcpyAsync((uintptr_t)values, out, sizeof values, streams[0]));
        EXPECT_EQ(values[0], round);
        OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
        EXPECT_EQ(used, 0);
    }
    OK(cuMemFree_v2(out));
}

/* One thread runs all host functions, so the order of the letters is the order in which they ran. */
static char letters[4 * LONG];
static int letter_count;

static void write_letter(void *data)
{
    letters[letter_count++] = (char)(uintptr_t)data;
}

static void *submit_concurrently(void *exec)
{
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < CONCURRENT; i++)
        OK(cuLaunchHostFunc(streams[0], write_letter, (void *)(uintptr_t)'b'));
    OK(cuGraphExecDestroy(exec)); /* the other thread may be inside a launch of it */
    return NULL;
}

/* A launch is one unit of its stream, even if it waits for space in the ring. */
static void launches_are_not_interleaved(CUdeviceptr scratch)
{
    CUgraph graph;
    CUgraphNode last = NULL, node;
    CUgraphExec exec;
    pthread_t thread;
    OK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < LONG; i++) {
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {scratch, 0, 7, 4, 8, 1, NULL}};
        if (i % 30 == 0 || i == LONG - 1)
            params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_HOST,
                                         .host = {write_letter, (void *)(uintptr_t)(i < LONG - 1 ? 'g' : 'G')}};
        OK(cuGraphAddNode_v2(&node, graph, &last, NULL, last != NULL, &params));
        last = node;
    }
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    EXPECT(pthread_create(&thread, NULL, submit_concurrently, exec) == 0);
    int launches = 0;
    while (launches < 3 && cuGraphLaunch(exec, streams[0]) == CUDA_SUCCESS)
        launches++;
    EXPECT(pthread_join(thread, NULL) == 0);
    OK(cuCtxSynchronize());
    EXPECT_EQ(letter_count, CONCURRENT + launches * (LONG / 30 + 1));
    int is_within = 0;
    for (int i = 0; i < letter_count; i++) {
        EXPECT(!is_within || letters[i] != 'b');
        is_within = letters[i] == 'g';
    }
}

/* Creating and destroying many graphs leaves neither streams nor events behind. */
static void destroyed_graphs_leave_no_streams_or_events(CUdeviceptr scratch)
{
    int remaining = 0;
    for (int round = 0; round < 300; round++) {
        CUgraph graph;
        CUgraphNode node;
        CUgraphExec exec;
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {scratch, 0, 7, 4, 8, 1, NULL}};
        OK(cuGraphCreate(&graph, 0));
        for (int i = 0; i < SG_BRANCHES; i++)
            OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, streams[0]));
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        OK(cuStreamSynchronize(streams[0]));
    }
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream; stream = sg_each(SG_STREAM, stream))
        remaining++;
    EXPECT(remaining < 4 * SG_BRANCHES);
    remaining = 0;
    for (CUevent event = sg_each(SG_EVENT, NULL); event; event = sg_each(SG_EVENT, event))
        remaining++;
    EXPECT_EQ(remaining, 0);
}

int main(void)
{
    struct test_server server;
    CUdeviceptr scratch;
    size_t free_bytes, total_bytes, after_bytes;
    test_server_start(&server, "a100");
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    for (int i = 0; i < STREAMS; i++)
        OK(cuStreamCreate(&streams[i], i == 2 ? 0 : CU_STREAM_NON_BLOCKING));
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    OK(cuMemAlloc_v2(&scratch, 4096));
    memory_nodes_allocate_and_free_per_launch();
    long_and_deeply_nested_graphs_run(scratch);
    launches_are_not_interleaved(scratch);
    destroyed_graphs_leave_no_streams_or_events(scratch);
    OK(cuMemFree_v2(scratch));
    OK(cuMemGetInfo_v2(&after_bytes, &total_bytes));
    EXPECT_EQ(after_bytes, free_bytes);
    EXPECT(!sg_effects_pending());
    OK(cuCtxDestroy_v2(context));
    test_server_stop(&server);
    return 0;
}

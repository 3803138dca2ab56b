/* A fake newer driver: its cuLaunchKernel has an unknown version, and it supports stream capture. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int

enum { GLOBAL = 0, RELAXED = 2 };

static int capturing, events, launches;
static _Thread_local int mode_of_thread = GLOBAL;
static char object;

static int launch_of_unknown_version(void)
{
    return 0;
}

API cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status);
API cuLaunchKernel(void *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g,
                   void *stream, void **params, void **extra);
API cuStreamBeginCapture_v2(void *stream, int mode);
API cuStreamEndCapture(void *stream, void **graph);
API cuStreamIsCapturing(void *stream, int *status);
API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
API cuGraphGetNodes(void *graph, void **nodes, size_t *count);
API cuGraphNodeGetType(void *node, int *type);
API cuGraphLaunch(void *exec, void *stream);
API cuGraphExecDestroy(void *exec);
API cuGetExportTable(const void **table, const void *id);
API cuCtxGetCurrent(void **context);
API cuEventCreate(void **event, unsigned flags);
API cuEventRecord(void *event, void *stream);
API cuEventQuery(void *event);
API cuEventElapsedTime(float *milliseconds, void *begin, void *end);
API cuStreamQuery(void *stream);
API cuThreadExchangeStreamCaptureMode(int *mode);
API cuTomorrow(void);

API cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
    (void)flags;
    *address = NULL;
    if (strcmp(symbol, "cuLaunchKernel") == 0)
        *address = version >= 99000 ? (void *)launch_of_unknown_version : (void *)cuLaunchKernel;
    if (strcmp(symbol, "cuTomorrow") == 0)
        *address = (void *)cuTomorrow;
    if (status)
        *status = *address ? 0 : 1;
    return *address ? 0 : 500;
}

API cuLaunchKernel(void *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g,
                   void *stream, void **params, void **extra)
{
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)stream, (void)params, (void)extra;
    launches++;
    return function ? 0 : 400;
}

API cuStreamBeginCapture_v2(void *stream, int mode)
{
    (void)stream, (void)mode;
    return capturing++ ? 401 : 0;
}

API cuStreamEndCapture(void *stream, void **graph)
{
    (void)stream;
    if (!capturing)
        return 401;
    capturing = 0;
    *graph = &object;
    return 0;
}

API cuStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    *status = capturing ? 1 : 0;
    return 0;
}

API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    (void)flags;
    *exec = (char *)graph + 1;
    return 0;
}

API cuGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    if (nodes)
        for (size_t i = 0; i < *count; i++)
            nodes[i] = graph;
    *count = 3;
    return 0;
}

API cuGraphNodeGetType(void *node, int *type)
{
    (void)node;
    *type = 5;
    return 0;
}

API cuGraphLaunch(void *exec, void *stream)
{
    (void)stream;
    return exec ? 0 : 400;
}

API cuGraphExecDestroy(void *exec)
{
    return exec ? 0 : 400;
}

API cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = &object;
    return 0;
}

API cuCtxGetCurrent(void **context)
{
    *context = &object;
    return 0;
}

/* An event created or recorded during a capture would invalidate it: this is what the test checks. */
API cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = &object + ++events % 2;
    return capturing ? 900 : 0;
}

API cuEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    if (capturing)
        fprintf(stderr, "an event was recorded into a capture\n");
    return capturing ? 900 : 0;
}

API cuEventQuery(void *event)
{
    (void)event;
    if (capturing)
        fprintf(stderr, "an event was queried during a capture\n");
    return capturing ? 900 : 0;
}

API cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = mode_of_thread;
    mode_of_thread = *mode;
    *mode = before;
    return 0;
}

/* In any other mode these would invalidate a capture that another thread begins. */
static void expect_relaxed(const char *call)
{
    if (mode_of_thread != RELAXED)
        fprintf(stderr, "%s in mode %d\n", call, mode_of_thread);
}

API cuEventElapsedTime(float *milliseconds, void *begin, void *end)
{
    (void)begin, (void)end;
    expect_relaxed("cuEventElapsedTime");
    *milliseconds = 0.5f;
    return 0;
}

API cuStreamQuery(void *stream)
{
    (void)stream;
    expect_relaxed("cuStreamQuery");
    return 600;
}

API cuTomorrow(void)
{
    return 1234;
}

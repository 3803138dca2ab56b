/* How does the player meet its driver? As any program: libcuda.so.1 by name, whoever stands behind it. */
#include "player/player.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NONBLOCKING = 1, CAPTURE_RELAXED = 2 };

/* What is only called while the stage is made. */
struct setting {
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*load)(void **, const void *);
    int (*function)(void **, void *, const char *);
    int (*stream)(void **, unsigned, int);
    int (*allocate)(uint64_t *, size_t);
    int (*allocate_host)(void **, size_t);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long);
};

static void *found(void *library, const char *name, int *missing)
{
    void *symbol = library ? dlsym(library, name) : NULL;
    *missing |= !symbol;
    return symbol;
}

/* POSIX lets a symbol's address be a function's; C wants it said by way of memory. */
#define FIND(where, name)                                      \
    do {                                                       \
        void *symbol_ = found(library, name, &missing);        \
        memcpy(&(where), &symbol_, sizeof symbol_);            \
    } while (0)

static const char *open_library(struct pl_driver *driver, struct setting *set)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int missing = 0;
    if (!library)
        return "libcuda.so.1 is not found";
    FIND(driver->launch, "cuLaunchKernel");
    FIND(driver->synchronize, "cuStreamSynchronize");
    FIND(driver->graph_launch, "cuGraphLaunch");
    FIND(driver->htod, "cuMemcpyHtoDAsync_v2");
    FIND(driver->dtoh, "cuMemcpyDtoHAsync_v2");
    FIND(driver->dtod, "cuMemcpyDtoDAsync_v2");
    FIND(driver->memset8, "cuMemsetD8Async");
    FIND(set->init, "cuInit");
    FIND(set->device_get, "cuDeviceGet");
    FIND(set->retain, "cuDevicePrimaryCtxRetain");
    FIND(set->set_current, "cuCtxSetCurrent");
    FIND(set->load, "cuModuleLoadData");
    FIND(set->function, "cuModuleGetFunction");
    FIND(set->stream, "cuStreamCreateWithPriority");
    FIND(set->allocate, "cuMemAlloc_v2");
    FIND(set->allocate_host, "cuMemAllocHost_v2");
    FIND(set->begin_capture, "cuStreamBeginCapture_v2");
    FIND(set->end_capture, "cuStreamEndCapture");
    FIND(set->instantiate, "cuGraphInstantiateWithFlags");
    return missing ? "libcuda.so.1 lacks a core function" : NULL;
}

int pl_launch(const struct pl_stage *stage, const struct pl_step *step, void *stream)
{
    const struct pl_driver *driver = &stage->driver;
    uint64_t amount = step->amount;
    void *parameters[] = {&amount};
    switch (step->work) {
    case PL_HTOD:
        return driver->htod(stage->device, stage->host, amount, stream);
    case PL_DTOH:
        return driver->dtoh(stage->host, stage->device, amount, stream);
    case PL_DTOD:
        return driver->dtod(stage->other, stage->device, amount, stream);
    case PL_MEMSET:
        return driver->memset8(stage->device, 0, amount, stream);
    case PL_KERNEL:
        break;
    }
    return driver->launch(stage->functions[step->function], step->blocks, 1, 1, step->threads, 1, 1, 0, stream, parameters, NULL);
}

static const char *open_context(const struct setting *set, int *failed)
{
    int device;
    void *context;
    if ((*failed = set->init(0)) || (*failed = set->device_get(&device, 0)) || (*failed = set->retain(&context, device)) ||
        (*failed = set->set_current(context)))
        return "the driver gives no context";
    return NULL;
}

static const char *load_functions(struct pl_stage *stage, const struct setting *set, const struct pl_script *script,
                                  const char *image, int *failed)
{
    void *module;
    if (script->name_count && (*failed = set->load(&module, image)))
        return "the kernel image does not load";
    for (size_t i = 0; i < script->name_count; i++) {
        if ((*failed = set->function(&stage->functions[i], module, script->names[i])))
            return "the image lacks a kernel of the script";
    }
    return NULL;
}

static const char *make_memory(struct pl_stage *stage, const struct setting *set, const struct pl_script *script, int *failed)
{
    void *host = NULL;
    if (!script->most_bytes)
        return NULL;
    if ((*failed = set->allocate(&stage->device, script->most_bytes)) ||
        (*failed = set->allocate(&stage->other, script->most_bytes)) ||
        (*failed = set->allocate_host(&host, script->most_bytes)))
        return "there is no memory for the script's copies";
    stage->host = (uint64_t)(uintptr_t)host;
    return NULL;
}

/* The request as one graph: every step follows the one before, whatever its stream. */
static const char *make_graph(struct pl_stage *stage, const struct setting *set, const struct pl_script *script, int *failed)
{
    void *graph, *stream = stage->streams[0];
    *failed = set->begin_capture(stream, CAPTURE_RELAXED);
    for (size_t i = 0; !*failed && i < script->count; i++)
        *failed = pl_launch(stage, &script->steps[i], stream);
    if (*failed || (*failed = set->end_capture(stream, &graph)) || (*failed = set->instantiate(&stage->graph, graph, 0)))
        return "the request cannot be captured as a graph";
    return NULL;
}

const char *pl_stage_open(struct pl_stage *stage, const struct pl_script *script, const char *image, int priority, int graph,
                          int *failed)
{
    struct setting set;
    memset(stage, 0, sizeof *stage);
    *failed = 0;
    const char *problem = open_library(&stage->driver, &set);
    if (!problem)
        problem = open_context(&set, failed);
    if (problem)
        return problem;
    stage->functions = calloc(script->name_count + 1, sizeof *stage->functions);
    stage->streams = calloc(script->stream_count, sizeof *stage->streams);
    if (!stage->functions || !stage->streams)
        return "there is no memory left";
    problem = load_functions(stage, &set, script, image, failed);
    for (size_t i = 0; !problem && i < script->stream_count; i++) {
        if ((*failed = set.stream(&stage->streams[i], NONBLOCKING, priority)))
            problem = "the driver makes no stream";
    }
    if (!problem)
        problem = make_memory(stage, &set, script, failed);
    if (!problem && graph)
        problem = make_graph(stage, &set, script, failed);
    return problem;
}

void pl_stage_free(struct pl_stage *stage)
{
    free(stage->functions);
    free(stage->streams);
    memset(stage, 0, sizeof *stage);
}

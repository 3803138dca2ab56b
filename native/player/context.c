/* Opens the driver as any program does, by the name libcuda.so.1, and creates what a script needs. */
#include "player/player.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NONBLOCKING = 1, CAPTURE_RELAXED = 2 };

/* Functions that are only called while the context is created. */
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

/* POSIX permits a symbol's address to be a function's address; ISO C requires a copy of its bytes. */
#define FIND(where, name)                                                                                              \
    do {                                                                                                               \
        void *symbol_ = found(library, name, &missing);                                                                \
        memcpy(&(where), &symbol_, sizeof symbol_);                                                                    \
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

int pl_launch(const struct pl_context *context, const struct pl_step *step, void *stream)
{
    const struct pl_driver *driver = &context->driver;
    uint64_t amount = step->amount;
    void *parameters[] = {&amount};
    switch (step->work) {
    case PL_HTOD:
        return driver->htod(context->device, context->host, amount, stream);
    case PL_DTOH:
        return driver->dtoh(context->host, context->device, amount, stream);
    case PL_DTOD:
        return driver->dtod(context->other, context->device, amount, stream);
    case PL_MEMSET:
        return driver->memset8(context->device, 0, amount, stream);
    case PL_KERNEL:
        break;
    }
    return driver->launch(context->functions[step->function], step->blocks, 1, 1, step->threads, 1, 1, 0, stream,
                          parameters, NULL);
}

static const char *open_context(const struct setting *set, int *failed)
{
    int device;
    void *context;
    if ((*failed = set->init(0)) || (*failed = set->device_get(&device, 0)) ||
        (*failed = set->retain(&context, device)) ||
        (*failed = set->set_current(context)))
        return "the driver could not create a context";
    return NULL;
}

static const char *load_functions(struct pl_context *context, const struct setting *set, const struct pl_script *script,
                                  const char *image, int *failed)
{
    void *module;
    if (script->name_count && (*failed = set->load(&module, image)))
        return "the kernel image does not load";
    for (size_t i = 0; i < script->name_count; i++) {
        if ((*failed = set->function(&context->functions[i], module, script->names[i])))
            return "the image lacks a kernel of the script";
    }
    return NULL;
}

static const char *make_memory(struct pl_context *context, const struct setting *set, const struct pl_script *script,
                               int *failed)
{
    void *host = NULL;
    if (!script->max_bytes)
        return NULL;
    if ((*failed = set->allocate(&context->device, script->max_bytes)) ||
        (*failed = set->allocate(&context->other, script->max_bytes)) ||
        (*failed = set->allocate_host(&host, script->max_bytes)))
        return "there is no memory for the script's copies";
    context->host = (uint64_t)(uintptr_t)host;
    return NULL;
}

/* Captures the request as one graph, in which every step follows the previous one, whatever its stream. */
static const char *make_graph(struct pl_context *context, const struct setting *set, const struct pl_script *script,
                              int *failed)
{
    void *graph, *stream = context->streams[0];
    *failed = set->begin_capture(stream, CAPTURE_RELAXED);
    for (size_t i = 0; !*failed && i < script->count; i++)
        *failed = pl_launch(context, &script->steps[i], stream);
    if (*failed || (*failed = set->end_capture(stream, &graph)) ||
        (*failed = set->instantiate(&context->graph, graph, 0)))
        return "the request cannot be captured as a graph";
    return NULL;
}

const char *pl_context_open(struct pl_context *context, const struct pl_script *script, const char *image, int priority,
                            int graph,
                          int *failed)
{
    struct setting set;
    memset(context, 0, sizeof *context);
    *failed = 0;
    const char *problem = open_library(&context->driver, &set);
    if (!problem)
        problem = open_context(&set, failed);
    if (problem)
        return problem;
    context->functions = calloc(script->name_count + 1, sizeof *context->functions);
    context->streams = calloc(script->stream_count, sizeof *context->streams);
    if (!context->functions || !context->streams)
        return "there is no memory left";
    problem = load_functions(context, &set, script, image, failed);
    for (size_t i = 0; !problem && i < script->stream_count; i++) {
        if ((*failed = set.stream(&context->streams[i], NONBLOCKING, priority)))
            problem = "the driver makes no stream";
    }
    if (!problem)
        problem = make_memory(context, &set, script, failed);
    if (!problem && graph)
        problem = make_graph(context, &set, script, failed);
    return problem;
}

void pl_context_free(struct pl_context *context)
{
    free(context->functions);
    free(context->streams);
    memset(context, 0, sizeof *context);
}

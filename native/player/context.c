/* Opens the driver as any program does, by the name libcuda.so.1, and creates what a script needs. */
#include "player/player.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NONBLOCKING = 1, CAPTURE_RELAXED = 2 };

/* Functions that are only called while the context is created. */
struct setup_calls {
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

static void *find_symbol(void *library, const char *name, int *missing)
{
    void *symbol = library ? dlsym(library, name) : NULL;
    *missing |= !symbol;
    return symbol;
}

/* POSIX permits a symbol's address to be a function's address; ISO C requires a copy of its bytes. */
#define FIND(where, name)                                                                                              \
    do {                                                                                                               \
        void *symbol_ = find_symbol(library, name, &missing);                                                          \
        memcpy(&(where), &symbol_, sizeof symbol_);                                                                    \
    } while (0)

static const char *open_library(struct pl_driver *driver, struct setup_calls *setup)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int missing = 0;
    if (!library)
        return "libcuda.so.1 was not found";
    FIND(driver->launch, "cuLaunchKernel");
    FIND(driver->synchronize, "cuStreamSynchronize");
    FIND(driver->graph_launch, "cuGraphLaunch");
    FIND(driver->htod, "cuMemcpyHtoDAsync_v2");
    FIND(driver->dtoh, "cuMemcpyDtoHAsync_v2");
    FIND(driver->dtod, "cuMemcpyDtoDAsync_v2");
    FIND(driver->memset8, "cuMemsetD8Async");
    FIND(setup->init, "cuInit");
    FIND(setup->device_get, "cuDeviceGet");
    FIND(setup->retain, "cuDevicePrimaryCtxRetain");
    FIND(setup->set_current, "cuCtxSetCurrent");
    FIND(setup->load, "cuModuleLoadData");
    FIND(setup->function, "cuModuleGetFunction");
    FIND(setup->stream, "cuStreamCreateWithPriority");
    FIND(setup->allocate, "cuMemAlloc_v2");
    FIND(setup->allocate_host, "cuMemAllocHost_v2");
    FIND(setup->begin_capture, "cuStreamBeginCapture_v2");
    FIND(setup->end_capture, "cuStreamEndCapture");
    FIND(setup->instantiate, "cuGraphInstantiateWithFlags");
    return missing ? "libcuda.so.1 lacks a required function" : NULL;
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

static const char *open_context(const struct setup_calls *setup, int *error)
{
    int device;
    void *context;
    if ((*error = setup->init(0)) || (*error = setup->device_get(&device, 0)) ||
        (*error = setup->retain(&context, device)) ||
        (*error = setup->set_current(context)))
        return "the driver could not create a context";
    return NULL;
}

static const char *load_functions(struct pl_context *context, const struct setup_calls *setup,
                                  const struct pl_script *script,
                                  const char *image, int *error)
{
    void *module;
    if (script->name_count && (*error = setup->load(&module, image)))
        return "the driver could not load the kernel image";
    for (size_t i = 0; i < script->name_count; i++) {
        if ((*error = setup->function(&context->functions[i], module, script->names[i])))
            return "the image lacks a kernel of the script";
    }
    return NULL;
}

static const char *make_memory(struct pl_context *context, const struct setup_calls *setup,
                               const struct pl_script *script,
                               int *error)
{
    void *host = NULL;
    if (!script->max_bytes)
        return NULL;
    if ((*error = setup->allocate(&context->device, script->max_bytes)) ||
        (*error = setup->allocate(&context->other, script->max_bytes)) ||
        (*error = setup->allocate_host(&host, script->max_bytes)))
        return "the driver could not allocate memory for the script's copies";
    context->host = (uint64_t)(uintptr_t)host;
    return NULL;
}

/* Captures the request as one graph, in which every step follows the previous one, whatever its stream. */
static const char *make_graph(struct pl_context *context, const struct setup_calls *setup,
                              const struct pl_script *script,
                              int *error)
{
    void *graph, *stream = context->streams[0];
    *error = setup->begin_capture(stream, CAPTURE_RELAXED);
    for (size_t i = 0; !*error && i < script->count; i++)
        *error = pl_launch(context, &script->steps[i], stream);
    if (*error || (*error = setup->end_capture(stream, &graph)) ||
        (*error = setup->instantiate(&context->graph, graph, 0)))
        return "the request cannot be captured as a graph";
    return NULL;
}

const char *pl_context_open(struct pl_context *context, const struct pl_script *script, const char *image, int priority,
                            int graph,
                          int *error)
{
    struct setup_calls setup;
    memset(context, 0, sizeof *context);
    *error = 0;
    const char *problem = open_library(&context->driver, &setup);
    if (!problem)
        problem = open_context(&setup, error);
    if (problem)
        return problem;
    context->functions = calloc(script->name_count + 1, sizeof *context->functions);
    context->streams = calloc(script->stream_count, sizeof *context->streams);
    if (!context->functions || !context->streams)
        return "out of memory";
    problem = load_functions(context, &setup, script, image, error);
    for (size_t i = 0; !problem && i < script->stream_count; i++) {
        if ((*error = setup.stream(&context->streams[i], NONBLOCKING, priority)))
            problem = "the driver could not create a stream";
    }
    if (!problem)
        problem = make_memory(context, &setup, script, error);
    if (!problem && graph)
        problem = make_graph(context, &setup, script, error);
    return problem;
}

void pl_context_free(struct pl_context *context)
{
    free(context->functions);
    free(context->streams);
    memset(context, 0, sizeof *context);
}

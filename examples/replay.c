/* Replays kernels as online requests or as a training loop, in C over the plain driver API; prints latency, throughput.
 *
 * cc -O2 -o replay examples/replay.c -ldl -lm
 * cotenant run --gpu soft:0 -- ./replay online --seconds 5 --rate 50 --kernels 20 --kernel-us 50 --gap-us 0 --json
 *
 * It finds libcuda.so.1 as any CUDA program does. Its kernels come from a soft GPU's text image. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct context *Context;
typedef struct module *Module;
typedef struct function *Function;
typedef struct stream *Stream;

static int (*init)(unsigned);
static int (*context_create)(Context *, unsigned, int);
static int (*module_load)(Module *, const void *);
static int (*get_function)(Function *, Module, const char *);
static int (*stream_create)(Stream *, unsigned, int);
static int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
                     void **);
static int (*synchronize)(Stream);

static const struct {
    const char *name;
    void *place;
} calls[] = {
    {"cuInit", &init},
    {"cuCtxCreate_v2", &context_create},
    {"cuModuleLoadData", &module_load},
    {"cuModuleGetFunction", &get_function},
    {"cuStreamCreateWithPriority", &stream_create},
    {"cuLaunchKernel", &launch},
    {"cuStreamSynchronize", &synchronize},
};

struct options {
    int is_training, json, kernels, blocks, priority;
    double seconds, rate, kernel_us, gap_us;
    uint64_t seed;
};

static void must(int result, const char *what)
{
    if (!result)
        return;
    fprintf(stderr, "replay: %s: the driver says %d\n", what, result);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pause_until(int64_t instant_ns)
{
    int64_t left_ns;
    while ((left_ns = instant_ns - now_ns()) > 0) {
        struct timespec pause = {0, left_ns - 100000};
        if (left_ns > 1000000000)
            pause = (struct timespec){(left_ns - 1) / 1000000000, 0};
        if (left_ns > 200000)
            nanosleep(&pause, NULL);
    }
}

/* Exponentially distributed, mean 1, from a seed. */
static double interval(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return -log(((double)(*seed >> 11) + 0.5) * 0x1p-53);
}

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "replay: %s\n", dlerror());
        exit(1);
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *address = dlsym(library, calls[i].name);
        must(!address, calls[i].name);
        memcpy(calls[i].place, &address, sizeof address);
    }
}

static void once(const struct options *o, Function function, Stream stream)
{
    uint64_t duration_ns = (uint64_t)(o->kernel_us * 1000);
    void *parameters[] = {&duration_ns};
    for (int i = 0; i < o->kernels; i++) {
        must(launch(function, (unsigned)o->blocks, 1, 1, 256, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
        if (o->gap_us > 0)
            pause_until(now_ns() + (int64_t)(o->gap_us * 1000));
    }
    must(synchronize(stream), "cuStreamSynchronize");
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print(const struct options *o, int64_t *durations_ns, size_t count, double seconds)
{
    double sum_ns = 0;
    qsort(durations_ns, count, sizeof *durations_ns, ascending);
    for (size_t i = 0; i < count; i++)
        sum_ns += (double)durations_ns[i];
    double at[3] = {0, 0, 0};
    static const double parts[3] = {0.5, 0.9, 0.99};
    for (int i = 0; count && i < 3; i++)
        at[i] = (double)durations_ns[(size_t)(parts[i] * (double)count)] / 1000;
    const char *format =
        o->json ? "{\"mode\": \"%s\", \"count\": %zu, \"per_s\": %.2f, \"kernels\": %zu, \"mean_us\": %.1f, "
                  "\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n"
                : "%s: %zu done, %.2f/s, %zu kernels\nlatency us: mean %.1f  p50 %.1f  p90 %.1f  p99 %.1f  max %.1f\n";
    printf(format, o->is_training ? "training" : "online", count, (double)count / seconds, count * (size_t)o->kernels,
           count ? sum_ns / (double)count / 1000 : 0, at[0], at[1], at[2],
           count ? (double)durations_ns[count - 1] / 1000 : 0);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.kernels = 20, .blocks = 80, .seconds = 5, .rate = 50, .kernel_us = 50, .seed = 1};
    o.is_training = argc > 1 && strcmp(argv[1], "training") == 0;
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--json") == 0) {
            o.json = 1;
            continue;
        }
        double value = i + 1 < argc ? atof(argv[++i]) : 0;
        if (strcmp(name, "--seconds") == 0)
            o.seconds = value;
        else if (strcmp(name, "--rate") == 0)
            o.rate = value;
        else if (strcmp(name, "--kernels") == 0)
            o.kernels = (int)value;
        else if (strcmp(name, "--kernel-us") == 0)
            o.kernel_us = value;
        else if (strcmp(name, "--gap-us") == 0)
            o.gap_us = value;
        else if (strcmp(name, "--blocks") == 0)
            o.blocks = (int)value;
        else if (strcmp(name, "--priority") == 0)
            o.priority = (int)value;
        else if (strcmp(name, "--seed") == 0)
            o.seed = (uint64_t)value + 1;
        else
            must(1, name);
    }
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    Context context;
    Module module;
    Function function;
    Stream stream;
    size_t count = 0, room = 1 << 20;
    int64_t *durations_ns = malloc(room * sizeof *durations_ns);
    uint64_t seed = o.seed;
    load();
    must(!durations_ns, "memory");
    must(init(0), "cuInit");
    must(context_create(&context, 0, 0), "cuCtxCreate");
    must(module_load(&module, "softgpu-image 1\nkernel replay\n params 8\n duration_param 0\n"), "cuModuleLoadData");
    must(get_function(&function, module, "replay"), "cuModuleGetFunction");
    must(stream_create(&stream, 1, o.priority), "cuStreamCreateWithPriority");
    int64_t start_ns = now_ns(), end_ns = start_ns + (int64_t)(o.seconds * 1e9);
    double arrival_ns = (double)start_ns;
    while (count < room) {
        int64_t before_ns = now_ns();
        if (!o.is_training) {
            arrival_ns += interval(&seed) / o.rate * 1e9;
            before_ns = (int64_t)arrival_ns;
        }
        if (before_ns >= end_ns && (count || !o.is_training)) /* of training at least one step */
            break;
        pause_until(before_ns);
        once(&o, function, stream);
        durations_ns[count++] = now_ns() - before_ns;
    }
    print(&o, durations_ns, count, (double)(now_ns() - start_ns) / 1e9);
    free(durations_ns);
    return 0;
}

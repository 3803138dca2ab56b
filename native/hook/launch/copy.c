/* Copies and memsets: work of a copy engine, identified by its direction and its size rounded up to a power of two. */
#include "hook/entry/parameters.h"
#include "hook/launch/work.h"

enum engine { HTOD, DTOH, DTOD, COPY, MEMSET, ENGINE_COUNT };

static const char *const NAMES[ENGINE_COUNT] = {"copy HtoD", "copy DtoH", "copy DtoD", "copy", "memset"};

#define UNSIZED 0
#define NO_STREAM CT_NO_STREAM

/* The handle of an engine is a number that is not a valid address of a driver function. */
static uintptr_t handle_of(enum engine engine)
{
    return (uintptr_t)engine + 1;
}

static void begin(struct ct_launch *launch, enum engine engine, size_t bytes, CUstream stream, int is_per_thread,
                  struct ct_shape *shape)
{
    uint64_t kilobytes = bytes >> 10; /* a grid dimension has 32 bits; anything below a KiB takes the same time */
    unsigned doublings = kilobytes > 1 ? 64 - (unsigned)__builtin_clzll(kilobytes - 1) : 0;
    uint32_t size = kilobytes ? UINT32_C(1) << (doublings < 31 ? doublings : 31) : 0; /* no larger copy succeeds */
    *shape = (struct ct_shape){{size, 1, 1}, {1, 1, 1}, 0};
    struct ct_session *session = ct_session();
    if (session && !ct_identity(session, handle_of(engine), shape))
        ct_function_note(session, handle_of(engine), CT_ENGINES, NAMES[engine]);
    ct_launch_begin(launch, engine == MEMSET ? CT_WORK_MEMSET : CT_WORK_COPY, handle_of(engine), shape, stream,
                    is_per_thread,
                    stream != NO_STREAM ? CT_MAY_TIME : CT_MAY_NOTHING);
    if (stream == NO_STREAM && engine != MEMSET)
        launch->sync_ticks = ct_sync_begin();
}

static CUresult end(struct ct_launch *launch, enum engine engine, const struct ct_shape *shape, CUresult result)
{
    ct_launch_end(launch, engine == MEMSET ? CT_WORK_MEMSET : CT_WORK_COPY, handle_of(engine), shape, result);
    if (!launch->session || launch->stream != NO_STREAM)
        return result;
    if (engine != MEMSET) /* only a copy to the host guarantees that it and all earlier work in the stream are
                           * complete */
        ct_sync_end(launch->sync_ticks, engine == DTOH ? CT_AWAITED_STREAM : CT_AWAITED_SOME, NULL,
                    launch->is_per_thread,
                    result);
    ct_timing_collect(launch->session);
    return result;
}

#define BODY(symbol, engine, bytes, stream, is_per_thread, ...)                                                        \
    CT_EXPORT CUresult symbol(CT_PARAMETERS(__VA_ARGS__));                                                             \
    CUresult symbol(CT_PARAMETERS(__VA_ARGS__))                                                                        \
    {                                                                                                                  \
        struct ct_launch launch;                                                                                       \
        struct ct_shape shape;                                                                                         \
        begin(&launch, engine, bytes, stream, is_per_thread, &shape);                                                  \
        return end(&launch, engine, &shape, CT_NEXT(symbol)(CT_ARGUMENTS(__VA_ARGS__)));                               \
    }

#undef ENGINE
#define ENGINE(symbol, suffix, engine, bytes, stream, ...)                                                             \
    BODY(symbol, engine, bytes, stream, 0, __VA_ARGS__) BODY(symbol##suffix, engine, bytes, stream, 1, __VA_ARGS__)
#define CT_EACH_HOOK(kind, symbol, ...)
#define CALLED(symbol, ...)
#include "hook/entry/hooked.def"

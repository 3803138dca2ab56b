/* Copies and memsets: work of an engine, told apart by direction and by size to the next power of two. */
#include "hook/parameters.h"
#include "hook/work.h"

enum engine { HTOD, DTOH, DTOD, COPY, MEMSET, ENGINE_COUNT };

static const char *const NAMES[ENGINE_COUNT] = {"copy HtoD", "copy DtoH", "copy DtoD", "copy", "memset"};

#define UNSIZED 0
#define NO_STREAM CT_NO_STREAM

/* An engine's handle is a number that no function of the driver has for an address. */
static uintptr_t handle_of(enum engine engine)
{
    return (uintptr_t)engine + 1;
}

static void begin(struct ct_piece *piece, enum engine engine, size_t bytes, CUstream stream, int is_twin,
                  struct ct_shape *shape)
{
    uint64_t kilobytes = bytes >> 10; /* a grid's side has 32 bits; what is below a KiB costs the same */
    unsigned doublings = kilobytes > 1 ? 64 - (unsigned)__builtin_clzll(kilobytes - 1) : 0;
    uint32_t size = kilobytes ? UINT32_C(1) << (doublings < 31 ? doublings : 31) : 0; /* no such copy succeeds */
    *shape = (struct ct_shape){{size, 1, 1}, {1, 1, 1}, 0};
    struct ct_session *session = ct_session();
    if (session && !ct_identity(session, handle_of(engine), shape))
        ct_function_note(session, handle_of(engine), CT_ENGINES, NAMES[engine]);
    ct_piece_begin(piece, engine == MEMSET ? CT_WORK_MEMSET : CT_WORK_COPY, handle_of(engine), shape, stream, is_twin,
                   stream != NO_STREAM);
    if (stream == NO_STREAM && engine != MEMSET)
        piece->rest_ticks = ct_rest_begin();
}

static CUresult end(struct ct_piece *piece, enum engine engine, const struct ct_shape *shape, CUresult result)
{
    ct_piece_end(piece, engine == MEMSET ? CT_WORK_MEMSET : CT_WORK_COPY, handle_of(engine), shape, result);
    if (!piece->session || piece->stream != NO_STREAM)
        return result;
    if (engine != MEMSET) /* only what is copied to the host is sure to be over, and what came before it */
        ct_rest_end(piece->rest_ticks, engine == DTOH ? CT_AWAITED_STREAM : CT_AWAITED_SOME, NULL, piece->is_twin,
                    result);
    ct_timing_harvest(piece->session);
    return result;
}

#define BODY(symbol, engine, bytes, stream, is_twin, ...)                                                              \
    CT_EXPORT CUresult symbol(CT_PARAMETERS(__VA_ARGS__));                                                             \
    CUresult symbol(CT_PARAMETERS(__VA_ARGS__))                                                                        \
    {                                                                                                                  \
        struct ct_piece piece;                                                                                         \
        struct ct_shape shape;                                                                                         \
        begin(&piece, engine, bytes, stream, is_twin, &shape);                                                         \
        return end(&piece, engine, &shape, CT_NEXT(symbol)(CT_ARGUMENTS(__VA_ARGS__)));                                \
    }

#undef ENGINE
#define ENGINE(symbol, twin, engine, bytes, stream, ...)                                                               \
    BODY(symbol, engine, bytes, stream, 0, __VA_ARGS__) BODY(symbol##twin, engine, bytes, stream, 1, __VA_ARGS__)
#define CT_EACH_HOOK(what, symbol, ...)
#define ASKED(symbol, ...)
#include "hook/hooked.def"

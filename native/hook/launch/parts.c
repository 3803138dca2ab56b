/* The parts of a launch: their requests at the gate, their parameters, and their order. */
#include "hook/launch/parts.h"

#include "gate/slice.h"
#include "hook/launch/partition.h"
#include "hook/slice/modules.h"
#include "hook/timing/pairs.h"

#include <string.h>

enum { PARAMETERS_MAX = 255, EXTRA_END = 0, EXTRA_BUFFER = 1, EXTRA_BYTES = 2, EXTRA_WORDS_MAX = 8 };
enum { PARTS_LEARNED = 3 };
_Static_assert((int)CT_GATE_WHOLE_TEXT + (int)CT_PTX_REASONS <= (int)CT_GATE_WHOLES, "each reason has a counter");

/* ---- requests ----------------------------------------------------------------------------------------------------- */

void ct_parts_prepare(struct ct_launch *launch)
{
    struct ct_session *session = launch->session;
    struct ct_slice *slice = load_relaxed(&launch->identity->function->slice);
    if (!slice || !ct_slice_is_possible(slice) || load_relaxed(&session->captures))
        return;
    if (!load_acquire(&slice->variant)) {
        ct_lock(session);
        const int must_ask = ct_gate_must_ask(&session->gateway->gate);
        ct_unlock(session);
        if (!must_ask || !ct_slice_variant(slice))
            return;
    }
    launch->slice = slice;
}

void ct_parts_request(struct ct_launch *launch, uint64_t blocks_left)
{
    const struct ct_kernel_time *kernel_time = launch->identity->kernel_time;
    struct ct_launch_request *request = &launch->request;
    if (kernel_time->blocks > CT_PTX_BLOCKS_MAX)
        return;
    if (kernel_time->parts.count >= PARTS_LEARNED) { /* each part takes its time to start and to end */
        const uint64_t clock_ppm = ct_gate_clock_ppm(&launch->session->gateway->gate);
        const uint64_t parts_ns = ct_duration_at_clock(ct_duration_expected(&kernel_time->parts), clock_ppm);
        request->expect_ns = parts_ns > request->expect_ns ? parts_ns : request->expect_ns;
        request->upper_ns = request->expect_ns > request->upper_ns ? request->expect_ns : request->upper_ns;
    }
    request->blocks = blocks_left;
    request->wave_blocks = kernel_time->slots;
    request->expect_ns = ct_slice_time(request->expect_ns, kernel_time->blocks, blocks_left, kernel_time->slots);
    request->upper_ns = ct_slice_time(request->upper_ns, kernel_time->blocks, blocks_left, kernel_time->slots);
}

/* Returns why a launch of a kernel was not cut. */
static unsigned whole_reason(const struct ct_launch *launch)
{
    const struct ct_slice *slice = load_relaxed(&launch->identity->function->slice);
    if (!slice)
        return CT_GATE_WHOLE_CODE;
    const int state = load_relaxed(&slice->state);
    if (slice->kernel->reason)
        return CT_GATE_WHOLE_TEXT + slice->kernel->reason;
    if (state == CT_SLICE_REFUSED)
        return CT_GATE_WHOLE_REFUSED;
    if (state == CT_SLICE_SLOWER)
        return CT_GATE_WHOLE_SLOWER;
    return launch->slice ? CT_GATE_WHOLE_WAVE : CT_GATE_WHOLE_LAUNCH;
}

void ct_parts_count_whole(struct ct_launch *launch, uint64_t now_ns)
{
    const struct ct_gate *gate = &launch->session->gateway->gate;
    if (!launch->is_counted || launch->is_rest || launch->work != CT_WORK_KERNEL)
        return;
    const uint64_t bound_ns = ct_slice_bound(gate, now_ns);
    if (bound_ns && launch->request.expect_ns > bound_ns)
        add_single_writer(&gate->mine->whole_launches[whole_reason(launch)], 1);
}

int ct_parts_measures_variant(struct ct_launch *launch)
{
    struct ct_session *session = launch->session;
    ct_lock(session);
    const struct ct_kernel_time *kernel_time = launch->identity->kernel_time;
    const int is_due = launch->pair && !launch->request.part_blocks && kernel_time->blocks <= CT_PTX_BLOCKS_MAX &&
                       kernel_time->duration.count >= PARTS_LEARNED && !kernel_time->varies &&
                       load_relaxed(&launch->slice->measured) < CT_SLICE_MEASUREMENTS;
    ct_unlock(session);
    if (is_due)
        launch->pair->is_variant = 1;
    return is_due;
}

/* Announces the next part, after the gate has admitted it. */
static void admit_next(struct ct_launch *launch, uint64_t blocks_left)
{
    struct ct_session *session = launch->session;
    struct ct_gateway *gateway = session->gateway;
    const uint64_t ticks = ct_clock_ticks(&session->clock);
    const int was_stuck = launch->is_stuck;
    launch->must_time = launch->must_watch = 0;
    if (!launch->request.expect_ns) /* earlier parts may have shown how long it takes */
        ct_timing_collect(session);
    ct_lock(session);
    const uint64_t now_ns = ct_gateway_now(session, ticks);
    ct_launch_predict(launch);
    launch->must_check = 0;
    ct_parts_request(launch, blocks_left);
    if (was_stuck) /* what is in flight may depend on the rest */
        launch->request.blocks = 0;
    if (ct_gate_must_ask(&gateway->gate)) {
        ct_gate_wait(session, launch, now_ns);
    } else {
        ct_gate_announce(&gateway->gate, &launch->request, now_ns);
        ct_launch_trace(launch, now_ns, CT_GATE_TOP);
        ct_unlock(session);
        launch->passed = CT_PASSED_ANNOUNCED;
    }
    if ((launch->must_time || load_relaxed(&session->time_next)) && !launch->request.sm_ppm) {
        ct_launch_time(launch);
        if (launch->pair)
            launch->pair->part_blocks = launch->request.part_blocks ? launch->request.part_blocks : blocks_left;
    }
    launch->ticks = ct_clock_ticks(&session->clock);
}

/* Ends a part that is followed by others. */
static void finish_part(struct ct_launch *launch)
{
    struct ct_gate_page *page = launch->session->gateway->gate.mine;
    fetch_add_relaxed(&page->parts, 1);
    fetch_add_relaxed(&page->cut_launches, !launch->is_rest);
    launch->is_rest = 1;
    if (launch->pair)
        ct_timing_end(launch->session, launch->pair, launch->identity, launch->ticks, launch->stream,
                      launch->is_per_thread);
    launch->pair = NULL;
    ct_launch_report(launch, CUDA_SUCCESS);
}

/* ---- parameters --------------------------------------------------------------------------------------------------- */

/* The parameters of a part: the program's, and the last one. */
struct parameters {
    struct ct_ptx_part part;
    void *values[PARAMETERS_MAX + 1];
    void *extra[5];
    size_t bytes;
    _Alignas(16) unsigned char buffer[CT_PTX_PARAMETER_BYTES_MAX];
};

/* Reads the list of a buffer and its size; returns 0 if it is of another form. */
static int unpack(void **extra, const void **buffer, size_t *bytes)
{
    *buffer = NULL;
    *bytes = 0;
    for (int i = 0; i < EXTRA_WORDS_MAX; i += 2) {
        const uintptr_t key = (uintptr_t)extra[i];
        if (key == EXTRA_END)
            return 1;
        if (key == EXTRA_BUFFER)
            *buffer = extra[i + 1];
        else if (key == EXTRA_BYTES && extra[i + 1])
            *bytes = *(const size_t *)extra[i + 1];
        else
            return 0;
    }
    return 0;
}

/* Returns 0 if the driver would refuse the program's parameters, or they are too many. */
static int add_part(struct parameters *parameters, const struct ct_ptx_kernel *kernel, const struct ct_parts_call *call)
{
    const void *buffer;
    if (call->params && call->extra)
        return 0;
    if (!call->extra) {
        if (kernel->parameter_count > PARAMETERS_MAX || (kernel->parameter_count && !call->params))
            return 0;
        if (kernel->parameter_count)
            memcpy(parameters->values, call->params, kernel->parameter_count * sizeof *call->params);
        parameters->values[kernel->parameter_count] = &parameters->part;
        return 1;
    }
    const size_t offset = (kernel->parameter_bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t) * sizeof(uint32_t);
    if (!unpack(call->extra, &buffer, &parameters->bytes) || parameters->bytes < kernel->parameter_bytes ||
        (!buffer && kernel->parameter_bytes) || offset + sizeof parameters->part > sizeof parameters->buffer)
        return 0;
    if (kernel->parameter_bytes)
        memcpy(parameters->buffer, buffer, kernel->parameter_bytes);
    memcpy(parameters->buffer + offset, &parameters->part, sizeof parameters->part);
    parameters->bytes = offset + sizeof parameters->part;
    parameters->extra[0] = (void *)(uintptr_t)EXTRA_BUFFER;
    parameters->extra[1] = parameters->buffer;
    parameters->extra[2] = (void *)(uintptr_t)EXTRA_BYTES;
    parameters->extra[3] = &parameters->bytes;
    parameters->extra[4] = (void *)(uintptr_t)EXTRA_END;
    return 1;
}

/* ---- launches ----------------------------------------------------------------------------------------------------- */

static CUresult pass_on(CUfunction function, const uint32_t grid[3],
                        const struct ct_shape *shape, CUstream stream, int is_per_thread, void **params, void **extra)
{
    const uint32_t *block = shape->block;
    return is_per_thread
        ? CT_NEXT(cuLaunchKernel_ptsz)(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                       shape->shared_bytes, stream, params, extra)
        : CT_NEXT(cuLaunchKernel)(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                  shape->shared_bytes, stream, params, extra);
}

/* Launches a function into the stream of the part of the SMs that the launch was admitted with. */
static CUresult launch_into(struct ct_launch *launch, const struct ct_parts_call *call, CUfunction function,
                            const uint32_t grid[3], const struct ct_shape *shape, void **params, void **extra)
{
    const CUstream target = ct_partition_stream(launch, call->stream);
    CUresult result = pass_on(function, grid, shape, target, call->is_per_thread, params, extra);
    if (target != call->stream && !ct_partition_leave(launch, result))
        result = pass_on(function, grid, shape, call->stream, call->is_per_thread, params, extra);
    return result;
}

static CUresult launch_part(struct ct_launch *launch, const struct ct_shape *shape, const struct ct_parts_call *call,
                            uint64_t first, uint64_t count)
{
    struct parameters parameters;
    const uint32_t grid[3] = {(uint32_t)count, 1, 1};
    const CUfunction variant = load_acquire(&launch->slice->variant);
    parameters.part = ct_ptx_part(shape->grid, (uint32_t)first);
    if (!add_part(&parameters, launch->slice->kernel, call))
        return CUDA_ERROR_INVALID_VALUE;
    return call->extra ? launch_into(launch, call, variant, grid, shape, NULL, parameters.extra)
                       : launch_into(launch, call, variant, grid, shape, parameters.values, NULL);
}

/* The driver refused the first part: launches the kernel itself, for which only that part was admitted. If this succeeds,
 * the variant is not used any more. */
static CUresult launch_whole(struct ct_launch *launch, const struct ct_shape *shape, const struct ct_parts_call *call)
{
    if (launch->pair) {
        launch->pair->is_variant = 0;
        launch->pair->part_blocks = 0;
    }
    const CUresult result = launch_into(launch, call, call->function, shape->grid, shape, call->params, call->extra);
    if (result == CUDA_SUCCESS)
        store_relaxed(&launch->slice->state, CT_SLICE_REFUSED);
    return result;
}

CUresult ct_parts_launch(struct ct_launch *launch, const struct ct_shape *shape, const struct ct_parts_call *call)
{
    const uint64_t blocks = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
    const int is_cut = launch->request.part_blocks != 0;
    uint64_t launched = 0;
    CUresult result = CUDA_SUCCESS;
    while (launched < blocks && result == CUDA_SUCCESS) {
        if (launched) {
            finish_part(launch);
            admit_next(launch, blocks - launched);
        }
        const uint64_t part = launch->request.part_blocks, left = blocks - launched, count = part && part < left ? part
            : left;
        result = launch_part(launch, shape, call, launched, count);
        if (result != CUDA_SUCCESS && !launched) {
            result = launch_whole(launch, shape, call);
            break;
        }
        launched += count;
    }
    if (launch->is_rest)
        fetch_add_relaxed(&launch->session->gateway->gate.mine->parts, 1);
    if (is_cut)
        ct_gate_end_parts(launch->session);
    return result;
}

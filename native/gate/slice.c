/* Parts of a launch. */
#include "gate/slice.h"

#include "gate/internal.h"

/* A tenant that was active within this time is expected to launch again, at an instant that no forecast may know. */
enum { EXPECTED_NS = 1000 * 1000 * 1000 };

static uint64_t waves_of(uint64_t blocks, uint64_t wave_blocks)
{
    return blocks / wave_blocks + (blocks % wave_blocks != 0);
}

uint64_t ct_slice_blocks(int64_t kernel_ns, uint64_t blocks, int64_t bound_ns, uint64_t wave_blocks)
{
    wave_blocks = max_u64(wave_blocks, 1);
    if (bound_ns <= 0 || blocks <= wave_blocks || (kernel_ns > 0 && kernel_ns <= bound_ns))
        return 0;
    if (kernel_ns <= 0)
        return wave_blocks;
    const uint64_t waves = waves_of(blocks, wave_blocks), length_ns = (uint64_t)kernel_ns;
    const uint64_t wave_ns = length_ns / waves + (length_ns % waves != 0);
    const uint64_t fitting = max_u64((uint64_t)bound_ns / wave_ns, 1);
    return fitting < waves ? fitting * wave_blocks : 0;
}

uint64_t ct_slice_time(uint64_t kernel_ns, uint64_t blocks, uint64_t other_blocks, uint64_t wave_blocks)
{
    wave_blocks = max_u64(wave_blocks, 1);
    const uint64_t waves = max_u64(waves_of(blocks, wave_blocks), 1), others = waves_of(other_blocks, wave_blocks);
    const uint64_t each_ns = kernel_ns / waves, rest_ns = kernel_ns % waves;
    if (!kernel_ns || !others)
        return 0;
    if (others > UINT32_MAX || each_ns > UINT32_MAX || rest_ns > UINT32_MAX) /* the exact product might overflow */
        return each_ns && others > UINT64_MAX / each_ns ? UINT64_MAX : max_u64(each_ns * others, 1);
    return max_u64(each_ns * others + rest_ns * others / waves, 1);
}

uint64_t ct_slice_bound(const struct ct_gate *gate, uint64_t now_ns)
{
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        const struct ct_gate_page *page = gate->higher[i].page;
        if (!load_acquire(&page->sequence) || load_acquire(&page->generation) != gate->higher[i].generation)
            continue;
        const uint64_t last_ns = max_u64(load_relaxed(&page->at_ns), plausible(load_relaxed(&page->busy_ns), now_ns));
        if (sat_sub_u64(now_ns, last_ns) <= EXPECTED_NS)
            return max_u64(min_u64(CT_GATE_DEPTH_NS, gate->bound_ns), 1); /* 0 would be no bound */
    }
    return 0;
}

void ct_slice_cut(struct ct_launch_request *request, uint64_t bound_ns)
{
    const uint64_t all_ns = min_u64(request->expect_ns, CT_GATE_HORIZON_NS);
    const uint64_t all = request->part_blocks ? request->part_blocks : request->blocks;
    const uint64_t part = ct_slice_blocks((int64_t)all_ns, all, (int64_t)min_u64(bound_ns, CT_GATE_HORIZON_NS),
                                          request->wave_blocks);
    if (!part)
        return;
    request->part_blocks = part;
    request->expect_ns = ct_slice_time(all_ns, all, part, request->wave_blocks);
    request->upper_ns =
        ct_slice_time(min_u64(request->upper_ns, CT_GATE_HORIZON_NS), all, part, request->wave_blocks);
    request->low_ns = request->high_ns = 1; /* the host launches the rest as soon as it may */
}

/* Values of special registers, which are set when a frame begins. */
#include "softgpu/ptx/vector.h"

static uint64_t special_value(const struct ptx_warp *w, enum special special, uint32_t thread)
{
    const struct ptx_block *block = w->block;
    const struct ptx_run *run = block->run;
    const struct sg_ptx_launch *launch = run->launch;
    uint32_t linear = w->number * WARP + thread, x = launch->block[0], y = launch->block[1];
    switch (special) {
    case SPECIAL_TID_X:
        return linear % x;
    case SPECIAL_TID_Y:
        return linear / x % y;
    case SPECIAL_TID_Z:
        return linear / x / y;
    case SPECIAL_NTID_X: case SPECIAL_NTID_Y: case SPECIAL_NTID_Z:
        return launch->block[special - SPECIAL_NTID_X];
    case SPECIAL_CTAID_X: case SPECIAL_CTAID_Y: case SPECIAL_CTAID_Z:
        return block->index[special - SPECIAL_CTAID_X];
    case SPECIAL_NCTAID_X: case SPECIAL_NCTAID_Y: case SPECIAL_NCTAID_Z:
        return launch->grid[special - SPECIAL_NCTAID_X];
    case SPECIAL_LANEID:
        return thread;
    case SPECIAL_WARPID:
        return w->number;
    case SPECIAL_NWARPID:
        return block->warp_count;
    case SPECIAL_SMID:
        return launch->sm_count ? block->number % launch->sm_count : 0;
    case SPECIAL_NSMID:
        return launch->sm_count;
    case SPECIAL_GRIDID:
        return launch->grid_number;
    case SPECIAL_MASK_EQ:
        return ptx_bit[thread];
    case SPECIAL_MASK_LT:
        return ptx_bit[thread] - 1;
    case SPECIAL_MASK_LE:
        return ptx_bit[thread] | (ptx_bit[thread] - 1);
    case SPECIAL_MASK_GT:
        return ~(ptx_bit[thread] | (ptx_bit[thread] - 1));
    case SPECIAL_MASK_GE:
        return ~(ptx_bit[thread] - 1);
    case SPECIAL_TOTAL_SHARED:
        return block->shared_bytes;
    case SPECIAL_DYNAMIC_SHARED:
        return launch->dynamic_bytes;
    case SPECIAL_CLUSTER_X: case SPECIAL_CLUSTER_Y: case SPECIAL_CLUSTER_Z:
        return block->index[special - SPECIAL_CLUSTER_X] / run->cluster[special - SPECIAL_CLUSTER_X];
    case SPECIAL_CLUSTERS_X: case SPECIAL_CLUSTERS_Y: case SPECIAL_CLUSTERS_Z:
        return launch->grid[special - SPECIAL_CLUSTERS_X] / run->cluster[special - SPECIAL_CLUSTERS_X];
    case SPECIAL_IN_CLUSTER_X: case SPECIAL_IN_CLUSTER_Y: case SPECIAL_IN_CLUSTER_Z:
        return block->index[special - SPECIAL_IN_CLUSTER_X] % run->cluster[special - SPECIAL_IN_CLUSTER_X];
    case SPECIAL_CLUSTER_SIZE_X: case SPECIAL_CLUSTER_SIZE_Y: case SPECIAL_CLUSTER_SIZE_Z:
        return run->cluster[special - SPECIAL_CLUSTER_SIZE_X];
    case SPECIAL_CLUSTER_RANK:
        return block->rank;
    case SPECIAL_CLUSTER_BLOCKS:
        return run->cluster_blocks;
    case SPECIAL_IS_CLUSTER: /* read as a predicate: one bit per thread */
        return run->is_cluster ? UINT32_MAX : 0;
    case SPECIAL_WORKSPACE_LO:
        return (uint32_t)block->run->workspace;
    case SPECIAL_WORKSPACE_HI:
        return block->run->workspace >> 32;
    default:
        return 0;
    }
}

void ptx_frame_specials(struct ptx_warp *w, struct ptx_frame *frame)
{
    for (size_t k = 0; k < frame->function->special_count; k++) {
        const struct special_use *use = &frame->function->specials[k];
        for (uint32_t t = 0; t < WARP; t++) {
            uint64_t value = special_value(w, use->special, t);
            if (use->is_wide)
                ((uint64_t *)(frame->registers + use->slot))[t] = value & (use->special == SPECIAL_GRIDID ? UINT64_MAX : UINT32_MAX);
            else
                ((uint32_t *)(frame->registers + use->slot))[t] = (uint32_t)value;
        }
    }
}

/* Parts of a launch. A kernel whose blocks can be launched range by range need not occupy the device for its whole time:
 * between two parts another tenant's kernel gets the device.
 *
 * A wave is the number of blocks that the device runs at once. Blocks of one wave end together, so a part of less than a
 * wave would end no sooner and leave SMs idle: a wave is the shortest part. */
#ifndef COTENANT_GATE_SLICE_H
#define COTENANT_GATE_SLICE_H

#include "gate/gate.h"

/* Returns how many of the `blocks` remaining blocks to launch next, so that they are expected to end within `bound_ns`:
 * whole waves, at least one; 0: all of them. `kernel_ns` is the expected time of all of them; 0: unknown, and the next
 * part is one wave, from whose time the caller learns. A bound of 0 is none. `wave_blocks` 0 counts as 1. */
uint64_t ct_slice_blocks(int64_t kernel_ns, uint64_t blocks, int64_t bound_ns, uint64_t wave_blocks);

/* Returns how long `other_blocks` blocks of a kernel take, given the time of `blocks` of them: in proportion to the
 * waves. 0 stays 0 (unknown). */
uint64_t ct_slice_time(uint64_t kernel_ns, uint64_t blocks, uint64_t other_blocks, uint64_t wave_blocks);

/* Returns the bound of one part: none while no higher-priority tenant has launched or had work for a second, so that
 * kernels then run whole. */
uint64_t ct_slice_bound(const struct ct_gate *gate, uint64_t now_ns);

/* Reduces the request to its next part, if its kernel can be cut and is longer than the bound; a part is reduced
 * further. */
void ct_slice_cut(struct ct_launch_request *request, uint64_t bound_ns);

#endif

/* Kernels that spin until kernels of other devices run, as those of collectives do.
 *
 * Once all of its blocks are on the device, such a kernel adds one to a counter in memory that all of them share. It
 * spins until the counter has reached its value, then runs for its duration. The server keeps its blocks on the SMs and
 * the callback thread of this process reads the counter, with increasing intervals. */
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>

struct spin {
    struct sg_device *device;
    uint64_t slot;
    uint64_t address;
    uint32_t value;
    uint64_t duration_ns, limit_ns;
    uint64_t began_ns; /* when a block of it was first seen on the device; 0: none yet */
    uint64_t met_ns;   /* when the counter was first seen to have the value; 0: not yet */
    int is_counted;
};

static struct spin *spins;
static size_t count, capacity;

CUresult sg_spin_reserve(void)
{
    if (count == capacity) {
        size_t more = capacity ? capacity * 2 : 16;
        struct spin *larger = realloc(spins, more * sizeof *larger);
        if (!larger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        spins = larger;
        capacity = more;
    }
    return sg_callbacks_start();
}

void sg_spin_add(CUstream stream, const struct sg_kernel *kernel, const void **values, uint64_t duration_ns)
{
    struct spin added = {
        .device = stream->context->device, .slot = stream->slot, .duration_ns = duration_ns,
        .limit_ns = kernel->spin_limit_ns};
    memcpy(&added.address, values[kernel->spin_counter], sizeof added.address);
    memcpy(&added.value, values[kernel->spin_value], sizeof added.value);
    spins[count++] = added;
    sg_callbacks_wake();
}

/* Ask how far the kernel is, and end it if `ends`. */
static enum sg_spin_progress progress_of(const struct spin *spin, int ends)
{
    struct sg_request request = {.kind = SG_SPIN, .a = spin->slot, .b = (uint64_t)ends};
    struct sg_reply reply;
    if (sg_call(&spin->device->connection, &request, &reply) < 0 || reply.result != CT_DEVICE_OK)
        return SG_SPIN_ENDED;
    return (enum sg_spin_progress)reply.a;
}

/* Return whether the kernel has ended. */
static int follow(struct spin *spin, uint64_t now_ns)
{
    uint32_t *counter = (uint32_t *)(uintptr_t)spin->address;
    if (sg_connection_status(&spin->device->connection) != CUDA_SUCCESS)
        return 1;
    enum sg_spin_progress progress = progress_of(spin, spin->met_ns && now_ns - spin->met_ns >= spin->duration_ns);
    if (progress == SG_SPIN_ENDED)
        return 1;
    if (progress != SG_SPIN_WAITING && !spin->began_ns)
        spin->began_ns = now_ns;
    if (!spin->is_counted && progress == SG_SPIN_RUNNING) {
        if (spin->address % sizeof *counter || !sg_memory_allows(spin->device, spin->address, sizeof *counter, 1)) {
            sg_kernel_fault(&spin->device->connection, CUDA_ERROR_ILLEGAL_ADDRESS);
            return 1;
        }
        __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
        spin->is_counted = 1;
    }
    /* By the sign of the difference, so that the counter may wrap. Memory that was freed cannot change any more. */
    if (spin->is_counted && !spin->met_ns && sg_memory_allows(spin->device, spin->address, sizeof *counter, 0) &&
        (int32_t)(__atomic_load_n(counter, __ATOMIC_ACQUIRE) - spin->value) >= 0)
        spin->met_ns = now_ns;
    if (spin->began_ns && !spin->met_ns && now_ns - spin->began_ns >= spin->limit_ns) {
        sg_kernel_fault(&spin->device->connection, CUDA_ERROR_LAUNCH_TIMEOUT);
        return 1;
    }
    return 0;
}

struct sg_device *sg_spins_follow(void)
{
    struct sg_device *polled = NULL;
    for (size_t i = 0; i < count; i++) {
        if (follow(&spins[i], sg_clock_ns())) {
            sg_wake(&spins[i].device->connection);
            memmove(&spins[i], &spins[i + 1], (--count - i) * sizeof *spins);
            i--;
        } else {
            polled = spins[i].device;
        }
    }
    return polled;
}

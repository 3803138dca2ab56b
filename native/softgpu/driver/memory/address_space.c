/* Address space for device memory: first-fit allocation from free extents. Freed pages are returned to the system. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Whole pages: an allocation that another process maps must not share a page with one that it must not access. */
enum { ALIGNMENT = 4096 };

/* Reserve several times the capacity, so that fragmentation does not refuse what the accounting allows. */
int sg_address_space_open(struct sg_address_space *space, uint64_t capacity_bytes)
{
    static const uint64_t factors[] = {16, 4, 2, 1};
    space->free = malloc(16 * sizeof *space->free);
    if (!space->free)
        return -1;
    space->free_capacity = 16;
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        uint64_t bytes = capacity_bytes * factors[i];
        void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED)
            continue;
        madvise(start, bytes, MADV_DONTDUMP);
        space->start = (uintptr_t)start;
        space->bytes = bytes;
        space->free[0] = (struct sg_extent){space->start, bytes};
        space->free_count = 1;
        return 0;
    }
    free(space->free);
    space->free = NULL;
    return -1;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint64_t sg_address_space_alloc(struct sg_address_space *space, uint64_t bytes)
{
    bytes = rounded(bytes);
    for (size_t i = 0; i < space->free_count; i++) {
        struct sg_extent *extent = &space->free[i];
        if (extent->bytes < bytes)
            continue;
        uint64_t start = extent->start;
        extent->start += bytes;
        extent->bytes -= bytes;
        if (!extent->bytes)
            memmove(extent, extent + 1, (--space->free_count - i) * sizeof *extent);
        return start;
    }
    return 0;
}

/* Discard the content of the extent's pages. */
static void discard_pages(const struct sg_address_space *space, uint64_t start, uint64_t bytes)
{
    madvise((void *)(uintptr_t)start, bytes, space->is_shared ? MADV_REMOVE : MADV_DONTNEED);
}

void sg_address_space_free(struct sg_address_space *space, uint64_t start, uint64_t bytes)
{
    size_t at = 0;
    bytes = rounded(bytes);
    discard_pages(space, start, bytes);
    while (at < space->free_count && space->free[at].start < start)
        at++;
    struct sg_extent *before = at ? &space->free[at - 1] : NULL;
    struct sg_extent *after = at < space->free_count ? &space->free[at] : NULL;
    int joins_before = before && before->start + before->bytes == start;
    int joins_after = after && start + bytes == after->start;
    if (joins_before && joins_after) {
        before->bytes += bytes + after->bytes;
        memmove(after, after + 1, (--space->free_count - at) * sizeof *after);
    } else if (joins_before) {
        before->bytes += bytes;
    } else if (joins_after) {
        after->start = start;
        after->bytes += bytes;
    } else {
        if (space->free_count == space->free_capacity) {
            struct sg_extent *larger = realloc(space->free, space->free_capacity * 2 * sizeof *larger);
            if (!larger)
                return; /* leak these addresses; there are enough */
            space->free = larger;
            space->free_capacity *= 2;
        }
        memmove(&space->free[at + 1], &space->free[at], (space->free_count++ - at) * sizeof *space->free);
        space->free[at] = (struct sg_extent){start, bytes};
    }
}

/* Address space for device memory: first fit over free extents, pages given back to the system when freed. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Whole pages: an allocation that another process comes to hold must not lie on a page with one that it may not. */
enum { ALIGNMENT = 4096 };

/* Addresses are plenty: several times the capacity, so that holes do not refuse what the books allow. */
int sg_arena_open(struct sg_arena *arena, uint64_t capacity_bytes)
{
    static const uint64_t generosity[] = {16, 4, 2, 1};
    arena->free = malloc(16 * sizeof *arena->free);
    if (!arena->free)
        return -1;
    arena->free_room = 16;
    for (size_t i = 0; i < sizeof generosity / sizeof generosity[0]; i++) {
        uint64_t bytes = capacity_bytes * generosity[i];
        void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED)
            continue;
        madvise(start, bytes, MADV_DONTDUMP);
        arena->start = (uintptr_t)start;
        arena->bytes = bytes;
        arena->free[0] = (struct sg_extent){arena->start, bytes};
        arena->free_count = 1;
        return 0;
    }
    free(arena->free);
    arena->free = NULL;
    return -1;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint64_t sg_arena_take(struct sg_arena *arena, uint64_t bytes)
{
    bytes = rounded(bytes);
    for (size_t i = 0; i < arena->free_count; i++) {
        struct sg_extent *extent = &arena->free[i];
        if (extent->bytes < bytes)
            continue;
        uint64_t start = extent->start;
        extent->start += bytes;
        extent->bytes -= bytes;
        if (!extent->bytes)
            memmove(extent, extent + 1, (--arena->free_count - i) * sizeof *extent);
        return start;
    }
    return 0;
}

/* What the extent's pages held is forgotten. */
static void forget(const struct sg_arena *arena, uint64_t start, uint64_t bytes)
{
    madvise((void *)(uintptr_t)start, bytes, arena->is_shared ? MADV_REMOVE : MADV_DONTNEED);
}

void sg_arena_give(struct sg_arena *arena, uint64_t start, uint64_t bytes)
{
    size_t at = 0;
    bytes = rounded(bytes);
    forget(arena, start, bytes);
    while (at < arena->free_count && arena->free[at].start < start)
        at++;
    struct sg_extent *before = at ? &arena->free[at - 1] : NULL;
    struct sg_extent *after = at < arena->free_count ? &arena->free[at] : NULL;
    int joins_before = before && before->start + before->bytes == start;
    int joins_after = after && start + bytes == after->start;
    if (joins_before && joins_after) {
        before->bytes += bytes + after->bytes;
        memmove(after, after + 1, (--arena->free_count - at) * sizeof *after);
    } else if (joins_before) {
        before->bytes += bytes;
    } else if (joins_after) {
        after->start = start;
        after->bytes += bytes;
    } else {
        if (arena->free_count == arena->free_room) {
            struct sg_extent *larger = realloc(arena->free, arena->free_room * 2 * sizeof *larger);
            if (!larger)
                return; /* these addresses are not used again; there are plenty */
            arena->free = larger;
            arena->free_room *= 2;
        }
        memmove(&arena->free[at + 1], &arena->free[at], (arena->free_count++ - at) * sizeof *arena->free);
        arena->free[at] = (struct sg_extent){start, bytes};
    }
}

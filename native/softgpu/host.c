/* Whether this process can reach memory that is not ours: the kernel is asked, following a pointer may end us. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

/* Since Linux 5.14; older headers lack them. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE = 4096, LINE_BYTES = 512 };

/* By the list of mappings, which kernels of any age have; without one nothing speaks against the address. */
static int is_listed(uint64_t start, uint64_t end, int is_write)
{
    char line[LINE_BYTES], rights[5];
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return 1;
    while (start < end && fgets(line, sizeof line, maps)) {
        uint64_t from, to;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, rights) != 3 || to <= start)
            continue;
        if (from > start || rights[is_write] != (is_write ? 'w' : 'r'))
            break;
        start = to;
    }
    fclose(maps);
    return start >= end;
}

int sg_host_reaches(uint64_t start, uint64_t bytes, int is_write)
{
    uint64_t first = start / PAGE * PAGE, end;
    if (!bytes || __builtin_add_overflow(start, bytes, &end))
        return !bytes;
    /* Touches the pages as the copy itself is about to, without changing them. */
    if (madvise((void *)(uintptr_t)first, end - first, is_write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
        return 1;
    /* EINVAL: an older kernel, too little right, or a device's memory, which only the list tells apart. */
    return errno == EINVAL && is_listed(start, end, is_write);
}

/* Checks whether this process can access memory of the program. The kernel is asked, because following an invalid
 * pointer would fault. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

/* Available since Linux 5.14; older headers lack them. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE = 4096, LINE_BYTES = 512 };

/* Check the list of mappings, which all kernels provide. If it is unavailable, assume that the address is valid. */
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

int sg_host_accessible(uint64_t start, uint64_t bytes, int is_write)
{
    uint64_t first = start / PAGE * PAGE, end;
    if (!bytes || __builtin_add_overflow(start, bytes, &end))
        return !bytes;
    /* Touch the pages without changing them. */
    if (madvise((void *)(uintptr_t)first, end - first, is_write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
        return 1;
    /* EINVAL: an older kernel, missing permission, or device memory. Only the list of mappings distinguishes them. */
    return errno == EINVAL && is_listed(start, end, is_write);
}

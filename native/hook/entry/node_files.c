/* Maps the files that the node passes to a tenant. The program may have closed an inherited descriptor and reused its
 * number, so every file is checked. */
#define _GNU_SOURCE
#include "hook/entry/node_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

void *ct_node_file_map_part(int descriptor, int protection, off_t at, size_t bytes)
{
    void *mapped = mmap(NULL, bytes, protection, MAP_SHARED, descriptor, at);
    if (mapped == MAP_FAILED)
        return NULL;
    madvise(mapped, bytes, MADV_DONTFORK); /* a forked child maps its own */
    return mapped;
}

/* Both descriptors must refer to the same file. */
static int map_both(int reading, int writing, ct_node_file_map *map, void *into, uint64_t slot)
{
    struct stat read_status, write_status;
    if (reading < 0 || writing < 0 || fstat(reading, &read_status) < 0 || fstat(writing, &write_status) < 0 ||
        !S_ISREG(read_status.st_mode) || read_status.st_dev != write_status.st_dev ||
            read_status.st_ino != write_status.st_ino || slot > UINT16_MAX)
        return 0;
    return map(into, reading, writing, (size_t)read_status.st_size, slot);
}

static int map_named(const char *records, const char *name, ct_node_file_map *map, void *into, uint64_t slot)
{
    char path[PATH_BYTES];
    int length = records ? snprintf(path, sizeof path, "%s/%s", records, name) : -1;
    if (length < 0 || (size_t)length >= sizeof path)
        return 0;
    int reading = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), writing = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    int is_mapped = map_both(reading, writing, map, into, slot);
    if (reading >= 0)
        close(reading);
    if (writing >= 0)
        close(writing);
    return is_mapped;
}

int ct_node_file_open(const char *variable, const char *records, const char *name, ct_node_file_map *map, void *into,
                  uint64_t slot)
{
    const char *descriptors = getenv(variable);
    int reading = -1, writing = -1;
    if (descriptors && sscanf(descriptors, "%d,%d", &reading, &writing) != 2)
        reading = writing = -1;
    return map_both(reading, writing, map, into, slot) || map_named(records, name, map, into, slot);
}

/* The file that a process keeps its counts in: made at its first work, grown entry by entry, never read by it. */
#define _GNU_SOURCE
#include "hook/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t MAGIC = UINT64_C(0x31434552544f43); /* "COTREC1" in little-endian bytes */

/* Attempts at a name: a process that forks and a library in a second namespace share pid or memory, not both.
 * READY divides both tables. */
enum { NAMES = 64, READY = 32 };

static int make_file(struct ct_record *record, const char *directory)
{
    char *path = record->path;
    for (int i = 0; i < NAMES; i++) {
        int length = snprintf(path, sizeof record->path, "%s/record-%ld-%d", directory, (long)getpid(), i);
        if (length < 0 || (size_t)length >= sizeof record->path)
            return -1;
        int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (descriptor >= 0 || errno != EEXIST)
            return descriptor;
    }
    return -1;
}

/* The file is opened anew each time: a program may close what it does not know and get the same number for a file of
 * its own, which we must not touch. */
static int allocate(const struct ct_record *record, off_t at, off_t bytes)
{
    struct stat found;
    int descriptor = open(record->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0)
        return 0;
    int is_there = fstat(descriptor, &found) == 0 && found.st_dev == record->device && found.st_ino == record->inode &&
                   fallocate(descriptor, 0, at, bytes) == 0;
    close(descriptor);
    return is_there;
}

static void fill(struct ct_record_header *header, int is_measuring)
{
    header->version = CT_RECORD_VERSION;
    header->header_bytes = CT_RECORD_HEADER_BYTES;
    header->kernel_bytes = sizeof(struct ct_record_kernel);
    header->interval_bytes = sizeof(struct ct_record_interval);
    header->kernel_limit = CT_RECORD_KERNELS;
    header->interval_limit = CT_RECORD_INTERVALS;
    header->pid = (uint32_t)getpid();
    header->is_measuring = (uint32_t)is_measuring;
    atomic_store_explicit(&header->magic, MAGIC, memory_order_release); /* from here on it is a record */
}

int ct_record_open(struct ct_record *record, const char *directory, int is_measuring)
{
    struct stat made;
    int descriptor = make_file(record, directory);
    if (descriptor < 0)
        return 0;
    if (fstat(descriptor, &made) == 0 && ftruncate(descriptor, CT_RECORD_BYTES) == 0) {
        record->device = made.st_dev;
        record->inode = made.st_ino;
        record->header = mmap(NULL, CT_RECORD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    }
    close(descriptor);
    if (!record->header || record->header == MAP_FAILED)
        return 0;
    /* A forked child must not count in our name; it makes a file of its own. */
    if (madvise(record->header, CT_RECORD_BYTES, MADV_DONTFORK) < 0 || !allocate(record, 0, CT_RECORD_HEADER_BYTES)) {
        munmap(record->header, CT_RECORD_BYTES);
        return 0;
    }
    fill(record->header, is_measuring);
    return 1;
}

/* Whether entry `number` of a table has its memory; some are made ready at a time, for a file system takes a while. */
static int is_ready(const struct ct_record *record, uint32_t *ready, uint32_t number, uint32_t limit, off_t table,
                    off_t entry)
{
    if (number >= limit)
        return 0;
    if (number >= *ready && allocate(record, table + (off_t)*ready * entry, READY * entry))
        *ready += READY;
    return number < *ready;
}

struct ct_record_kernel *ct_record_kernel(struct ct_record *record, uint32_t *number)
{
    struct ct_record_kernel *kernels = (void *)((char *)record->header + CT_RECORD_KERNELS_AT);
    *number = atomic_load_explicit(&record->header->kernels, memory_order_relaxed);
    int is_there = is_ready(record, &record->kernels_ready, *number, CT_RECORD_KERNELS, CT_RECORD_KERNELS_AT,
                            sizeof *kernels);
    return is_there ? &kernels[*number] : NULL;
}

struct ct_record_interval *ct_record_interval(struct ct_record *record)
{
    struct ct_record_interval *intervals = (void *)((char *)record->header + CT_RECORD_INTERVALS_AT);
    uint32_t number = atomic_load_explicit(&record->header->intervals, memory_order_relaxed);
    int is_there = is_ready(record, &record->intervals_ready, number, CT_RECORD_INTERVALS, CT_RECORD_INTERVALS_AT,
                            sizeof *intervals);
    return is_there ? &intervals[number] : NULL;
}

void ct_record_publish_kernel(struct ct_record *record)
{
    atomic_fetch_add_explicit(&record->header->kernels, 1, memory_order_release);
}

void ct_record_publish_interval(struct ct_record *record)
{
    atomic_fetch_add_explicit(&record->header->intervals, 1, memory_order_release);
}

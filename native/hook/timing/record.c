/* The record of a process: created at its first GPU call, extended entry by entry, and never read by the
 * process. */
#define _GNU_SOURCE
#include "hook/timing/record.h"

#include "hook/entry/sealed_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const uint64_t MAGIC = UINT64_C(0x31434552544f43); /* "COTREC1" in little-endian bytes */

/* Attempts to find a free file name: a forked process and a second copy of the library share the PID or the memory, but
 * not both. ENTRIES_PER_ALLOCATION
 * divides the sizes of both tables. */
enum { NAME_ATTEMPTS = 64, ENTRIES_PER_ALLOCATION = 32, INTERRUPTIONS = 16 };

static int make_file(struct ct_record *record, const char *directory)
{
    char *path = record->path;
    for (int i = 0; i < NAME_ATTEMPTS; i++) {
        int length = snprintf(path, sizeof record->path, "%s/record-%ld-%d", directory, (long)getpid(), i);
        if (length < 0 || (size_t)length >= sizeof record->path)
            return -1;
        int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (descriptor >= 0 || errno != EEXIST)
            return descriptor;
    }
    return -1;
}

/* The file is opened again each time: the program may have closed the descriptor and reused its number for another
 * file. */
static int allocate_once(const struct ct_record *record, off_t at, off_t bytes)
{
    struct stat status;
    int descriptor = open(record->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), result = EINTR;
    if (descriptor < 0)
        return 0;
    int is_ours = fstat(descriptor, &status) == 0 && status.st_dev == record->device && status.st_ino == record->inode;
    for (int i = 0; is_ours && result == EINTR && i < INTERRUPTIONS; i++)
        result = posix_fallocate(descriptor, at, bytes); /* falls back to writing if the file system does not support
                                                          * it */
    close(descriptor);
    return is_ours && !result;
}

/* Allocates the pages through the mapping, because no descriptor is kept. A kernel before 5.14 does not know the request;
 * there the pages are allocated at their first use, which fails only if the system has no memory left. */
static int populate(const struct ct_record *record, off_t at, off_t bytes)
{
    const off_t page = sysconf(_SC_PAGESIZE), start = at / page * page;
    return madvise((char *)record->header + start, (size_t)(at + bytes - start), MADV_POPULATE_WRITE) == 0 ||
           errno == EINVAL;
}

/* Called within a launch, with the lock held: preserves errno, and is not a cancellation point. */
int ct_record_reserve(const struct ct_record *record, off_t at, off_t bytes)
{
    if (!record->path[0] && !record->is_sealed)
        return 1; /* the record is in private memory */
    int saved_errno = errno, cancelled;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    int is_allocated = record->is_sealed ? populate(record, at, bytes) : allocate_once(record, at, bytes);
    pthread_setcancelstate(cancelled, &cancelled);
    errno = saved_errno;
    return is_allocated;
}

/* A file beyond the size limit of the process would raise SIGXFSZ. */
static int is_size_permitted(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY ||
                                                    limit.rlim_cur >= CT_RECORD_BYTES);
}

static void init_header(struct ct_record_header *header, int is_measuring)
{
    header->version = CT_RECORD_VERSION;
    header->header_bytes = CT_RECORD_HEADER_BYTES;
    header->kernel_bytes = sizeof(struct ct_record_kernel);
    header->interval_bytes = sizeof(struct ct_record_interval);
    header->kernel_limit = CT_RECORD_KERNELS;
    header->interval_limit = CT_RECORD_INTERVALS;
    header->pid = (uint32_t)getpid();
    header->is_measuring = (uint32_t)is_measuring;
    store_release(&header->magic, MAGIC); /* from here on it is a valid record */
}

int ct_record_open(struct ct_record *record, const char *directory, int is_measuring)
{
    struct stat status;
    int descriptor = is_size_permitted() ? make_file(record, directory) : -1;
    if (descriptor < 0)
        return 0;
    if (fstat(descriptor, &status) == 0 && ftruncate(descriptor, CT_RECORD_BYTES) == 0) {
        record->device = status.st_dev;
        record->inode = status.st_ino;
        record->header = mmap(NULL, CT_RECORD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    }
    close(descriptor);
    if (!record->header || record->header == MAP_FAILED)
        return 0;
    /* A forked child must not write to it; it creates its own. */
    if (madvise(record->header, CT_RECORD_BYTES, MADV_DONTFORK) < 0 ||
        !ct_record_reserve(record, 0, CT_RECORD_HEADER_BYTES)) {
        munmap(record->header, CT_RECORD_BYTES);
        return 0;
    }
    init_header(record->header, is_measuring);
    return 1;
}

int ct_record_in_sealed_memory(struct ct_record *record, int is_measuring)
{
    void *memory;
    int descriptor = is_size_permitted() ? ct_sealed_memory_make("cotenant-record", CT_RECORD_BYTES,
                                                                 CT_RECORD_HEADER_BYTES, &memory)
                                         : -1;
    if (descriptor < 0)
        return -1;
    madvise(memory, CT_RECORD_BYTES, MADV_DONTDUMP);
    record->path[0] = 0;
    record->is_sealed = 1;
    record->header = memory;
    init_header(record->header, is_measuring);
    return descriptor;
}

int ct_record_in_memory(struct ct_record *record, int is_measuring)
{
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    record->path[0] = 0;
    record->header = mmap(NULL, CT_RECORD_BYTES, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (record->header == MAP_FAILED)
        return 0;
    madvise(record->header, CT_RECORD_BYTES, MADV_DONTFORK);
    init_header(record->header, is_measuring);
    return 1;
}

void ct_record_discard(struct ct_record *record)
{
    if (record->path[0])
        unlink(record->path);
    store_release(&record->header->magic, 0); /* the receiver of its descriptor ignores it */
    munmap(record->header, CT_RECORD_BYTES);
    *record = (struct ct_record){0};
}

/* Returns whether entry `number` of a table has memory; several are allocated at a time, because the call is slow. */
static int is_ready(const struct ct_record *record, uint32_t *ready, uint32_t number, uint32_t limit, off_t table,
                    off_t entry)
{
    if (number >= limit)
        return 0;
    if (number >= *ready && ct_record_reserve(record, table + (off_t)*ready * entry, ENTRIES_PER_ALLOCATION * entry))
        *ready += ENTRIES_PER_ALLOCATION;
    return number < *ready;
}

struct ct_record_kernel *ct_record_kernel(struct ct_record *record, uint32_t *number)
{
    struct ct_record_kernel *kernels = (void *)((char *)record->header + CT_RECORD_KERNELS_AT);
    *number = load_relaxed(&record->header->kernels);
    int is_allocated = is_ready(record, &record->kernels_ready, *number, CT_RECORD_KERNELS, CT_RECORD_KERNELS_AT,
                                sizeof *kernels);
    return is_allocated ? &kernels[*number] : NULL;
}

struct ct_record_interval *ct_record_interval(struct ct_record *record)
{
    struct ct_record_interval *intervals = (void *)((char *)record->header + CT_RECORD_INTERVALS_AT);
    uint32_t number = load_relaxed(&record->header->intervals);
    int is_allocated = is_ready(record, &record->intervals_ready, number, CT_RECORD_INTERVALS, CT_RECORD_INTERVALS_AT,
                                sizeof *intervals);
    return is_allocated ? &intervals[number] : NULL;
}

void ct_record_publish_kernel(struct ct_record *record)
{
    fetch_add_release(&record->header->kernels, 1);
}

void ct_record_publish_interval(struct ct_record *record)
{
    fetch_add_release(&record->header->intervals, 1);
}

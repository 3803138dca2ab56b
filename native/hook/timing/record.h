/* The record of a process's GPU work: shared memory that outlives the process. Read by hook/record.py.
 *
 * It consists of a header page, a table of kernels, a table of intervals, and the ring buffer of trace.h. A count in
 * the header is incremented after its entry is complete. The numbers in an entry are updated without a lock, so a
 * reader may see one more in a bucket than in the count. All numbers are little-endian. */
#ifndef COTENANT_HOOK_TIMING_RECORD_H
#define COTENANT_HOOK_TIMING_RECORD_H

#include "atomics.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    CT_RECORD_VERSION = 2,
    CT_RECORD_HEADER_BYTES = 4096,
    CT_RECORD_KERNELS = 2048,
    CT_RECORD_INTERVALS = 8192,
    CT_RECORD_NAME_BYTES = 2048,
    CT_RECORD_UNKNOWN = 8, /* names of unknown addresses that are kept */
    CT_RECORD_UNKNOWN_BYTES = 64,
    CT_RECORD_HISTORY = 3,     /* number of launches in the key of an interval */
    CT_RECORD_OCTAVE_BITS = 4, /* 16 buckets per octave: a quantile is exact within 1/32 */
    CT_RECORD_TRACE_HEADER_BYTES = 4096,
    CT_RECORD_TRACE_ENTRIES = 65536,
    CT_RECORD_TRACE_ENTRY_BYTES = 32,
    CT_RECORD_BUCKETS = 32 + 31 * 16, /* exact below 32, then up to 2^36 ns; the last one also counts longer times */
};

enum ct_work { CT_WORK_KERNEL = 0, CT_WORK_GRAPH = 1, CT_WORK_COPY = 2, CT_WORK_MEMSET = 3 };

struct ct_histogram {
    _Atomic uint64_t count, total, lowest, highest;
    _Atomic uint32_t buckets[CT_RECORD_BUCKETS];
};

struct ct_record_kernel {
    char name[CT_RECORD_NAME_BYTES]; /* zero-terminated; a longer name is truncated */
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, work;
    uint32_t blocks_per_sm; /* 0: unknown */
    uint32_t is_bound;      /* its device time is the smallest upper bound, because its runs are too short to be
                             * measured */
    _Atomic uint64_t launches;
    struct ct_histogram device, gap;
};

struct ct_record_interval {
    uint32_t after[CT_RECORD_HISTORY]; /* kernel numbers plus one, the latest last; 0: before the first launch */
    uint32_t reserved;
    struct ct_histogram host;
};

struct ct_record_header {
    _Atomic uint64_t magic;
    uint32_t version, header_bytes;
    uint32_t kernel_bytes, interval_bytes;
    uint32_t kernel_limit, interval_limit;
    uint32_t pid, is_measuring;
    _Atomic uint32_t kernels, intervals;
    _Atomic uint64_t calls;          /* launches, copies and memsets */
    _Atomic uint64_t uncounted;      /* not attributed to a kernel, because a table was full or the lock was busy */
    _Atomic uint64_t captured;       /* launches into a capture, which are not executed */
    _Atomic uint64_t timed, untimed; /* launches with and without a pair of events */
    _Atomic uint64_t allocations, frees;
    _Atomic uint64_t export_tables;    /* private tables requested: calls through them are not observed */
    _Atomic uint64_t unknown;          /* unknown addresses looked up under a hooked name */
    _Atomic uint64_t span_ns, busy_ns; /* in device time, while measuring */
    char device[64];
    char unknown_names[CT_RECORD_UNKNOWN][CT_RECORD_UNKNOWN_BYTES];
};

_Static_assert(sizeof(struct ct_record_header) <= CT_RECORD_HEADER_BYTES, "the header is one page");

enum {
    CT_RECORD_KERNELS_AT = CT_RECORD_HEADER_BYTES,
    CT_RECORD_INTERVALS_AT = CT_RECORD_KERNELS_AT + CT_RECORD_KERNELS * sizeof(struct ct_record_kernel),
    CT_RECORD_TRACE_AT = CT_RECORD_INTERVALS_AT + CT_RECORD_INTERVALS * sizeof(struct ct_record_interval),
    CT_RECORD_BYTES =
        CT_RECORD_TRACE_AT + CT_RECORD_TRACE_HEADER_BYTES + CT_RECORD_TRACE_ENTRIES * CT_RECORD_TRACE_ENTRY_BYTES,
};

struct ct_record {
    char path[1024]; /* empty: it is not a file in a directory */
    int is_sealed;   /* it is a sealed memory file */
    dev_t device;
    ino_t inode;
    uint32_t kernels_ready, intervals_ready; /* entries whose memory is allocated */
    struct ct_record_header *header;
};

/* Creates a file in the directory; returns 0 on failure. Another process of the same user can truncate it, which would
 * end this one with SIGBUS; it is for tests and benchmarks. */
int ct_record_open(struct ct_record *record, const char *directory, int is_measuring);
/* The same in a sealed memory file; returns its descriptor, or -1. */
int ct_record_in_sealed_memory(struct ct_record *record, int is_measuring);
/* The same in private memory, which ends with the process. */
int ct_record_in_memory(struct ct_record *record, int is_measuring);
/* Removes a record that nothing was recorded in. */
void ct_record_discard(struct ct_record *record);

/* Allocates the memory of a part of the record; returns 0 if there is none. */
int ct_record_reserve(const struct ct_record *record, off_t at, off_t bytes);

/* Return the next free entry, with its memory allocated, because a full disk would otherwise kill the program later;
 * NULL if the table is full. It becomes visible when it is published. Not thread-safe. */
struct ct_record_kernel *ct_record_kernel(struct ct_record *record, uint32_t *number);
struct ct_record_interval *ct_record_interval(struct ct_record *record);
void ct_record_publish_kernel(struct ct_record *record);
void ct_record_publish_interval(struct ct_record *record);

static inline unsigned ct_bucket_of(uint64_t value)
{
    unsigned shift = 63 - (unsigned)__builtin_clzll(value | 1u << CT_RECORD_OCTAVE_BITS) - CT_RECORD_OCTAVE_BITS;
    unsigned bucket = (shift << CT_RECORD_OCTAVE_BITS) + (unsigned)(value >> shift);
    return bucket < CT_RECORD_BUCKETS ? bucket : CT_RECORD_BUCKETS - 1;
}

static inline void ct_histogram_add(struct ct_histogram *histogram, uint64_t value)
{
    uint64_t count = load_relaxed(&histogram->count);
    if (!count || value < load_relaxed(&histogram->lowest))
        store_relaxed(&histogram->lowest, value);
    if (value > load_relaxed(&histogram->highest))
        store_relaxed(&histogram->highest, value);
    add_single_writer(&histogram->buckets[ct_bucket_of(value)], 1);
    add_single_writer(&histogram->total, value);
    store_relaxed(&histogram->count, count + 1);
}

#endif

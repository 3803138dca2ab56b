/* What one process tells of its GPU work: a shared file that outlives it, whatever its end. Read by format/record.py.
 *
 * A header page, then kernels, then intervals, each with room for a fixed number, then the ring of trace.h. A count in the header grows after its
 * entry is whole; the numbers inside an entry are counted up without a lock between writer and reader, so a reader may
 * see one more in a bucket than in the count. All numbers are little-endian, as on every machine the driver runs on. */
#ifndef COTENANT_HOOK_RECORD_H
#define COTENANT_HOOK_RECORD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    CT_RECORD_VERSION = 1,
    CT_RECORD_HEADER_BYTES = 4096,
    CT_RECORD_KERNELS = 2048,
    CT_RECORD_INTERVALS = 8192,
    CT_RECORD_NAME_BYTES = 216,
    CT_RECORD_UNKNOWN = 8,       /* how many names of unknown addresses are kept */
    CT_RECORD_UNKNOWN_BYTES = 64,
    CT_RECORD_HISTORY = 3,       /* launches that an interval is keyed by */
    CT_RECORD_OCTAVE_BITS = 4,   /* 16 buckets per octave: a quantile is right within 1/32 */
    CT_RECORD_TRACE_HEADER_BYTES = 4096,
    CT_RECORD_TRACE_ENTRIES = 65536,
    CT_RECORD_TRACE_ENTRY_BYTES = 32,
    CT_RECORD_BUCKETS = 32 + 31 * 16, /* below 32 exactly, then to 2^36 ns; what is longer counts there */
};

enum ct_work { CT_WORK_KERNEL = 0, CT_WORK_GRAPH = 1, CT_WORK_COPY = 2, CT_WORK_MEMSET = 3 };

struct ct_histogram {
    _Atomic uint64_t count, total, lowest, highest;
    _Atomic uint32_t buckets[CT_RECORD_BUCKETS];
};

struct ct_record_kernel {
    char name[CT_RECORD_NAME_BYTES]; /* ends with a zero; a longer name is cut */
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, work;
    uint32_t blocks_per_sm; /* 0: unknown */
    uint32_t is_bound;      /* its device time is the least bound seen, of runs too short to be timed */
    _Atomic uint64_t launches;
    struct ct_histogram device, gap;
};

struct ct_record_interval {
    uint32_t after[CT_RECORD_HISTORY]; /* kernels by number plus one, the latest last; 0: before the first */
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
    _Atomic uint64_t calls;            /* launches, copies and memsets seen */
    _Atomic uint64_t unbooked;         /* seen, but not told apart: a table was full or a thread was in the way */
    _Atomic uint64_t captured;         /* launches into a capture: no work yet */
    _Atomic uint64_t timed, untimed;   /* launches with and without a pair of events */
    _Atomic uint64_t allocations, frees;
    _Atomic uint64_t export_tables;    /* private tables asked for: what goes through them is not seen */
    _Atomic uint64_t unknown;          /* addresses under a hooked name that are none of the driver's symbols */
    _Atomic uint64_t span_ns, busy_ns; /* by the device's own clock, while measuring */
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
    char path[1024];
    dev_t device;
    ino_t inode;
    uint32_t kernels_ready, intervals_ready; /* entries whose memory is there */
    struct ct_record_header *header;
};

/* Makes a file of our own in the directory; 0 if that cannot be. */
int ct_record_open(struct ct_record *record, const char *directory, int is_measuring);
/* The same in memory that nobody else sees and that ends with the process. */
int ct_record_in_memory(struct ct_record *record, int is_measuring);

/* Memory for a part of the file, for good; 0 if there is none. */
int ct_record_reserve(const struct ct_record *record, off_t at, off_t bytes);

/* The next free entry, its memory really there (a full disk would otherwise kill the program later); NULL if none is
 * left. It counts only once it is published. One thread at a time. */
struct ct_record_kernel *ct_record_kernel(struct ct_record *record, uint32_t *number);
struct ct_record_interval *ct_record_interval(struct ct_record *record);
void ct_record_publish_kernel(struct ct_record *record);
void ct_record_publish_interval(struct ct_record *record);

static inline unsigned ct_bucket_of(uint64_t value)
{
    if (value < 2u << CT_RECORD_OCTAVE_BITS)
        return (unsigned)value;
    unsigned shift = 63 - (unsigned)__builtin_clzll(value) - CT_RECORD_OCTAVE_BITS;
    unsigned bucket = (shift << CT_RECORD_OCTAVE_BITS) + (unsigned)(value >> shift);
    return bucket < CT_RECORD_BUCKETS ? bucket : CT_RECORD_BUCKETS - 1;
}

/* One writer at a time, so plain additions; atomic only because another process reads meanwhile. */
#define CT_ADD(place, more)                                                                                            \
    atomic_store_explicit(&(place), atomic_load_explicit(&(place), memory_order_relaxed) + (more), memory_order_relaxed)

static inline void ct_histogram_add(struct ct_histogram *histogram, uint64_t value)
{
    uint64_t count = atomic_load_explicit(&histogram->count, memory_order_relaxed);
    if (!count || value < atomic_load_explicit(&histogram->lowest, memory_order_relaxed))
        atomic_store_explicit(&histogram->lowest, value, memory_order_relaxed);
    if (value > atomic_load_explicit(&histogram->highest, memory_order_relaxed))
        atomic_store_explicit(&histogram->highest, value, memory_order_relaxed);
    CT_ADD(histogram->buckets[ct_bucket_of(value)], 1);
    CT_ADD(histogram->total, value);
    atomic_store_explicit(&histogram->count, count + 1, memory_order_relaxed);
}

#endif

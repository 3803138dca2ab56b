/* The trace of a process's GPU calls: a ring buffer at the end of its record, which is always written.
 *
 * There is one writer at a time, with the session's lock held; a reader in another process takes no lock. It reads the
 * count, the entries, and the count again, and ignores entries that may have been overwritten meanwhile; each entry
 * also contains its number. All instants are CLOCK_MONOTONIC nanoseconds. Read by hook/launch_ring.py. */
#ifndef COTENANT_HOOK_TIMING_TRACE_H
#define COTENANT_HOOK_TIMING_TRACE_H

#include "hook/timing/clock.h"
#include "hook/timing/record.h"

enum {
    CT_TRACE_VERSION = 1,
    CT_TRACE_ENTRY_WORDS = CT_RECORD_TRACE_ENTRY_BYTES / 8,
    CT_TRACE_STREAMS = 128, /* distinguished streams; further ones share the next number */
    CT_TRACE_SYNC_NS = 2000, /* a shorter call did not wait */
    CT_TRACE_SHORT_NS = 10 * 1000, /* reasons that change faster are merged */
    CT_TRACE_LONG_NS = 100 * 1000 * 1000, /* a long wait is traced this often */
};

enum ct_trace_kind {
    CT_TRACE_LAUNCH = 1, /* length: expected device time, 0: unknown; reason: why it passed */
    CT_TRACE_WAIT = 2,   /* part of the wait from the first request to the admission; reason: why it waited */
    CT_TRACE_SYNC = 3,   /* a call that waited for the device; length: its duration */
};

struct ct_trace_entry {
    uint64_t at_ns;
    uint64_t length_ns;
    uint32_t number; /* number of earlier entries, low half */
    uint32_t kernel; /* index in the record */
    uint32_t stream; /* by the order of first use; 0: the default stream */
    uint8_t kind, reason; /* enum ct_trace_kind, enum ct_gate_reason */
    uint16_t reserved;
};
_Static_assert(sizeof(struct ct_trace_entry) == CT_RECORD_TRACE_ENTRY_BYTES, "two entries to a cache line");

struct ct_trace_header {
    _Atomic uint64_t magic;
    uint32_t version, entry_bytes, entry_limit, reserved;
    _Atomic uint64_t written; /* total number of entries */
};

struct ct_trace {
    struct ct_trace_header *header; /* NULL: nothing is traced */
    _Atomic uint64_t (*entries)[CT_TRACE_ENTRY_WORDS]; /* struct ct_trace_entry each */
    uint64_t written, ready; /* entries written; entries whose memory is allocated, or UINT64_MAX once the ring is
                              * full */
    struct ct_instant instant;
    uint32_t stream_count;
    uint32_t last_number;
    uintptr_t last_stream;
    uintptr_t streams[CT_TRACE_STREAMS];
};

/* Opens the trace of this record; without memory nothing is traced. */
void ct_trace_open(struct ct_trace *trace, struct ct_record *record, const struct ct_clock *clock);

/* Rare operations, called with the lock held: allocate further entries, read the clock again, number a stream. */
int ct_trace_grow(struct ct_trace *trace, const struct ct_record *record);
uint64_t ct_trace_renew(struct ct_trace *trace, const struct ct_clock *clock, uint64_t ticks);
uint32_t ct_trace_find_stream(struct ct_trace *trace, uintptr_t stream);

/* Returns one key per stream: the default stream has several handles, and also represents CT_NO_STREAM. */
static inline uintptr_t ct_stream_key(const void *stream, int is_per_thread)
{
    const uintptr_t handle = (uintptr_t)stream;
    if (handle + 1 > 2) /* neither of 0, 1 and UINTPTR_MAX */
        return handle;
    return handle == 0 && is_per_thread ? 2 : 0;
}

/* Unlike that of ct_instant_ns(), the result may decrease: an earlier instant of another thread is kept. */
static inline uint64_t ct_trace_instant(struct ct_trace *trace, const struct ct_clock *clock, uint64_t ticks)
{
    uint64_t elapsed = ticks - trace->instant.ticks;
    if (__builtin_expect(elapsed >= trace->instant.fresh_ticks, 0))
        return ct_trace_renew(trace, clock, ticks);
    return trace->instant.ns + (elapsed * trace->instant.ns_per_tick >> 32);
}

static inline uint32_t ct_trace_stream(struct ct_trace *trace, uintptr_t stream)
{
    return __builtin_expect(stream == trace->last_stream, 1) ? trace->last_number : ct_trace_find_stream(trace, stream);
}

enum { CT_TRACE_NEAR = 8 }; /* entries ahead, four cache lines */

/* Composes the words of struct ct_trace_entry in registers: partial stores could not be forwarded to a load of the
 * whole word. */
static inline void ct_trace_put(struct ct_trace *trace, const struct ct_record *record, enum ct_trace_kind kind,
                                uint64_t at_ns, uint64_t length_ns, uint32_t kernel, uint32_t stream, uint8_t reason)
{
    struct ct_trace_header *header = trace->header;
    uint64_t number = trace->written;
    if (__builtin_expect(number == trace->ready, 0) && !ct_trace_grow(trace, record))
        return;
    /* A reader that sees a word of this entry also sees the count of the earlier ones. */
    _Atomic uint64_t *words = trace->entries[number % CT_RECORD_TRACE_ENTRIES];
    store_release(&words[0], at_ns);
    store_release(&words[1], length_ns);
    store_release(&words[2], (uint32_t)number | (uint64_t)kernel << 32);
    store_release(&words[3], stream | (uint64_t)kind << 32 | (uint64_t)reason << 40);
    /* The next acquisition of the lock waits until these stores have left the store buffer, so the next cache lines are
     * prefetched; behind the last entry nothing is, which is harmless. */
    __builtin_prefetch(words + CT_TRACE_NEAR * CT_TRACE_ENTRY_WORDS, 1);
    trace->written = number + 1;
    store_release(&header->written, number + 1);
}

/* Called with the lock held. */
static inline void ct_trace_launch(struct ct_trace *trace, const struct ct_record *record, uint64_t at_ns,
                                   uint32_t kernel, uintptr_t stream, uint64_t expect_ns, uint8_t reason)
{
    if (!trace->header)
        return;
    ct_trace_put(trace, record, CT_TRACE_LAUNCH, at_ns, expect_ns, kernel, ct_trace_stream(trace, stream), reason);
}

static inline void ct_trace_wait(struct ct_trace *trace, const struct ct_record *record, uint64_t since_ns,
                                 uint64_t until_ns, uint32_t kernel, uintptr_t stream, uint8_t reason)
{
    if (!trace->header || until_ns <= since_ns)
        return;
    ct_trace_put(trace, record, CT_TRACE_WAIT, since_ns, until_ns - since_ns, kernel, ct_trace_stream(trace, stream),
                 reason);
}

static inline void ct_trace_sync(struct ct_trace *trace, const struct ct_record *record, const struct ct_clock *clock,
                                 uint64_t from_ticks, uint64_t until_ticks)
{
    if (!trace->header)
        return;
    uint64_t until_ns = ct_trace_instant(trace, clock, until_ticks);
    uint64_t length_ns = ct_clock_between_ns(clock, from_ticks, until_ticks);
    ct_trace_put(trace, record, CT_TRACE_SYNC, until_ns - length_ns, length_ns, UINT32_MAX, 0, 0);
}

#endif

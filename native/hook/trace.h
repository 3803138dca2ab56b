/* What did this process ask of its device, and when? A ring at the end of its record, always written, read by anybody.
 *
 * One writer at a time, under the session's lock; the reader, in another process, waits for nobody. It reads the count,
 * the entries, and the count again: an entry that the second count may have overtaken is not believed, and each entry
 * carries its own number besides. All instants are CLOCK_MONOTONIC nanoseconds. Read by format/ring.py. */
#ifndef COTENANT_HOOK_TRACE_H
#define COTENANT_HOOK_TRACE_H

#include "hook/clock.h"
#include "hook/record.h"

enum {
    CT_TRACE_VERSION = 1,
    CT_TRACE_ENTRY_WORDS = CT_RECORD_TRACE_ENTRY_BYTES / 8,
    CT_TRACE_STREAMS = 128, /* told apart; later ones share the number after the last */
    CT_TRACE_SYNC_NS = 2000, /* a call that took less did not wait */
    CT_TRACE_SHORT_NS = 10 * 1000, /* reasons that change faster are not told apart */
    CT_TRACE_LONG_NS = 100 * 1000 * 1000, /* a wait that goes on is told of this often */
};

enum ct_trace_kind {
    CT_TRACE_LAUNCH = 1, /* length: device time expected, 0: unknown; reason: why it passed */
    CT_TRACE_WAIT = 2,   /* at the gate, a piece of the time from the first question to the pass; reason: why it waited */
    CT_TRACE_SYNC = 3,   /* a call that waited for the device; length: how long */
};

struct ct_trace_entry {
    uint64_t at_ns;
    uint64_t length_ns;
    uint32_t number; /* entries before it, its low half */
    uint32_t kernel; /* by its number in the record */
    uint32_t stream; /* by the order in which streams appeared; 0: the default one */
    uint8_t kind, reason; /* enum ct_trace_kind, enum ct_gate_reason */
    uint16_t reserved;
};
_Static_assert(sizeof(struct ct_trace_entry) == CT_RECORD_TRACE_ENTRY_BYTES, "two entries to a cache line");

struct ct_trace_header {
    _Atomic uint64_t magic;
    uint32_t version, entry_bytes, entry_limit, reserved;
    _Atomic uint64_t written; /* entries ever */
};

struct ct_trace {
    struct ct_trace_header *header; /* NULL: nothing is traced */
    _Atomic uint64_t (*entries)[CT_TRACE_ENTRY_WORDS]; /* struct ct_trace_entry each */
    uint64_t written, ready; /* entries there were; those that have memory, all of them once the ring is full */
    struct ct_instant instant;
    uint32_t stream_count;
    uint32_t last_number;
    uintptr_t last_stream;
    uintptr_t streams[CT_TRACE_STREAMS];
};

/* The ring of this record; without memory for it nothing is traced. */
void ct_trace_open(struct ct_trace *trace, struct ct_record *record, const struct ct_clock *clock);

/* Under the lock, what is rarely needed: memory for further entries, another look at the clock, a stream's number. */
int ct_trace_grow(struct ct_trace *trace, const struct ct_record *record);
uint64_t ct_trace_look(struct ct_trace *trace, const struct ct_clock *clock, uint64_t ticks);
uint32_t ct_trace_find_stream(struct ct_trace *trace, uintptr_t stream);

/* One name per stream: the default one has several, and what waits for its end itself (-1) goes there as well. */
static inline uintptr_t ct_stream_key(const void *stream, int is_twin)
{
    uintptr_t handle = (uintptr_t)stream;
    if (handle == 0)
        return is_twin ? 2 : 0;
    return handle == 1 || handle == UINTPTR_MAX ? 0 : handle;
}

/* Unlike ct_instant_ns() it may go back: what another thread began earlier is told when it was. */
static inline uint64_t ct_trace_instant(struct ct_trace *trace, const struct ct_clock *clock, uint64_t ticks)
{
    uint64_t passed = ticks - trace->instant.ticks;
    if (__builtin_expect(passed >= trace->instant.fresh_ticks, 0))
        return ct_trace_look(trace, clock, ticks);
    return trace->instant.ns + (passed * trace->instant.ns_per_tick >> 32);
}

static inline uint32_t ct_trace_stream(struct ct_trace *trace, uintptr_t stream)
{
    return __builtin_expect(stream == trace->last_stream, 1) ? trace->last_number : ct_trace_find_stream(trace, stream);
}

enum { CT_TRACE_NEAR = 8 }; /* entries ahead, four cache lines */

/* The words of struct ct_trace_entry, put together in registers: written in parts, they could not be read back at once. */
static inline void ct_trace_put(struct ct_trace *trace, const struct ct_record *record, enum ct_trace_kind kind,
                                uint64_t at_ns, uint64_t length_ns, uint32_t kernel, uint32_t stream, uint8_t reason)
{
    uint64_t number = trace->written;
    if (__builtin_expect(number == trace->ready, 0) && !ct_trace_grow(trace, record))
        return;
    /* Whoever sees a word of this entry sees the count of those before it, too. */
    _Atomic uint64_t *place = trace->entries[number % CT_RECORD_TRACE_ENTRIES];
    atomic_store_explicit(&place[0], at_ns, memory_order_release);
    atomic_store_explicit(&place[1], length_ns, memory_order_release);
    atomic_store_explicit(&place[2], (uint32_t)number | (uint64_t)kernel << 32, memory_order_release);
    atomic_store_explicit(&place[3], stream | (uint64_t)kind << 32 | (uint64_t)reason << 40, memory_order_release);
    /* The next launch's lock waits until this is out of the store buffer: the memory is to be near by then. */
    __builtin_prefetch(trace->entries[(number + CT_TRACE_NEAR) % CT_RECORD_TRACE_ENTRIES], 1);
    trace->written = number + 1;
    atomic_store_explicit(&trace->header->written, number + 1, memory_order_release);
}

/* Under the lock. */
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

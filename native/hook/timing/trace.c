/* The rare operations of the trace: opening, allocating memory, reading the clock, and numbering streams. */
#include "hook/timing/trace.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x31435254544f43); /* "COTTRC1" in little-endian bytes */

/* Entries that are allocated at once; divides the size of the ring buffer. */
enum { GROWTH = 2048 };

uint64_t ct_trace_renew(struct ct_trace *trace, const struct ct_clock *clock, uint64_t ticks)
{
    struct ct_instant *instant = &trace->instant;
    if ((int64_t)(ticks - instant->ticks) >= 0)
        ct_instant_renew(instant, clock);
    return instant->ns + ct_clock_between_ns(clock, instant->ticks, ticks) -
           ct_clock_between_ns(clock, ticks, instant->ticks);
}

int ct_trace_grow(struct ct_trace *trace, const struct ct_record *record)
{
    off_t at = CT_RECORD_TRACE_AT + CT_RECORD_TRACE_HEADER_BYTES + (off_t)trace->ready * CT_RECORD_TRACE_ENTRY_BYTES;
    if (trace->ready == CT_RECORD_TRACE_ENTRIES) {
        trace->ready = UINT64_MAX; /* from now on entries are overwritten */
        return 1;
    }
    if (!ct_record_reserve(record, at, (off_t)GROWTH * CT_RECORD_TRACE_ENTRY_BYTES)) {
        trace->header = NULL; /* existing entries stay readable; trying again at every launch would be too slow */
        return 0;
    }
    trace->ready += GROWTH;
    return 1;
}

uint32_t ct_trace_find_stream(struct ct_trace *trace, uintptr_t stream)
{
    uint32_t number = 0;
    while (number < trace->stream_count && trace->streams[number] != stream)
        number++;
    if (number == trace->stream_count && number < CT_TRACE_STREAMS)
        trace->streams[trace->stream_count++] = stream;
    trace->last_stream = stream;
    trace->last_number = number;
    return number;
}

void ct_trace_open(struct ct_trace *trace, struct ct_record *record, const struct ct_clock *clock)
{
    const char *setting = getenv("COTENANT_TRACE");
    struct ct_trace_header *header = (void *)((char *)record->header + CT_RECORD_TRACE_AT);
    memset(trace, 0, sizeof *trace);
    trace->stream_count = 1; /* the default stream */
    if ((setting && strcmp(setting, "0") == 0) || !ct_record_reserve(record, CT_RECORD_TRACE_AT,
                                                                     CT_RECORD_TRACE_HEADER_BYTES))
        return;
    ct_instant_open(&trace->instant, clock);
    trace->entries = (void *)((char *)header + CT_RECORD_TRACE_HEADER_BYTES);
    header->version = CT_TRACE_VERSION;
    header->entry_bytes = CT_RECORD_TRACE_ENTRY_BYTES;
    header->entry_limit = CT_RECORD_TRACE_ENTRIES;
    store_release(&header->magic, MAGIC);
    trace->header = header;
}

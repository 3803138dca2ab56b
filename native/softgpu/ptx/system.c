/* Functions that the driver provides to kernels: printf, assertions and the heap. */
#include "softgpu/ptx/vector.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_STRING = 4096 };

/* ---- The heap: memory of the host, in a list ---------------------------------------------------------------------- */

struct heap_block {
    struct heap_block *next;
    uint64_t bytes;
    _Alignas(16) unsigned char data[];
};

static struct heap_block *heap;
static uint64_t heap_used_bytes;

uint64_t ptx_heap_take(uint64_t bytes, uint64_t limit)
{
    if (!bytes || bytes > limit || heap_used_bytes > limit - bytes)
        return 0;
    struct heap_block *block = calloc(1, sizeof *block + bytes);
    if (!block)
        return 0;
    block->next = heap;
    block->bytes = bytes;
    heap = block;
    heap_used_bytes += bytes;
    return (uint64_t)(uintptr_t)block->data;
}

void ptx_heap_give(uint64_t address)
{
    for (struct heap_block **at = &heap; *at; at = &(*at)->next) {
        struct heap_block *block = *at;
        if ((uint64_t)(uintptr_t)block->data != address)
            continue;
        *at = block->next;
        heap_used_bytes -= block->bytes;
        free(block);
        return;
    }
}

int sg_ptx_heap_range(uint64_t address, uint64_t bytes, uint64_t *start, uint64_t *end)
{
    for (const struct heap_block *block = heap; block; block = block->next) {
        uint64_t from = (uint64_t)(uintptr_t)block->data;
        if (address < from || address - from > block->bytes || bytes > block->bytes - (address - from))
            continue;
        *start = from;
        *end = from + block->bytes;
        return 1;
    }
    return 0;
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

uint64_t ptx_system_argument(const struct ptx_warp *w, const struct ptx_call *call, uint32_t index, uint32_t thread)
{
    uint64_t value = 0;
    if (index >= call->argument_count)
        return 0;
    uint32_t bytes = call->bytes[index] < 8 ? call->bytes[index] : 8;
    const unsigned char *from =
        call->is_area[index]
            ? w->frame->area + (uint64_t)thread * w->frame->function->area_bytes + call->arguments[index]
            : slot_at(w, call->arguments[index]) + thread * (bytes == 8 ? 8 : 4);
    memcpy(&value, from, bytes);
    return value;
}

void ptx_system_result(struct ptx_warp *w, const struct ptx_call *call, uint32_t thread, uint64_t value)
{
    if (!call->result_count)
        return;
    uint32_t at = call->argument_count, bytes = call->bytes[at] < 8 ? call->bytes[at] : 8;
    unsigned char *to = call->is_area[at]
                            ? w->frame->area + (uint64_t)thread * w->frame->function->area_bytes + call->results[0]
                            : slot_at(w, call->results[0]) + thread * (bytes == 8 ? 8 : 4);
    memcpy(to, &value, bytes);
}

/* Copy a string of the kernel. -1: it is not readable. */
static int read_string(struct ptx_warp *w, uint64_t address, uint32_t thread, char *text, size_t capacity)
{
    for (size_t k = 0; k + 1 < capacity; k++) {
        const char *at = ptx_memory_at(w, address + k, 1, SPACE_GENERIC, thread, 0);
        if (!at)
            return -1;
        text[k] = *at;
        if (!*at)
            return 0;
    }
    text[capacity - 1] = 0;
    return 0;
}

/* ---- printf ------------------------------------------------------------------------------------------------------ */

struct values { /* the arguments in memory, each aligned to its size */
    struct ptx_warp *w;
    uint64_t at;
    uint32_t thread;
};

static uint64_t next_value(struct values *values, uint32_t bytes)
{
    uint64_t value = 0;
    values->at = (values->at + bytes - 1) / bytes * bytes;
    const void *from = ptx_memory_at(values->w, values->at, bytes, SPACE_GENERIC, values->thread, 0);
    if (from)
        memcpy(&value, from, bytes);
    values->at += bytes;
    return value;
}

static void print_one(struct values *values, const char *format, char conversion, int is_long)
{
    char text[MAX_STRING];
    uint64_t bits;
    double real;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    switch (conversion) {
    case 'd': case 'i': case 'u': case 'x': case 'X': case 'o':
        bits = next_value(values, is_long ? 8 : 4);
        if (is_long)
            printf(format, (long long)bits);
        else
            printf(format, (int)(uint32_t)bits);
        break;
    case 'c':
        printf(format, (int)(uint32_t)next_value(values, 4));
        break;
    case 'p':
        printf(format, (void *)(uintptr_t)next_value(values, 8));
        break;
    case 's':
        if (read_string(values->w, next_value(values, 8), values->thread, text, sizeof text) == 0)
            printf(format, text);
        break;
    default:
        bits = next_value(values, 8);
        memcpy(&real, &bits, 8);
        printf(format, real);
    }
#pragma GCC diagnostic pop
}

/* Print a format that may be anything: only conversions that are known are passed to the C library. */
static int print(struct values *values, const char *format)
{
    int count = 0;
    for (const char *at = format; *at;) {
        char one[64];
        size_t length = 1;
        int is_long = 0;
        if (*at != '%' || at[1] == '%') {
            putchar(*at);
            at += *at == '%' ? 2 : 1;
            continue;
        }
        one[0] = '%';
        const char *end = at + 1;
        while (*end && strchr("-+ #0123456789.", *end) && length < 32)
            one[length++] = *end++;
        for (; *end && strchr("lhzjt", *end); end++)
            is_long |= *end != 'h';
        if (!*end || !strchr("diuxXocpsfFeEgGaA", *end)) {
            putchar(*at++);
            continue;
        }
        if (is_long && strchr("diuxXo", *end)) {
            one[length++] = 'l';
            one[length++] = 'l';
        }
        one[length++] = *end;
        one[length] = 0;
        print_one(values, one, *end, is_long);
        count++;
        at = end + 1;
    }
    return count;
}

static void print_thread(struct ptx_warp *w, const struct ptx_call *call, uint32_t thread)
{
    char format[MAX_STRING];
    if (read_string(w, ptx_system_argument(w, call, 0, thread), thread, format, sizeof format) < 0)
        return;
    struct values values = {w, ptx_system_argument(w, call, 1, thread), thread};
    ptx_system_result(w, call, thread, (uint64_t)print(&values, format));
}

/* __assertfail(message, file, line, function, size) ends the kernel. */
static void assert_thread(struct ptx_warp *w, const struct ptx_call *call, uint32_t thread)
{
    char text[3][256] = {"", "", ""};
    const struct ptx_block *block = w->block;
    read_string(w, ptx_system_argument(w, call, 0, thread), thread, text[0], sizeof text[0]);
    read_string(w, ptx_system_argument(w, call, 1, thread), thread, text[1], sizeof text[1]);
    read_string(w, ptx_system_argument(w, call, 3, thread), thread, text[2], sizeof text[2]);
    fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], thread: [%u] Assertion `%s` failed.\n", text[1],
            (unsigned)ptx_system_argument(w, call, 2, thread), text[2], block->index[0], block->index[1], block->index[2],
            w->number * WARP + thread, text[0]);
    block->run->fault = SG_PTX_ASSERT;
}

void ptx_system_call(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    const struct sg_ptx_launch *launch = w->block->run->launch;
    for (uint32_t t = 0; t < WARP && !w->block->run->fault; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        switch (i->call->system) {
        case SYSTEM_PRINTF:
            print_thread(w, i->call, t);
            break;
        case SYSTEM_MALLOC:
            ptx_system_result(w, i->call, t, ptx_heap_take(ptx_system_argument(w, i->call, 0, t), launch->heap_bytes));
            break;
        case SYSTEM_GRID_HANDLE: /* the scope is a grid (1), or several of them, which do not exist here */
            ptx_system_result(w, i->call, t, ptx_system_argument(w, i->call, 0, t) == 1 ? w->block->run->workspace : 0);
            break;
        case SYSTEM_FREE:
            ptx_heap_give(ptx_system_argument(w, i->call, 0, t));
            memset(w->block->run->ranges, 0, sizeof w->block->run->ranges);
            break;
        default:
            assert_thread(w, i->call, t);
        }
    }
}

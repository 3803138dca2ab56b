/* Memory accesses of a warp. */
#include "softgpu/ptx/vector.h"

#include <time.h>

void ptx_fail(struct ptx_warp *w, enum sg_ptx_fault fault)
{
    if (w->block->run->fault == SG_PTX_DONE)
        w->block->run->fault = fault;
}

/* Global memory: recently accessed ranges are kept, since asking for a range searches the table of allocations. */
static int global_allows(struct ptx_warp *w, uint64_t low, uint64_t end, int is_write)
{
    struct ptx_run *run = w->block->run;
    struct ptx_range_entry *ranges = run->ranges[is_write];
    for (int k = 0; k < 4; k++)
        if (low >= ranges[k].start && end <= ranges[k].end)
            return 1;
    struct ptx_range_entry found;
    if (end < low ||
        (!run->launch->range(run->launch->data, low, end - low, is_write, &found.start, &found.end) &&
         !sg_ptx_heap_range(low, end - low, &found.start, &found.end)))
        return 0;
    ranges[run->next_range[is_write]++ & 3] = found;
    return 1;
}

void *ptx_memory_at(struct ptx_warp *w, uint64_t address, uint32_t bytes, enum space space, uint32_t thread,
                    int is_write)
{
    const struct ptx_block *block = w->block;
    uint64_t window = address & WINDOW_MASK;
    if (space == SPACE_GENERIC && window) {
        space = window == WINDOW_SHARED  ? SPACE_SHARED
                : window == WINDOW_LOCAL ? SPACE_LOCAL
                : window == WINDOW_PARAM ? SPACE_PARAM
                                         : SPACE_GLOBAL;
        address = space == SPACE_GLOBAL ? address : address & ~WINDOW_MASK;
    }
    if (address % (bytes & -bytes) != 0) {
        ptx_fail(w, SG_PTX_MISALIGNED_ADDRESS);
        return NULL;
    }
    const struct sg_ptx_launch *launch = block->run->launch;
    switch (space) {
    case SPACE_SHARED:
        block = ptx_shared_block(block, &address);
        if (block && address <= block->shared_bytes && bytes <= block->shared_bytes - address)
            return block->shared + address;
        break;
    case SPACE_LOCAL:
        if (address <= w->local_bytes && bytes <= w->local_bytes - address)
            return w->local + (uint64_t)thread * w->local_bytes + address;
        break;
    case SPACE_PARAM:
        if (!is_write && address <= launch->param_bytes && bytes <= launch->param_bytes - address)
            return (void *)(uintptr_t)(launch->params + address);
        break;
    case SPACE_AREA: {
        uint32_t area = w->frame->function->area_bytes;
        if (address <= area && bytes <= area - address)
            return w->frame->area + (uint64_t)thread * area + address;
        break;
    }
    default:
        if (global_allows(w, address, address + bytes, is_write))
            return (void *)(uintptr_t)address;
    }
    ptx_fail(w, SG_PTX_ILLEGAL_ADDRESS);
    return NULL;
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* The addresses of a warp's access: those of threads outside the mask are replaced by the first one. */
struct addresses {
    uint64_t at[WARP];
    uint64_t low, high, together; /* together: bits that are set in any of them */
};

FOR_EACH_PROCESSOR static void collect(const unsigned char *base, int is_wide, uint64_t offset, uint32_t mask,
                                       struct addresses *a)
{
    uint32_t first = (uint32_t)__builtin_ctz(mask);
    uint64_t from = (is_wide ? ((const uint64_t *)base)[first] : ((const uint32_t *)base)[first]) + offset;
    uint64_t far = 0, together = 0;
    int32_t low = 0, high = 0;
    if (is_wide)
        for (int t = 0; t < WARP; t++)
            a->at[t] = mask & ptx_bit[t] ? ((const uint64_t *)base)[t] + offset : from;
    else
        for (int t = 0; t < WARP; t++)
            a->at[t] = mask & ptx_bit[t] ? ((const uint32_t *)base)[t] + offset : from;
    for (int t = 0; t < WARP; t++) {
        uint64_t distance = a->at[t] - from;
        int32_t near = (int32_t)(uint32_t)distance;
        far |= (distance + UINT64_C(0x80000000)) >> 32;
        together |= a->at[t];
        low = near < low ? near : low;
        high = near > high ? near : high;
    }
    a->together = together;
    a->low = from + (uint64_t)(int64_t)low;
    a->high = from + (uint64_t)(int64_t)high;
    for (int t = 0; far && t < WARP; t++) { /* more than 2 GiB apart */
        a->low = t && a->low < a->at[t] ? a->low : a->at[t];
        a->high = t && a->high > a->at[t] ? a->high : a->at[t];
    }
}

/* Set the addresses of every thread's access, relative to the returned one. NULL: a fault was set. */
static unsigned char *locate(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask, uint32_t bytes, int is_write,
                             struct addresses *a)
{
    collect(SLOT(1), i->flags & FLAG_WIDE, (uint64_t)i->immediate, mask, a);
    int is_aligned = (a->together & (bytes - 1)) == 0, is_global = i->space == SPACE_GLOBAL || i->space == SPACE_CONST;
    is_global |= i->space == SPACE_GENERIC && !(a->together & WINDOW_MASK);
    if (is_aligned && is_global && a->high <= UINT64_MAX - bytes &&
        global_allows(w, a->low, a->high + bytes, is_write)) {
        uint64_t from = a->at[0];
        for (int t = 0; t < WARP; t++)
            a->at[t] -= from;
        return (unsigned char *)(uintptr_t)from;
    }
    if (is_aligned && i->space == SPACE_SHARED && a->high <= w->block->shared_bytes &&
        bytes <= w->block->shared_bytes - a->high)
        return w->block->shared;
    unsigned char *first = NULL;
    for (uint32_t t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        unsigned char *at = ptx_memory_at(w, a->at[t], bytes, i->space, t, is_write);
        if (!at)
            return NULL;
        first = first ? first : at;
        a->at[t] = (uint64_t)(uintptr_t)at - (uint64_t)(uintptr_t)first;
    }
    return first;
}

#define FOR_ACTIVE(t)                                                                                                  \
    for (uint32_t t##_left = mask, t; t##_left && (t = (uint32_t)__builtin_ctz(t##_left), 1); t##_left &= t##_left - 1)

static void load_element(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask, uint32_t slot,
                         const unsigned char *base, const uint64_t *at)
{
    uint32_t *words = (uint32_t *)slot_at(w, slot);
    uint64_t *longs = (uint64_t *)words;
    int is_signed = (i->flags & FLAG_SIGNED) != 0;
    if (i->bytes == 4 && i->result == 4) {
        FOR_ACTIVE(t) memcpy(&words[t], base + at[t], 4);
        return;
    }
    if (i->bytes == 8) {
        FOR_ACTIVE(t) memcpy(&longs[t], base + at[t], 8);
        return;
    }
    FOR_ACTIVE(t)
    {
        uint32_t bits = 0;
        memcpy(&bits, base + at[t], i->bytes);
        int64_t value = !is_signed         ? (int64_t)bits
                        : i->bytes == 1    ? (int8_t)bits
                        : i->bytes == 2    ? (int16_t)bits
                                           : (int32_t)bits;
        if (i->result == 8)
            longs[t] = (uint64_t)value;
        else
            words[t] = i->result == 2 ? (uint16_t)value : i->result == 1 ? (uint8_t)value : (uint32_t)value;
    }
}

void ptx_load(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    struct addresses a;
    const unsigned char *base = locate(w, i, mask, (uint32_t)i->bytes * i->count, 0, &a);
    if (!base)
        return;
    for (uint32_t k = 0; k < i->count; k++)
        load_element(w, i, mask, i->list[k], base + k * i->bytes, a.at);
}

void ptx_store(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    struct addresses a;
    unsigned char *base = locate(w, i, mask, (uint32_t)i->bytes * i->count, 1, &a);
    if (!base)
        return;
    for (uint32_t k = 0; k < i->count; k++, base += i->bytes) {
        const unsigned char *from = slot_at(w, i->list[k]);
        uint32_t stride = i->result == 8 ? 8 : 4;
        if (i->bytes == 4 && stride == 4) {
            FOR_ACTIVE(t) memcpy(base + a.at[t], from + t * 4, 4);
        } else {
            FOR_ACTIVE(t) memcpy(base + a.at[t], from + t * stride, i->bytes);
        }
    }
}

void ptx_copy_async(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint64_t offset = i->list[0] | (uint64_t)i->list[1] << 32;
    FOR_ACTIVE(t)
    {
        uint64_t to = (i->flags & FLAG_WIDE ? LONGS(1)[t] : WORDS(1)[t]) + (uint64_t)i->immediate;
        uint64_t from = (i->source ? LONGS(2)[t] : WORDS(2)[t]) + offset;
        uint32_t valid = WORDS(3)[t] < i->bytes ? WORDS(3)[t] : i->bytes;
        unsigned char *target = ptx_memory_at(w, to, i->bytes, SPACE_SHARED, t, 1);
        const unsigned char *source = target && valid ? ptx_memory_at(w, from, i->bytes, SPACE_GLOBAL, t, 0) : NULL;
        if (!target || (valid && !source))
            return;
        if (valid)
            memcpy(target, source, valid);
        memset(target + valid, 0, i->bytes - valid);
    }
}

/* ---- Atomics: blocks are executed one after another, so a plain read and write are atomic -------------------------- */

enum { OP_ADD, OP_MIN, OP_MAX, OP_INC, OP_DEC, OP_AND, OP_OR, OP_XOR, OP_EXCHANGE, OP_COMPARE };

static float real_pick(int op, float a, float b)
{
    return op == OP_ADD ? a + b : op == OP_MIN ? MIN_FLOAT(a, b) : MAX_FLOAT(a, b);
}

static uint64_t atomic_real(const struct ptx_ins *i, uint64_t old, uint64_t b)
{
    if (i->bytes == 8)
        return double_bits(bits_double(old) + bits_double(b));
    if (i->bytes == 4 && i->count == 1)
        return float_bits(one_nan(bits_float((uint32_t)old) + bits_float((uint32_t)b)));
    uint64_t v = 0;
    for (int k = 0; k < 16 * i->count; k += 16) {
        uint32_t x = (uint32_t)(old >> k), y = (uint32_t)(b >> k);
        v |= (uint64_t)(i->source == CLASS_BF16 ? float_bf16(real_pick(i->op, bf16_float(x), bf16_float(y)))
                                                 : float_half(real_pick(i->op, half_float(x), half_float(y))))
             << k;
    }
    return v;
}

static uint64_t atomic_result(const struct ptx_ins *i, uint64_t old, uint64_t b, uint64_t c)
{
    int is_signed = i->source == CLASS_SIGNED, shift = 64 - 8 * i->bytes;
    int64_t x = (int64_t)(old << shift) >> shift, y = (int64_t)(b << shift) >> shift;
    if (i->source == CLASS_FLOAT || i->source == CLASS_BF16)
        return atomic_real(i, old, b);
    switch (i->op) {
    case OP_ADD:
        return old + b;
    case OP_MIN:
        return is_signed ? (uint64_t)(x < y ? x : y) : old < b ? old : b;
    case OP_MAX:
        return is_signed ? (uint64_t)(x > y ? x : y) : old > b ? old : b;
    case OP_INC:
        return old >= b ? 0 : old + 1;
    case OP_DEC:
        return old == 0 || old > b ? b : old - 1;
    case OP_AND:
        return old & b;
    case OP_OR:
        return old | b;
    case OP_XOR:
        return old ^ b;
    case OP_EXCHANGE:
        return b;
    default:
        return old == b ? c : old;
    }
}

uint64_t ptx_atomic_value(const struct ptx_ins *i, uint64_t old, uint64_t value)
{
    return atomic_result(i, old, value, 0);
}

void ptx_atomic(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    struct addresses a;
    unsigned char *base = locate(w, i, mask, i->bytes, 1, &a);
    if (!base)
        return;
    uint64_t keep = i->bytes == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * i->bytes)) - 1;
    FOR_ACTIVE(t)
    {
        uint64_t old = 0, b = i->bytes == 8 ? LONGS(2)[t] : WORDS(2)[t] & keep;
        uint64_t c = i->bytes == 8 ? LONGS(3)[t] : WORDS(3)[t] & keep;
        memcpy(&old, base + a.at[t], i->bytes);
        uint64_t v = atomic_result(i, old, b, c);
        memcpy(base + a.at[t], &v, i->bytes);
        if (i->o[0] == NO_SLOT)
            continue;
        if (i->bytes == 8)
            LONGS(0)[t] = old;
        else
            WORDS(0)[t] = (uint32_t)old;
    }
}

void ptx_atomic_vector(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    struct addresses a;
    const uint32_t count = i->result, bits = i->bytes * 8u;
    unsigned char *base = locate(w, i, mask, i->bytes * count, 1, &a);
    if (!base)
        return;
    FOR_ACTIVE(t)
    {
        for (uint32_t k = 0; k < count; k++) {
            unsigned char *at = base + a.at[t] + k * i->bytes;
            uint32_t keep = bits == 32 ? UINT32_MAX : (1u << bits) - 1, old = 0;
            memcpy(&old, at, i->bytes);
            uint64_t v = atomic_real(i, old, ((const uint32_t *)slot_at(w, i->list[k]))[t] & keep);
            memcpy(at, &v, i->bytes);
            if (i->o[0] != NO_SLOT)
                ((uint32_t *)slot_at(w, i->list[count + k]))[t] = old;
        }
    }
}

/* A register of 128 bits is two of 64 bits. */
static uint64_t *wide_at(const struct ptx_warp *w, uint32_t slot, uint32_t part)
{
    return (uint64_t *)slot_at(w, slot) + part * WARP;
}

void ptx_atomic_wide(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    struct addresses a;
    unsigned char *base = locate(w, i, mask, 16, 1, &a);
    if (!base)
        return;
    FOR_ACTIVE(t)
    {
        uint64_t old[2], v[2];
        memcpy(old, base + a.at[t], sizeof old);
        for (uint32_t k = 0; k < 2; k++)
            v[k] = wide_at(w, i->list[i->op ? 2 : 1], k)[t];
        if (!i->op || (old[0] == wide_at(w, i->list[1], 0)[t] && old[1] == wide_at(w, i->list[1], 1)[t]))
            memcpy(base + a.at[t], v, sizeof v);
        for (uint32_t k = 0; k < 2; k++)
            wide_at(w, i->list[0], k)[t] = old[k];
    }
}

/* ---- Addresses and clocks ---------------------------------------------------------------------------------------- */

static uint64_t window_of(enum space space)
{
    return space == SPACE_SHARED ? WINDOW_SHARED : space == SPACE_LOCAL ? WINDOW_LOCAL : WINDOW_PARAM;
}

void ptx_address_convert(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint64_t window = window_of(i->space);
    FOR_ACTIVE(t) LONGS(0)[t] = i->op ? LONGS(1)[t] & ~WINDOW_MASK : LONGS(1)[t] | window;
}

void ptx_is_space(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t bits = 0;
    FOR_ACTIVE(t)
    {
        uint64_t window = LONGS(1)[t] & WINDOW_MASK;
        int is_here = i->space == SPACE_GLOBAL ? !window : i->space != SPACE_CONST && window == window_of(i->space);
        uint64_t address = LONGS(1)[t] & ~WINDOW_MASK;
        if (is_here && i->space == SPACE_SHARED && !i->op) /* of this block alone */
            is_here = ptx_shared_block(w->block, &address) == w->block;
        bits |= is_here ? ptx_bit[t] : 0;
    }
    set_predicate(w, i->o[0], mask, bits);
}

void ptx_frame_address(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint64_t address = w->frame->local_from + (uint64_t)i->immediate;
    FOR_ACTIVE(t)
    {
        if (i->flags & FLAG_WIDE)
            LONGS(0)[t] = address;
        else
            WORDS(0)[t] = (uint32_t)address;
    }
}

/* The cycle counter is the number of executed instructions; the timer is the clock of the host. */
void ptx_read_clock(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint64_t value = w->block->run->executed;
    if (i->op >= SPECIAL_TIMER) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        value = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    if (i->op == SPECIAL_CLOCK_HI || i->op == SPECIAL_TIMER_HI)
        value >>= 32;
    FOR_ACTIVE(t)
    {
        if (i->flags & FLAG_WIDE)
            LONGS(0)[t] = value;
        else
            WORDS(0)[t] = (uint32_t)value;
    }
}

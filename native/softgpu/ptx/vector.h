/* Helpers of handlers, which compute one instruction for the 32 threads of a warp. Threads outside the mask keep their
 * values. The loops have no branches, so that the compiler vectorizes them. */
#ifndef COTENANT_SOFTGPU_PTX_VECTOR_H
#define COTENANT_SOFTGPU_PTX_VECTOR_H

#include "softgpu/ptx/internal.h"

#include <math.h>
#include <string.h>

static inline unsigned char *slot_at(const struct ptx_warp *w, uint32_t slot)
{
    return w->base[slot >> SLOT_SHIFT] + (slot & SLOT_OFFSET);
}

#define SLOT(k) slot_at(w, i->o[k])
#define WORDS(k) ((uint32_t *)SLOT(k))
#define LONGS(k) ((uint64_t *)SLOT(k))
#define PREDICATE(k) (*(uint32_t *)SLOT(k))
#define HANDLER(name) static void name(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)

/* One bit per thread: a table, because shifts by a variable are slow without AVX2. */
extern const uint32_t ptx_bit[WARP];

static inline void set_predicate(struct ptx_warp *w, uint32_t slot, uint32_t mask, uint32_t value)
{
    uint32_t *p = (uint32_t *)slot_at(w, slot);
    *p = (*p & ~mask) | (value & mask);
}

static inline uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline uint64_t double_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

static inline double bits_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* Subnormal numbers become zeros of the same sign. */
static inline float flush(float x)
{
    uint32_t u = float_bits(x);
    return bits_float((u & 0x7f800000) == 0 ? u & 0x80000000 : u);
}

/* The device has one NaN for results. */
static inline float one_nan(float x)
{
    return x != x ? bits_float(0x7fffffff) : x;
}

/* NaN becomes 0. */
static inline float saturate(float x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}

static inline double saturate_double(double x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}

static inline float half_float(uint32_t bits)
{
    uint16_t low = (uint16_t)bits;
    _Float16 half;
    memcpy(&half, &low, 2);
    return (float)half;
}

/* The results of half precision are canonical like those of single precision. */
static inline uint32_t float_half(float x)
{
    _Float16 half = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return x != x ? 0x7fff : bits;
}

static inline float bf16_float(uint32_t bits)
{
    return bits_float((bits & 0xffff) << 16);
}

static inline uint32_t float_bf16(float x)
{
    uint32_t u = float_bits(x);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return x != x ? 0x7fff : rounded & 0xffff;
}

/* Numbers of eight bits: e4m3, without infinities, and e5m2. */
static inline float quarter_float(uint32_t bits, int is_e5m2)
{
    if (is_e5m2)
        return half_float(bits << 8);
    uint32_t exponent = bits >> 3 & 15, fraction = bits & 7;
    float magnitude = exponent ? ldexpf(1.0f + (float)fraction / 8, (int)exponent - 7) : ldexpf((float)fraction, -9);
    magnitude = (bits & 0x7f) == 0x7f ? NAN : magnitude;
    return bits & 0x80 ? -magnitude : magnitude;
}

#define MIN_FLOAT(a, b) ((a) != (a) ? (b) : (b) != (b) ? (a) : (a) < (b) || ((a) == (b) && signbit(a)) ? (a) : (b))
#define MAX_FLOAT(a, b) ((a) != (a) ? (b) : (b) != (b) ? (a) : (a) > (b) || ((a) == (b) && !signbit(a)) ? (a) : (b))

#endif

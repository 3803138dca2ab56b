/* Handlers of arithmetic and logic. This file is compiled twice: for every x86-64 processor, and for those with AVX2,
 * FMA and F16C. Both give the same results. */
#include "softgpu/ptx/vector.h"

#include <float.h>

#ifdef PTX_WIDE
#define TABLE ptx_handlers_wide
#else
#define TABLE ptx_handlers_generic
#endif

static inline int32_t clamp_s32(int64_t x)
{
    return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x;
}

static inline int32_t s24(uint32_t x)
{
    return (int32_t)(x << 8) >> 8;
}

static inline uint32_t reverse(uint32_t x)
{
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}

/* Extract `length` bits from `start` on; bits beyond the width are the sign, or zeros. */
static inline uint64_t extract(uint64_t a, uint32_t start, uint32_t length, uint32_t width, int is_signed)
{
    uint64_t end = (uint64_t)start + length;
    uint64_t sign_at = end - 1 < width - 1 && length ? end - 1 : width - 1;
    uint64_t sign = is_signed && length ? a >> sign_at & 1 : 0;
    uint64_t low = start < width ? (width == 32 ? a & UINT32_MAX : a) >> start : 0;
    uint64_t valid = start >= width ? 0 : end > width ? width - start : length;
    uint64_t keep = valid >= 64 ? UINT64_MAX : (UINT64_C(1) << valid) - 1;
    return length ? (low & keep) | (sign ? ~keep : 0) : 0;
}

/* Replace `length` bits from `start` on by those of `field`. */
static inline uint64_t insert_field(uint64_t into, uint64_t field, uint32_t start, uint32_t length, uint32_t width)
{
    if (start >= width || !length)
        return into;
    uint32_t valid = length > width - start ? width - start : length;
    uint64_t keep = (valid >= 64 ? UINT64_MAX : (UINT64_C(1) << valid) - 1) << start;
    return (into & ~keep) | (field << start & keep);
}

static inline uint32_t dot4(uint32_t a, uint32_t b, uint32_t c, int is_a_signed, int is_b_signed)
{
    for (int k = 0; k < 32; k += 8) {
        int32_t x = is_a_signed ? (int8_t)(a >> k) : (uint8_t)(a >> k);
        int32_t y = is_b_signed ? (int8_t)(b >> k) : (uint8_t)(b >> k);
        c += (uint32_t)(x * y);
    }
    return c;
}

/* Halves of a times the lower two bytes of b. */
static inline uint32_t dot2(uint32_t a, uint32_t b, uint32_t c, int is_a_signed, int is_b_signed)
{
    for (int k = 0; k < 2; k++) {
        int32_t x = is_a_signed ? (int16_t)(a >> (16 * k)) : (uint16_t)(a >> (16 * k));
        int32_t y = is_b_signed ? (int8_t)(b >> (8 * k)) : (uint8_t)(b >> (8 * k));
        c += (uint32_t)(x * y);
    }
    return c;
}

/* Return the position of the |offset|-th set bit from `base` on, upwards or downwards; 0xffffffff: there is none. */
static inline uint32_t find_nth_set(uint32_t bits, uint32_t base, int32_t offset)
{
    int64_t left = offset < 0 ? -(int64_t)offset : offset;
    if (!offset)
        return base < 32 && bits >> base & 1 ? base : UINT32_MAX;
    for (uint32_t at = base; at < 32; at += offset > 0 ? 1u : UINT32_MAX)
        if (bits >> at & 1 && --left == 0)
            return at;
    return UINT32_MAX;
}

static inline int32_t at_least_0(int32_t x)
{
    return x > 0 ? x : 0;
}

/* Give a number the sign of the product of two others. */
static inline float with_sign(float x, float p, float q)
{
    uint32_t sign = (float_bits(p) ^ float_bits(q)) & 0x80000000;
    return x != x ? x : bits_float((float_bits(x) & 0x7fffffff) | sign);
}

/* Halves whose subnormal numbers become zeros of the same sign. */
static inline float half_flush(uint32_t bits)
{
    return half_float(bits & 0x7c00 ? bits : bits & 0x8000);
}

static inline uint32_t flushed_half(float x)
{
    uint32_t bits = float_half(x);
    return bits & 0x7c00 ? bits : bits & 0x8000;
}

static inline float upper_float(uint64_t pair)
{
    return bits_float((uint32_t)(pair >> 32));
}

static inline float lower_float(uint64_t pair)
{
    return bits_float((uint32_t)pair);
}

/* Add the exact product of half-precision numbers to another one. The sum is rounded to odd, so that rounding it again
 * to half precision gives the correctly rounded result. */
static inline float fma_odd(float p, float q, float r)
{
    double product = (double)p * (double)q, sum = product + (double)r;
    double part = sum - product, error = (product - (sum - part)) + ((double)r - part);
    uint64_t bits = double_bits(sum);
    int is_inexact = error != 0 && error == error;
    if (is_inexact && !(bits & 1))
        sum = bits_double(((error > 0) == (sum > 0)) ? bits + 1 : bits - 1);
    float narrow = (float)sum;
    uint32_t low = float_bits(narrow);
    if ((double)narrow != sum && sum == sum && !(low & 1)) /* to odd once more, in single precision */
        narrow = bits_float((fabs((double)narrow) < fabs(sum)) ? low + 1 : low - 1);
    return narrow;
}

static inline float relu(float x)
{
    return x != x ? x : x > 0 ? x : 0;
}

/* The values of the two halves of packed operands. */
#define HALF_1(FROM, TO, ...) ({ float p = FROM(a), q = FROM(b), r = FROM(c); (void)q; (void)r; TO(__VA_ARGS__); })
#define HALF_2(FROM, TO, ...)                                                                                          \
    ({ float p = FROM(a), q = FROM(b), r = FROM(c); (void)q; (void)r; uint32_t low = TO(__VA_ARGS__);                  \
       p = FROM(a >> 16); q = FROM(b >> 16); r = FROM(c >> 16); low | TO(__VA_ARGS__) << 16; })

/* The values of the two floats of packed operands. */
#define FLOATS_2(PREPARE, ...)                                                                                         \
    ({ float p = PREPARE(upper_float(a)), q = PREPARE(upper_float(b)), r = PREPARE(upper_float(c)); (void)r;           \
       uint64_t high = float_bits(one_nan(PREPARE(__VA_ARGS__)));                                                      \
       p = PREPARE(lower_float(a)); q = PREPARE(lower_float(b)); r = PREPARE(lower_float(c));                          \
       high << 32 | float_bits(one_nan(PREPARE(__VA_ARGS__))); })

#define LOOP(DT, AT, BT, CT, PREPARE, ...)                                                                             \
    DT *d = (DT *)SLOT(0);                                                                                             \
    const AT *as = (const AT *)SLOT(1);                                                                                \
    const BT *bs = (const BT *)SLOT(2);                                                                                \
    const CT *cs = (const CT *)SLOT(3);                                                                                \
    _Pragma("GCC ivdep") for (int t = 0; t < WARP; t++)                                                                \
    {                                                                                                                  \
        AT a = as[t];                                                                                                  \
        BT b = bs[t];                                                                                                  \
        CT c = cs[t];                                                                                                  \
        (void)b;                                                                                                       \
        (void)c;                                                                                                       \
        PREPARE;                                                                                                       \
        DT v = (DT)(__VA_ARGS__);                                                                                      \
        d[t] = mask & ptx_bit[t] ? v : d[t];                                                                           \
    }
#define X(id, key, shape, DT, AT, BT, CT, ...)                                                                         \
    HANDLER(id)                                                                                                        \
    {                                                                                                                  \
        LOOP(DT, AT, BT, CT, , __VA_ARGS__)                                                                            \
    }
#define Z(id, key, shape, ...)                                                                                         \
    HANDLER(id)                                                                                                        \
    {                                                                                                                  \
        LOOP(float, float, float, float, a = flush(a); b = flush(b); c = flush(c), __VA_ARGS__)                        \
    }
#include "softgpu/ptx/integer.def"
#include "softgpu/ptx/float.def"
#undef X
#undef Z

/* ---- Handlers with other operands -------------------------------------------------------------------------------- */

HANDLER(select32)
{
    uint32_t *d = WORDS(0), p = PREDICATE(3);
    const uint32_t *a = WORDS(1), *b = WORDS(2);
#pragma GCC ivdep
    for (int t = 0; t < WARP; t++) {
        uint32_t v = p & ptx_bit[t] ? a[t] : b[t];
        d[t] = mask & ptx_bit[t] ? v : d[t];
    }
}

HANDLER(select64)
{
    uint64_t *d = LONGS(0);
    uint32_t p = PREDICATE(3);
    const uint64_t *a = LONGS(1), *b = LONGS(2);
#pragma GCC ivdep
    for (int t = 0; t < WARP; t++) {
        uint64_t v = p & ptx_bit[t] ? a[t] : b[t];
        d[t] = mask & ptx_bit[t] ? v : d[t];
    }
}

#define INSERT(name, T, width)                                                                                         \
    HANDLER(name)                                                                                                      \
    {                                                                                                                  \
        T *d = (T *)SLOT(0);                                                                                           \
        const T *a = (const T *)SLOT(1), *b = (const T *)SLOT(2);                                                      \
        const uint32_t *start = WORDS(3), *length = WORDS(4);                                                          \
        for (int t = 0; t < WARP; t++)                                                                                 \
            if (mask & ptx_bit[t])                                                                                     \
                d[t] = (T)insert_field(b[t], a[t], start[t] & 255, length[t] & 255, width);                            \
    }
INSERT(insert32, uint32_t, 32)
INSERT(insert64, uint64_t, 64)

HANDLER(lop3)
{
    uint32_t *d = WORDS(0);
    const uint32_t *as = WORDS(1), *bs = WORDS(2), *cs = WORDS(3);
    uint32_t table = (uint32_t)i->immediate, all[8];
    for (int k = 0; k < 8; k++)
        all[k] = table >> k & 1 ? UINT32_MAX : 0;
#pragma GCC ivdep
    for (int t = 0; t < WARP; t++) {
        uint32_t a = as[t], b = bs[t], c = cs[t];
        uint32_t v = (all[0] & ~a & ~b & ~c) | (all[1] & ~a & ~b & c) | (all[2] & ~a & b & ~c) | (all[3] & ~a & b & c) |
                     (all[4] & a & ~b & ~c) | (all[5] & a & ~b & c) | (all[6] & a & b & ~c) | (all[7] & a & b & c);
        d[t] = mask & ptx_bit[t] ? v : d[t];
    }
}

/* The modes f4e to rc16 derive the selected bytes from the lowest two bits of c. */
static uint32_t permute(uint32_t a, uint32_t b, uint32_t c, int mode)
{
    static const uint16_t selectors[7][4] = {{0}, {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
                                             {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
                                             {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t selector = mode ? selectors[mode][c & 3] : c, v = 0;
    for (int k = 0; k < 4; k++) {
        uint32_t one = selector >> (4 * k) & 15, byte = (uint32_t)(both >> (8 * (one & 7))) & 255;
        if (one & 8)
            byte = byte & 128 ? 255 : 0;
        v |= byte << (8 * k);
    }
    return v;
}

HANDLER(prmt)
{
    uint32_t *d = WORDS(0);
    const uint32_t *a = WORDS(1), *b = WORDS(2), *c = WORDS(3);
    for (int t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            d[t] = permute(a[t], b[t], c[t], i->op);
}

/* ---- Carry: o[4] is the condition code; op bit 0: read it, bit 1: write it, bit 2: subtract ----------------------- */

#define CARRY(name, T, WIDE)                                                                                           \
    HANDLER(name)                                                                                                      \
    {                                                                                                                  \
        T *d = (T *)SLOT(0);                                                                                           \
        const T *a = (const T *)SLOT(1), *b = (const T *)SLOT(2);                                                      \
        uint32_t in = i->op & 1 ? PREDICATE(4) : 0, out = 0;                                                           \
        for (int t = 0; t < WARP; t++) {                                                                               \
            WIDE carry = in >> t & 1, sum = i->op & 4 ? (WIDE)a[t] - b[t] - carry : (WIDE)a[t] + b[t] + carry;         \
            out |= (uint32_t)(sum >> (sizeof(T) * 8) & 1) << t;                                                        \
            d[t] = mask & ptx_bit[t] ? (T)sum : d[t];                                                                  \
        }                                                                                                              \
        if (i->op & 2)                                                                                                 \
            set_predicate(w, i->o[4], mask, out);                                                                      \
    }
CARRY(carry32, uint32_t, uint64_t)
CARRY(carry64, uint64_t, unsigned __int128)

/* flags: FLAG_WIDE selects the upper half of the product, FLAG_SIGNED its sign. */
#define MULTIPLY_CARRY(name, T, S, WIDE, SWIDE)                                                                        \
    HANDLER(name)                                                                                                      \
    {                                                                                                                  \
        T *d = (T *)SLOT(0);                                                                                           \
        const T *a = (const T *)SLOT(1), *b = (const T *)SLOT(2), *c = (const T *)SLOT(3);                             \
        uint32_t in = i->op & 1 ? PREDICATE(4) : 0, out = 0;                                                           \
        for (int t = 0; t < WARP; t++) {                                                                               \
            WIDE product = i->flags & FLAG_SIGNED ? (WIDE)((SWIDE)(S)a[t] * (S)b[t]) : (WIDE)a[t] * b[t];              \
            T part = (T)(i->flags & FLAG_WIDE ? product >> (sizeof(T) * 8) : product);                                 \
            WIDE sum = (WIDE)part + c[t] + (in >> t & 1);                                                              \
            out |= (uint32_t)(sum >> (sizeof(T) * 8) & 1) << t;                                                        \
            d[t] = mask & ptx_bit[t] ? (T)sum : d[t];                                                                  \
        }                                                                                                              \
        if (i->op & 2)                                                                                                 \
            set_predicate(w, i->o[4], mask, out);                                                                      \
    }
MULTIPLY_CARRY(multiply_carry32, uint32_t, int32_t, uint64_t, int64_t)
MULTIPLY_CARRY(multiply_carry64, uint64_t, int64_t, unsigned __int128, __int128)

/* ---- Predicates -------------------------------------------------------------------------------------------------- */

HANDLER(and_pred)
{
    set_predicate(w, i->o[0], mask, PREDICATE(1) & PREDICATE(2));
}

HANDLER(or_pred)
{
    set_predicate(w, i->o[0], mask, PREDICATE(1) | PREDICATE(2));
}

HANDLER(xor_pred)
{
    set_predicate(w, i->o[0], mask, PREDICATE(1) ^ PREDICATE(2));
}

HANDLER(not_pred)
{
    set_predicate(w, i->o[0], mask, ~PREDICATE(1));
}

HANDLER(mov_pred)
{
    set_predicate(w, i->o[0], mask, PREDICATE(1));
}

/* Store the result of a comparison: op 1 to 3 combines it with o[3], and o[4] gets the complement. */
static void finish(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask, uint32_t bits)
{
    uint32_t c = i->op ? PREDICATE(3) ^ (i->flags & FLAG_NEGATED ? UINT32_MAX : 0) : 0, p = bits, q = ~bits;
    if (i->op == 1)
        p &= c, q &= c;
    else if (i->op == 2)
        p |= c, q |= c;
    else if (i->op == 3)
        p ^= c, q ^= c;
    if (i->o[0] != NO_SLOT)
        set_predicate(w, i->o[0], mask, p);
    if (i->o[4] != NO_SLOT)
        set_predicate(w, i->o[4], mask, q);
}

#define COMPARE(id, T, FROM, ...)                                                                                      \
    HANDLER(id)                                                                                                        \
    {                                                                                                                  \
        const T *as = (const T *)SLOT(1), *bs = (const T *)SLOT(2);                                                    \
        uint32_t bits = 0;                                                                                             \
        for (int t = 0; t < WARP; t++) {                                                                               \
            __typeof__(FROM(as[0])) a = FROM(as[t]), b = FROM(bs[t]);                                                  \
            bits |= (__VA_ARGS__) ? ptx_bit[t] : 0;                                                                    \
        }                                                                                                              \
        finish(w, i, mask, bits);                                                                                      \
    }
#define PLAIN(x) (x)
#define LOW_U16(x) ((uint16_t)(x))
#define LOW_S16(x) ((int16_t)(x))
#define INTEGERS(F, name, ...)                                                                                         \
    F(name, u16, "hh", uint32_t, LOW_U16, __VA_ARGS__) F(name, s16, "hh", uint32_t, LOW_S16, __VA_ARGS__)              \
    F(name, u32, "ww", uint32_t, PLAIN, __VA_ARGS__) F(name, s32, "ww", int32_t, PLAIN, __VA_ARGS__)                   \
    F(name, u64, "ll", uint64_t, PLAIN, __VA_ARGS__) F(name, s64, "ll", int64_t, PLAIN, __VA_ARGS__)                   \
    F(name, b16, "hh", uint32_t, LOW_U16, __VA_ARGS__) F(name, b32, "ww", uint32_t, PLAIN, __VA_ARGS__)                \
    F(name, b64, "ll", uint64_t, PLAIN, __VA_ARGS__)
#define UNSIGNED(F, name, ...)                                                                                         \
    F(name, u16, "hh", uint32_t, LOW_U16, __VA_ARGS__) F(name, u32, "ww", uint32_t, PLAIN, __VA_ARGS__)                \
    F(name, u64, "ll", uint64_t, PLAIN, __VA_ARGS__)
#define REALS(F, name, ...)                                                                                            \
    F(name, f32, "ff", float, PLAIN, __VA_ARGS__) F(name, f64, "dd", double, PLAIN, __VA_ARGS__)                       \
    F(name, f16, "xx", uint32_t, half_float, __VA_ARGS__) F(name, bf16, "xx", uint32_t, bf16_float, __VA_ARGS__)      \
    F(name, zf32, "ff", float, flush, __VA_ARGS__) F(name, zf16, "xx", uint32_t, half_flush, __VA_ARGS__)
#define COMPARISONS(F)                                                                                                 \
    INTEGERS(F, eq, a == b) INTEGERS(F, ne, a != b) INTEGERS(F, lt, a < b) INTEGERS(F, le, a <= b)                     \
    INTEGERS(F, gt, a > b) INTEGERS(F, ge, a >= b)                                                                     \
    UNSIGNED(F, lo, a < b) UNSIGNED(F, ls, a <= b) UNSIGNED(F, hi, a > b) UNSIGNED(F, hs, a >= b)                      \
    REALS(F, eq, a == b) REALS(F, ne, a == a && b == b && a != b) REALS(F, lt, a < b) REALS(F, le, a <= b)             \
    REALS(F, gt, a > b) REALS(F, ge, a >= b) REALS(F, equ, !(a == a && b == b && a != b)) REALS(F, neu, a != b)        \
    REALS(F, ltu, !(a >= b)) REALS(F, leu, !(a > b)) REALS(F, gtu, !(a <= b)) REALS(F, geu, !(a < b))                  \
    REALS(F, num, a == a && b == b) REALS(F, nan, a != a || b != b)
#define DEFINE(name, type, shape, T, FROM, ...) COMPARE(compare_##name##_##type, T, FROM, __VA_ARGS__)
COMPARISONS(DEFINE)

#define CLASSIFY(id, T, EXPONENT, REST)                                                                                \
    HANDLER(id)                                                                                                        \
    {                                                                                                                  \
        const T *as = (const T *)SLOT(1);                                                                              \
        uint32_t bits = 0;                                                                                             \
        for (int t = 0; t < WARP; t++) {                                                                               \
            T e = as[t] & EXPONENT, m = as[t] & REST;                                                                  \
            int is_finite = e != EXPONENT, is_infinite = e == EXPONENT && !m, is_nan = e == EXPONENT && m;             \
            int results[] = {is_finite, is_infinite, !is_nan, is_nan, is_finite && e, !e && m};                        \
            bits |= results[i->op] ? ptx_bit[t] : 0;                                                                   \
        }                                                                                                              \
        set_predicate(w, i->o[0], mask, bits);                                                                         \
    }
CLASSIFY(classify32, uint32_t, UINT32_C(0x7f800000), UINT32_C(0x7fffff))
CLASSIFY(classify64, uint64_t, UINT64_C(0x7ff0000000000000), UINT64_C(0xfffffffffffff))

static const struct handler_entry entries[] = {
#define X(id, key, shape, ...) {key, id, shape},
#define Z(id, key, shape, ...) {key, id, shape},
#include "softgpu/ptx/integer.def"
#include "softgpu/ptx/float.def"
#define LIST(name, type, shape, ...) {"setp." #name "." #type, compare_##name##_##type, shape},
    COMPARISONS(LIST)
    {"select.32", select32, ""}, {"select.64", select64, ""}, {"bfi.b32", insert32, "wwwww"},
    {"bfi.b64", insert64, "lllww"}, {"lop3.b32", lop3, "wwww"}, {"prmt.b32", prmt, "wwww"},
    {"carry.32", carry32, "www"}, {"carry.64", carry64, "lll"}, {"multiply_carry.32", multiply_carry32, "wwww"},
    {"multiply_carry.64", multiply_carry64, "llll"}, {"and.pred", and_pred, "ppp"}, {"or.pred", or_pred, "ppp"},
    {"xor.pred", xor_pred, "ppp"}, {"not.pred", not_pred, "pp"}, {"mov.pred", mov_pred, "pp"},
    {"testp.f32", classify32, "pf"}, {"testp.f64", classify64, "pd"},
};

const struct handler_entry *TABLE(size_t *count)
{
    *count = sizeof entries / sizeof entries[0];
    return entries;
}

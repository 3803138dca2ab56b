/* Conversions of all types, and arithmetic with directed rounding. The compiler must respect the rounding mode of the
 * processor in this file. */
#include "softgpu/ptx/vector.h"

#include <fenv.h>
#include <float.h>

static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

/* ---- Arithmetic -------------------------------------------------------------------------------------------------- */

static float compute32(int op, volatile float a, volatile float b, volatile float c)
{
    volatile float v;
    switch (op) {
    case 0:
        v = a + b;
        break;
    case 1:
        v = a - b;
        break;
    case 2:
        v = a * b;
        break;
    case 3:
        v = fmaf(a, b, c);
        break;
    case 4:
        v = a / b;
        break;
    case 5:
        v = 1.0f / a;
        break;
    default:
        v = sqrtf(a);
    }
    return v;
}

static double compute64(int op, volatile double a, volatile double b, volatile double c)
{
    volatile double v;
    switch (op) {
    case 0:
        v = a + b;
        break;
    case 1:
        v = a - b;
        break;
    case 2:
        v = a * b;
        break;
    case 3:
        v = fma(a, b, c);
        break;
    case 4:
        v = a / b;
        break;
    case 5:
        v = 1.0 / a;
        break;
    default:
        v = sqrt(a);
    }
    return v;
}

void ptx_rounded(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask);
void ptx_rounded(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    int before = fegetround();
    fesetround(modes[i->round]);
    for (int t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        if (i->bytes == 8) {
            double v = compute64(i->op, bits_double(LONGS(1)[t]), bits_double(LONGS(2)[t]), bits_double(LONGS(3)[t]));
            LONGS(0)[t] = double_bits(i->flags & FLAG_SAT ? saturate_double(v) : v);
            continue;
        }
        float a = bits_float(WORDS(1)[t]), b = bits_float(WORDS(2)[t]), c = bits_float(WORDS(3)[t]);
        if (i->flags & FLAG_FTZ) {
            a = flush(a);
            b = flush(b);
            c = flush(c);
        }
        float v = compute32(i->op, a, b, c);
        v = i->flags & FLAG_FTZ ? flush(v) : v;
        WORDS(0)[t] = float_bits(i->flags & FLAG_SAT ? saturate(v) : one_nan(v));
    }
    fesetround(before);
}

/* ---- Conversions ------------------------------------------------------------------------------------------------- */

enum { SIZE_8, SIZE_16, SIZE_32, SIZE_64 };

static int is_real(uint8_t code)
{
    return code >> 2 == CLASS_FLOAT || code >> 2 == CLASS_BF16;
}

static uint64_t read_integer(uint64_t bits, uint8_t code)
{
    int is_signed = code >> 2 == CLASS_SIGNED;
    switch (code & 3) {
    case SIZE_8:
        return is_signed ? (uint64_t)(int64_t)(int8_t)bits : (uint8_t)bits;
    case SIZE_16:
        return is_signed ? (uint64_t)(int64_t)(int16_t)bits : (uint16_t)bits;
    case SIZE_32:
        return is_signed ? (uint64_t)(int64_t)(int32_t)bits : (uint32_t)bits;
    default:
        return bits;
    }
}

static double read_real(uint64_t bits, uint8_t code, int is_ftz)
{
    float single;
    switch (code & 3) {
    case SIZE_16:
        return (double)(code >> 2 == CLASS_BF16 ? bf16_float((uint32_t)bits) : half_float((uint32_t)bits));
    case SIZE_32:
        single = bits_float((uint32_t)bits);
        return (double)(is_ftz ? flush(single) : single);
    default:
        return bits_double(bits);
    }
}

/* Clamp to the range of the type. The value is the exact integer, in 128 bits. */
static uint64_t clamp(__int128 value, uint8_t code)
{
    int bits = 8 << (code & 3), is_signed = code >> 2 == CLASS_SIGNED;
    __int128 low = is_signed ? -((__int128)1 << (bits - 1)) : 0;
    __int128 high = is_signed ? ((__int128)1 << (bits - 1)) - 1 : ((__int128)1 << bits) - 1;
    return (uint64_t)(value < low ? low : value > high ? high : value);
}

/* Round to an integer and clamp. NaN becomes 0 for results of up to 32 bits, and the largest bit pattern of 64 bits. */
static uint64_t real_integer(double value, int round, uint8_t code)
{
    if (value != value)
        return (code & 3) == SIZE_64 ? UINT64_C(1) << 63 : 0;
    double whole = round == ROUND_ZERO   ? trunc(value)
                   : round == ROUND_DOWN ? floor(value)
                   : round == ROUND_UP   ? ceil(value)
                                         : nearbyint(value);
    if (whole >= 0x1p65)
        return clamp((__int128)1 << 66, code);
    if (whole <= -0x1p65)
        return clamp(-((__int128)1 << 66), code);
    return clamp((__int128)whole, code);
}

/* Round a double to 11 or 8 bits of precision. The processor has no such conversion for every mode, so the bits are
 * computed: `lowest` is the exponent of the smallest subnormal number. */
static double round_to(double value, int precision, int lowest, int round)
{
    int exponent;
    if (value == 0 || value != value || isinf(value))
        return value;
    frexp(value, &exponent);
    int unit = exponent - precision > lowest ? exponent - precision : lowest;
    double scaled = ldexp(value, -unit);
    double whole = round == ROUND_ZERO   ? trunc(scaled)
                   : round == ROUND_DOWN ? floor(scaled)
                   : round == ROUND_UP   ? ceil(scaled)
                   : round == ROUND_AWAY ? copysign(floor(fabs(scaled) + 0.5), scaled)
                                         : nearbyint(scaled);
    return copysign(ldexp(whole, unit), value);
}

static double limit_overflow(double value, double largest, int round)
{
    if (fabs(value) <= largest || isinf(value) || value != value)
        return value;
    int is_away = round == ROUND_NEAREST || (round == ROUND_UP && value > 0) || (round == ROUND_DOWN && value < 0);
    return is_away ? copysign((double)INFINITY, value) : copysign(largest, value);
}

/* Of f16, bf16 and tf32. */
static double largest_finite(const struct ptx_ins *i)
{
    return (i->result & 3) != SIZE_16 ? 0x1.ffcp127 : i->result >> 2 == CLASS_BF16 ? 0x1.fep127 : 65504;
}

/* The value is a double that is exact, or rounded to odd, so that a second rounding is correct. */
static uint64_t write_real(double value, const struct ptx_ins *i)
{
    if (i->flags & FLAG_SAT)
        value = saturate_double(value);
    if (i->flags & FLAG_RELU)
        value = value > 0 || value != value ? value : 0;
    if (i->flags & FLAG_FINITE && fabs(value) > largest_finite(i))
        value = copysign(largest_finite(i), value);
    if ((i->result & 3) == SIZE_64)
        return double_bits(value);
    if ((i->result & 3) == SIZE_16 && i->result >> 2 == CLASS_FLOAT) {
        double rounded = limit_overflow(round_to(value, 11, -24, i->round), 65504, i->round);
        return value != value ? 0x7fff : float_half((float)rounded);
    }
    if ((i->result & 3) == SIZE_16) {
        double rounded = limit_overflow(round_to(value, 8, -133, i->round), 0x1.fep127, i->round);
        return value != value ? 0x7fff : float_bits((float)rounded) >> 16;
    }
    if (i->flags & FLAG_BF16) /* tf32 */
        return float_bits(one_nan((float)limit_overflow(round_to(value, 11, -136, i->round), 0x1.ffcp127, i->round)));
    float single = (float)limit_overflow(round_to(value, 24, -149, i->round), FLT_MAX, i->round);
    return float_bits(one_nan(i->flags & FLAG_FTZ ? flush(single) : single));
}

/* Convert to a double; bits that do not fit set the lowest one (rounding to odd). */
static double integer_real(uint64_t value, int is_signed, int is_exact)
{
    int is_minus = is_signed && (int64_t)value < 0;
    uint64_t magnitude = is_minus ? 0 - value : value;
    if (is_exact && magnitude >> 53) {
        int extra = 64 - __builtin_clzll(magnitude) - 53;
        uint64_t lost = magnitude & ((UINT64_C(1) << extra) - 1);
        magnitude = (magnitude >> extra | (lost != 0)) << extra;
    }
    double real = (double)magnitude;
    return is_minus ? -real : real;
}

static uint64_t convert(uint64_t bits, const struct ptx_ins *i)
{
    if (is_real(i->source)) {
        double value = read_real(bits, i->source, i->flags & FLAG_FTZ);
        if (!is_real(i->result))
            return real_integer(value, i->round, i->result);
        if (i->flags & FLAG_WIDE) { /* to an integer in the same format */
            value = i->round == ROUND_ZERO   ? trunc(value)
                    : i->round == ROUND_DOWN ? floor(value)
                    : i->round == ROUND_UP   ? ceil(value)
                                             : nearbyint(value);
        }
        return write_real(value, i);
    }
    uint64_t value = read_integer(bits, i->source);
    int is_signed = i->source >> 2 == CLASS_SIGNED;
    if (is_real(i->result)) {
        if ((i->result & 3) != SIZE_64)
            return write_real(integer_real(value, is_signed, 1), i);
        int before = fegetround();
        fesetround(modes[i->round & 3]);
        volatile double rounded = is_signed ? (double)(int64_t)value : (double)value;
        fesetround(before);
        return double_bits(rounded);
    }
    if (i->flags & FLAG_SAT)
        return clamp(is_signed ? (__int128)(int64_t)value : (__int128)value, i->result);
    return value;
}

void ptx_convert(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    int is_wide = (i->source & 3) == SIZE_64;
    for (int t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        uint64_t v = convert(is_wide ? LONGS(1)[t] : WORDS(1)[t], i);
        if (!is_real(i->result)) /* extended to the size of the register */
            v = read_integer(v, i->result);
        if (i->bytes == 8)
            LONGS(0)[t] = v;
        else
            WORDS(0)[t] = i->bytes == 4 ? (uint32_t)v : i->bytes == 2 ? (uint16_t)v : (uint8_t)v;
    }
}

void ptx_convert_pair(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    for (int t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        if (i->round != ROUND_NEAREST || i->flags & FLAG_FINITE) {
            WORDS(0)[t] = (uint32_t)(write_real((double)bits_float(WORDS(1)[t]), i) << 16 |
                                     write_real((double)bits_float(WORDS(2)[t]), i));
            continue;
        }
        float high = bits_float(WORDS(1)[t]), low = bits_float(WORDS(2)[t]);
        if (i->flags & FLAG_RELU) {
            high = high > 0 || high != high ? high : 0;
            low = low > 0 || low != low ? low : 0;
        }
        WORDS(0)[t] = i->flags & FLAG_BF16 ? float_bf16(high) << 16 | float_bf16(low)
                                            : float_half(high) << 16 | float_half(low);
    }
}

/* cvt.pack: two integers, clamped to `count` bits, and the lower bits of a third operand above them. */
void ptx_convert_packed(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    const int bits = i->count, is_signed = i->flags & FLAG_SIGNED;
    const int64_t low = is_signed ? -(INT64_C(1) << (bits - 1)) : 0;
    const int64_t high = (INT64_C(1) << (is_signed ? bits - 1 : bits)) - 1;
    for (int t = 0; t < WARP; t++) {
        uint64_t v = 0;
        if (!(mask & ptx_bit[t]))
            continue;
        for (int k = 2; k > 0; k--) { /* the first operand is the upper one */
            const int64_t a = (int32_t)WORDS(3 - k)[t];
            v |= ((uint64_t)(a < low ? low : a > high ? high : a) & ((UINT64_C(1) << bits) - 1)) << (bits * (k - 1));
        }
        WORDS(0)[t] = (uint32_t)(bits < 16 ? v | (uint64_t)WORDS(3)[t] << (2 * bits) : v);
    }
}

/* ---- Numbers of eight bits: e4m3 and e5m2 ------------------------------------------------------------------------ */

/* Rounds to nearest; what is too large becomes the largest finite number. */
static uint32_t float_quarter(float x, int is_e5m2, int is_relu)
{
    float largest = is_e5m2 ? 57344.0f : 448.0f;
    if (x != x)
        return 0x7f;
    x = is_relu && !(x > 0) ? 0 : x;
    double rounded = round_to((double)x, is_e5m2 ? 3 : 4, is_e5m2 ? -16 : -9, ROUND_NEAREST);
    rounded = fabs(rounded) > (double)largest ? copysign((double)largest, rounded) : rounded;
    uint32_t sign = signbit(x) ? 0x80 : 0;
    if (is_e5m2)
        return float_half((float)rounded) >> 8;
    if (rounded == 0)
        return sign;
    int exponent;
    double fraction = frexp(fabs(rounded), &exponent); /* 0.5 to 1 */
    if (exponent < -5)
        return sign | (uint32_t)ldexp(fabs(rounded), 9);
    return sign | (uint32_t)(exponent + 6) << 3 | (uint32_t)(fraction * 16 - 8);
}

/* Pairs: of two floats (op 0) or of halves (1) to numbers of eight bits, or those to halves (2). */
void ptx_convert_quarter(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    int is_e5m2 = i->source, is_relu = i->flags & FLAG_RELU;
    for (int t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        uint32_t a = WORDS(1)[t];
        if (i->op == 2) {
            float low = quarter_float(a & 0xff, is_e5m2), high = quarter_float(a >> 8 & 0xff, is_e5m2);
            low = is_relu && low < 0 ? 0 : low;
            high = is_relu && high < 0 ? 0 : high;
            WORDS(0)[t] = float_half(low) | float_half(high) << 16;
            continue;
        }
        float high = i->op ? half_float(a >> 16) : bits_float(a);
        float low = i->op ? half_float(a) : bits_float(WORDS(2)[t]);
        WORDS(0)[t] = float_quarter(low, is_e5m2, is_relu) | float_quarter(high, is_e5m2, is_relu) << 8;
    }
}

/* ---- Vectors in registers ---------------------------------------------------------------------------------------- */

void ptx_pack(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t bits = i->bytes * 8u, is_wide = i->bytes * i->count == 8;
    for (int t = 0; t < WARP; t++) {
        uint64_t v = 0;
        if (!(mask & ptx_bit[t]))
            continue;
        for (uint32_t k = 0; k < i->count; k++) {
            uint64_t part = ((uint32_t *)slot_at(w, i->list[k]))[t];
            v |= (bits == 32 ? part : part & ((UINT64_C(1) << bits) - 1)) << (bits * k);
        }
        if (is_wide)
            LONGS(0)[t] = v;
        else
            WORDS(0)[t] = (uint32_t)v;
    }
}

void ptx_unpack(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t bits = i->bytes * 8u, is_wide = i->bytes * i->count == 8;
    for (int t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        uint64_t v = is_wide ? LONGS(0)[t] : WORDS(0)[t];
        for (uint32_t k = 0; k < i->count; k++)
            ((uint32_t *)slot_at(w, i->list[k]))[t] = (uint32_t)(v >> (bits * k) & ((UINT64_C(1) << bits) - 1));
    }
}

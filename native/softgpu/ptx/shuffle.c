/* Communication between the threads of a warp. */
#include "softgpu/ptx/vector.h"

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BUTTERFLY, SHUFFLE_INDEX };

static uint32_t members_of(const struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    if (i->o[5] == NO_SLOT)
        return mask;
    return WORDS(5)[__builtin_ctz(mask)] & mask;
}

/* A source outside the segment leaves the thread's own value. */
void ptx_shuffle(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t a[WARP], p = 0;
    memcpy(a, WORDS(1), sizeof a);
    for (int t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        int b = (int)(WORDS(2)[t] & 31), c = (int)WORDS(3)[t], segment = c >> 8 & 31;
        int low = t & segment, high = (t & segment) | ((c & 31) & ~segment), from, is_inside;
        switch (i->op) {
        case SHUFFLE_UP:
            from = t - b;
            is_inside = from >= high;
            break;
        case SHUFFLE_DOWN:
            from = t + b;
            is_inside = from <= high;
            break;
        case SHUFFLE_BUTTERFLY:
            from = t ^ b;
            is_inside = from <= high;
            break;
        default:
            from = low | (b & ~segment);
            is_inside = from <= high;
        }
        WORDS(0)[t] = a[is_inside ? from & 31 : t];
        p |= is_inside ? ptx_bit[t] : 0;
    }
    if (i->o[4] != NO_SLOT)
        set_predicate(w, i->o[4], mask, p);
}

void ptx_vote(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    enum { ALL, ANY, UNIFORM, BALLOT };
    uint32_t members = members_of(w, i, mask), votes = PREDICATE(1) & members;
    if (i->op == BALLOT) {
        for (int t = 0; t < WARP; t++)
            if (mask & ptx_bit[t])
                WORDS(0)[t] = votes;
        return;
    }
    int result = i->op == ALL ? votes == members : i->op == ANY ? votes != 0 : votes == members || !votes;
    set_predicate(w, i->o[0], mask, result ? UINT32_MAX : 0);
}

static uint64_t value_of(const struct ptx_warp *w, const struct ptx_ins *i, int t)
{
    return i->bytes == 8 ? LONGS(1)[t] : WORDS(1)[t];
}

void ptx_match(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t members = members_of(w, i, mask), equal[WARP] = {0};
    for (int t = 0; t < WARP; t++)
        for (int u = 0; u < WARP; u++)
            if (members & ptx_bit[u] && members & ptx_bit[t] && value_of(w, i, t) == value_of(w, i, u))
                equal[t] |= ptx_bit[u];
    uint32_t is_all = equal[__builtin_ctz(mask)] == members;
    for (int t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            WORDS(0)[t] = i->op ? (is_all ? members : 0) : equal[t];
    if (i->o[4] != NO_SLOT)
        set_predicate(w, i->o[4], mask, is_all ? UINT32_MAX : 0);
}

void ptx_reduce(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    enum { ADD, MIN, MAX, AND, OR, XOR };
    uint32_t members = members_of(w, i, mask), v = 0;
    int is_first = 1, is_signed = (i->flags & FLAG_SIGNED) != 0;
    for (int t = 0; t < WARP; t++) {
        if (!(members & ptx_bit[t]))
            continue;
        uint32_t a = WORDS(1)[t];
        int is_less = is_signed ? (int32_t)a < (int32_t)v : a < v;
        if (is_first)
            v = a;
        else if (i->op == ADD)
            v += a;
        else if (i->op == MIN)
            v = is_less ? a : v;
        else if (i->op == MAX)
            v = is_less ? v : a;
        else
            v = i->op == AND ? v & a : i->op == OR ? v | a : v ^ a;
        is_first = 0;
    }
    for (int t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            WORDS(0)[t] = v;
}

/* The smallest (op 1) or largest float; `round`: bit 0, of the absolute values; bit 1, NaN if one of them is NaN. */
void ptx_reduce_real(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t members = members_of(w, i, mask);
    float v = NAN;
    int has_nan = 0;
    for (int t = 0; t < WARP; t++) {
        if (!(members & ptx_bit[t]))
            continue;
        float a = bits_float(WORDS(1)[t] & (i->round & 1 ? 0x7fffffff : UINT32_MAX));
        has_nan |= a != a;
        v = i->op == 1 ? MIN_FLOAT(v, a) : MAX_FLOAT(v, a);
    }
    v = one_nan(has_nan && i->round & 2 ? NAN : v);
    for (int t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            WORDS(0)[t] = float_bits(v);
}

void ptx_elect(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t leader = (uint32_t)__builtin_ctz(members_of(w, i, mask));
    for (int t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            WORDS(0)[t] = leader;
    set_predicate(w, i->o[4], mask, ptx_bit[leader]);
}

void ptx_active_mask(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    for (int t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            WORDS(0)[t] = mask;
}

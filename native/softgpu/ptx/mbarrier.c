/* Barriers in shared memory: the mbarrier instructions. An object has 64 bits: the number of arrivals of a phase (bits 0
 * to 19), those that are missing (20 to 39), bytes that are still expected (40 to 60, signed), and the phase (63). */
#include "softgpu/ptx/vector.h"

enum { COUNT_BITS = 20, BYTES_FROM = 40, BYTES_BITS = 21, PHASE_BIT = 63 };
enum { OP_INIT, OP_INVALIDATE, OP_ARRIVE, OP_DROP, OP_EXPECT_AND_ARRIVE, OP_EXPECT, OP_COMPLETE, OP_TEST, OP_TEST_PARITY };
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)
#define BYTES_MASK ((UINT64_C(1) << BYTES_BITS) - 1)

struct object {
    uint64_t expected, pending, bytes, phase; /* bytes: modulo 2^21 */
};

static struct object unpack(uint64_t v)
{
    return (struct object){v & COUNT_MASK, v >> COUNT_BITS & COUNT_MASK, v >> BYTES_FROM & BYTES_MASK, v >> PHASE_BIT};
}

/* A phase ends when nothing is missing; the next one expects the same number of arrivals. */
static uint64_t pack(struct object o)
{
    if (!(o.pending & COUNT_MASK) && !(o.bytes & BYTES_MASK)) {
        o.phase ^= 1;
        o.pending = o.expected;
    }
    return (o.expected & COUNT_MASK) | (o.pending & COUNT_MASK) << COUNT_BITS | (o.bytes & BYTES_MASK) << BYTES_FROM |
           o.phase << PHASE_BIT;
}

static uint64_t changed(uint64_t old, int op, uint64_t count)
{
    struct object o = unpack(old);
    uint64_t arrivals = op == OP_EXPECT_AND_ARRIVE ? 1 : op == OP_ARRIVE || op == OP_DROP ? count : 0;
    o.bytes += op == OP_EXPECT || op == OP_EXPECT_AND_ARRIVE ? count : op == OP_COMPLETE ? 0 - count : 0;
    o.pending -= arrivals < o.pending ? arrivals : o.pending;
    o.expected -= op == OP_DROP ? (count < o.expected ? count : o.expected) : 0;
    return op == OP_EXPECT ? (o.expected | o.pending << COUNT_BITS | (o.bytes & BYTES_MASK) << BYTES_FROM |
                              o.phase << PHASE_BIT)
                           : pack(o);
}

/* o[0] gets the state before an arrival, or the predicate of a test; o[2] has the count, the bytes, the state or the
 * parity. */
static void execute(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t is_over = 0;
    for (uint32_t t = 0; t < WARP; t++) {
        uint64_t old;
        if (!(mask & ptx_bit[t]))
            continue;
        uint64_t address = (i->flags & FLAG_WIDE ? LONGS(1)[t] : WORDS(1)[t]) + (uint64_t)i->immediate;
        unsigned char *at = ptx_memory_at(w, address, sizeof old, i->space, t, i->op < OP_TEST);
        if (!at)
            return;
        memcpy(&old, at, sizeof old);
        if (i->op >= OP_TEST) {
            uint64_t phase = i->op == OP_TEST ? LONGS(2)[t] >> PHASE_BIT : WORDS(2)[t] & 1;
            is_over |= old >> PHASE_BIT != phase ? ptx_bit[t] : 0;
            continue;
        }
        uint64_t count = i->op == OP_INVALIDATE ? 0 : WORDS(2)[t];
        uint64_t v = i->op == OP_INIT         ? (count & COUNT_MASK) | (count & COUNT_MASK) << COUNT_BITS
                     : i->op == OP_INVALIDATE ? 0
                                              : changed(old, i->op, count);
        memcpy(at, &v, sizeof v);
        if (i->o[0] != NO_SLOT)
            LONGS(0)[t] = old;
    }
    if (i->op >= OP_TEST)
        set_predicate(w, i->o[0], mask, is_over);
}

int ptx_barrier_complete(struct ptx_warp *w, uint64_t address, uint32_t thread, uint32_t bytes)
{
    uint64_t v;
    unsigned char *at = ptx_memory_at(w, address, sizeof v, SPACE_SHARED, thread, 1);
    if (!at)
        return -1;
    memcpy(&v, at, sizeof v);
    v = changed(v, OP_COMPLETE, bytes);
    memcpy(at, &v, sizeof v);
    return 0;
}

static void pending_count(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    for (int t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            WORDS(0)[t] = (uint32_t)unpack(LONGS(1)[t]).pending;
}

static int operation(struct statement *s)
{
    static const struct {
        const char *name;
        int op;
    } names[] = {{"init", OP_INIT},         {"inval", OP_INVALIDATE}, {"arrive", OP_ARRIVE},    {"arrive_drop", OP_DROP},
                 {"expect_tx", OP_EXPECT},  {"complete_tx", OP_COMPLETE}, {"test_wait", OP_TEST}, {"try_wait", OP_TEST}};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (ptx_take(s, names[k].name)) {
            if (names[k].op == OP_ARRIVE && ptx_take(s, "expect_tx"))
                return OP_EXPECT_AND_ARRIVE;
            return names[k].op == OP_TEST && ptx_take(s, "parity") ? OP_TEST_PARITY : names[k].op;
        }
    return NONE;
}

/* Decode what is common: the address and the count, or what a test compares. */
static void emit(struct parser *parser, struct statement *s, int op, uint32_t result, int at)
{
    enum space space = ptx_take_space(s);
    struct ptx_place place;
    const int is_test = op >= OP_TEST, has_value = op != OP_INVALIDATE && s->count > at + 1;
    if (!ptx_take(s, "b64") || !ptx_rest(parser, s) || s->count <= at || s->count > at + 2 + is_test ||
        (!has_value && (is_test || op == OP_INIT || op == OP_EXPECT || op == OP_COMPLETE || op == OP_EXPECT_AND_ARRIVE))) {
        ptx_refuse(parser, "has an unsupported mbarrier instruction");
        return;
    }
    if (ptx_resolve_place(parser, s, &s->operands[at], space, &place) < 0)
        return;
    const struct type *type = ptx_named(op == OP_TEST ? "b64" : "b32");
    uint32_t value = has_value ? ptx_source(parser, s, &s->operands[at + 1], type) : ptx_constant(parser, 1, 4);
    if (value == NO_SLOT)
        return;
    struct ptx_ins *ins = ptx_emit(parser, s, execute, INS_MEMORY);
    ptx_set_place(ins, &place);
    ins->o[0] = result;
    ins->o[2] = value;
    ins->op = (uint8_t)op;
}

void ptx_decode_mbarrier(struct parser *parser, struct statement *s)
{
    const struct type *b64 = ptx_named("b64"), *b32 = ptx_named("b32");
    if (ptx_take(s, "pending_count") && s->count == 2) {
        uint32_t d = ptx_destination(parser, &s->operands[0], b32), a = ptx_source(parser, s, &s->operands[1], b64);
        struct ptx_ins *ins = ptx_emit(parser, s, pending_count, INS_PLAIN);
        ins->o[0] = d;
        ins->o[1] = a;
        return;
    }
    ptx_take_hints(s);
    ptx_take(s, "noComplete");
    int op = operation(s);
    int has_result = op == OP_ARRIVE || op == OP_DROP || op == OP_EXPECT_AND_ARRIVE || op >= OP_TEST;
    uint32_t result = NO_SLOT;
    /* An arrival at a barrier of another block has no result. */
    if (op == NONE || (has_result && (!s->count || s->operands[0].kind == OPERAND_ADDRESS))) {
        ptx_refuse(parser, "has an unsupported mbarrier instruction");
        return;
    }
    if (has_result)
        result = ptx_destination(parser, &s->operands[0], op >= OP_TEST ? ptx_named("pred") : b64);
    if (!has_result || result != NO_SLOT)
        emit(parser, s, op, result, has_result);
}

/* Copies are complete when they have been executed. Without noinc the arrival is added to the missing ones before. */
void ptx_decode_copy_arrival(struct parser *parser, struct statement *s)
{
    ptx_take(s, "arrive");
    if (ptx_take(s, "noinc"))
        emit(parser, s, OP_ARRIVE, NO_SLOT, 0);
    else
        ptx_emit(parser, s, NULL, INS_NOTHING);
}

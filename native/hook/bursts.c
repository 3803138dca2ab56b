/* Telling the pauses between requests from those within them. */
#include "hook/bursts.h"

#include <string.h>

enum {
    LONG_PART = 2,   /* of the usual pause, what is long */
    FEW_PAUSES = 8,  /* from then on none is taken for longer than so many usual ones: */
    SURPRISE = 64,
    REMEMBERED = 64, /* what is usual is told from so many of them */
    TURN_PAUSES = 512,
    OFTEN = 16,       /* one in so many pauses is long: requests end there */
    NEVER_AGAIN = 64, /* so many short ones in a row, and elsewhere long ones: they do not */
    ELSEWHERE = 4,
    AWAY_PAUSES = 4, /* a thread that stays away for so many usual ones has ended its request */
    LEAST_NS = 1,
};

/* ---- what is a long pause --------------------------------------------------------------------------------------------- */

static unsigned power_of(uint64_t pause_ns)
{
    const unsigned power = 63 - (unsigned)__builtin_clzll(pause_ns | LEAST_NS);
    return power < CT_BURST_POWERS ? power : CT_BURST_POWERS - 1;
}

/* The power of two in which three quarters of the time of all pauses are reached. */
static void learn_scale(struct ct_bursts *bursts, uint64_t pause_ns)
{
    if (bursts->pauses >= FEW_PAUSES && pause_ns / SURPRISE > bursts->scale_ns)
        pause_ns = bursts->scale_ns * SURPRISE;
    bursts->pauses += bursts->pauses < UINT32_MAX;
    bursts->weight_ns[power_of(pause_ns)] += pause_ns;
    bursts->total_ns += pause_ns;
    uint64_t sum_ns = 0;
    unsigned power = 0;
    while (power < CT_BURST_POWERS - 1 && (sum_ns += bursts->weight_ns[power]) < bursts->total_ns - bursts->total_ns / 4)
        power++;
    bursts->scale_ns = UINT64_C(1) << power;
    if (bursts->total_ns / REMEMBERED <= bursts->scale_ns)
        return;
    bursts->total_ns = 0;
    for (unsigned i = 0; i < CT_BURST_POWERS; i++)
        bursts->total_ns += bursts->weight_ns[i] /= 2;
}

/* ---- where requests end ----------------------------------------------------------------------------------------------- */

/* The entry of a turn; whoever was in its place is forgotten. */
static struct ct_turn *turn_of(struct ct_bursts *bursts, uint32_t before, uint32_t after)
{
    const uint64_t key = ((uint64_t)before << 32 | after) + 1;
    struct ct_turn *turn = &bursts->turn[key * UINT64_C(0x9e3779b97f4a7c15) >> 54];
    _Static_assert(CT_BURST_TURNS == 1 << (64 - 54), "the upper bits name a place");
    if (turn->key != key)
        *turn = (struct ct_turn){.key = key};
    return turn;
}

static int is_end(struct ct_bursts *bursts, struct ct_turn *turn, uint64_t pause_ns)
{
    const int is_long = pause_ns >= bursts->scale_ns / LONG_PART;
    turn->seen++;
    turn->since_long++;
    if (is_long) {
        turn->longs++;
        turn->since_long = 0;
        turn->mark = ++bursts->longs;
    }
    if (turn->since_long >= NEVER_AGAIN && bursts->longs - turn->mark >= ELSEWHERE)
        turn->is_end = 0; /* not for want of pauses: under load there are none anywhere */
    else if (turn->longs >= 2 && turn->longs * OFTEN >= turn->seen)
        turn->is_end = 1;
    if (turn->seen >= TURN_PAUSES) {
        turn->seen /= 2;
        turn->longs /= 2;
    }
    return turn->is_end || is_long;
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

void ct_bursts_open(struct ct_bursts *bursts)
{
    memset(bursts, 0, sizeof *bursts);
    bursts->current = &bursts->burst[0];
}

static struct ct_burst *burst_of(struct ct_bursts *bursts, uintptr_t thread)
{
    for (uint32_t i = 0; i < bursts->count; i++)
        if (bursts->burst[i].thread == thread)
            return &bursts->burst[i];
    return NULL;
}

static void set_going(struct ct_bursts *bursts, struct ct_burst *burst, int is_going)
{
    bursts->going += (uint32_t)(is_going - burst->is_going);
    burst->is_going = is_going;
}

/* For a further thread: a free place, or that of the one that is away longest; if none is, any. */
static struct ct_burst *place_for(struct ct_bursts *bursts, uintptr_t thread)
{
    struct ct_burst *away = NULL;
    if (bursts->count < CT_BURST_THREADS)
        return &bursts->burst[bursts->count++];
    for (uint32_t i = 0; i < CT_BURST_THREADS; i++) {
        struct ct_burst *burst = &bursts->burst[i];
        if (!burst->is_going && (!away || burst->ended_ns < away->ended_ns))
            away = burst;
    }
    return away ? away : &bursts->burst[thread / 64 % CT_BURST_THREADS];
}

void ct_bursts_turn_to(struct ct_bursts *bursts, uintptr_t thread)
{
    struct ct_burst *burst = burst_of(bursts, thread);
    if (!burst) {
        burst = place_for(bursts, thread);
        set_going(bursts, burst, 0);
        *burst = (struct ct_burst){.thread = thread};
    }
    bursts->current = burst;
}

/* ---- bursts ----------------------------------------------------------------------------------------------------------- */

static void count(struct ct_bursts *bursts, const struct ct_burst *burst, struct ct_burst_ends *ends)
{
    bursts->found += bursts->found < UINT32_MAX;
    if (bursts->found > CT_BURST_FIRST && ends->count < CT_BURST_THREADS)
        ends->latency_ns[ends->count++] = burst->ended_ns - burst->began_ns;
}

/* A thread that ended with its request never comes back to say so. */
static void sweep(struct ct_bursts *bursts, uint64_t now_ns, struct ct_burst_ends *ends)
{
    for (uint32_t i = 0; i < bursts->count; i++) {
        struct ct_burst *burst = &bursts->burst[i];
        if (burst == bursts->current || burst->is_going || burst->is_counted || !burst->ended_ns ||
            now_ns <= burst->ended_ns || (now_ns - burst->ended_ns) / AWAY_PAUSES < bursts->scale_ns)
            continue;
        count(bursts, burst, ends);
        burst->is_counted = 1;
    }
}

void ct_burst_resume(struct ct_bursts *bursts, uint32_t launch, uint64_t now_ns, struct ct_burst_ends *ends)
{
    struct ct_burst *burst = bursts->current;
    ends->count = 0;
    int begins = 1;
    if (burst->ended_ns) {
        const uint64_t pause_ns = now_ns > burst->ended_ns ? now_ns - burst->ended_ns : 0;
        struct ct_turn *turn = turn_of(bursts, burst->last, launch);
        learn_scale(bursts, pause_ns);
        begins = is_end(bursts, turn, pause_ns) || burst->is_counted;
        if (begins && !burst->is_counted)
            count(bursts, burst, ends);
    }
    if (begins)
        burst->began_ns = now_ns;
    burst->ended_ns = 0;
    burst->is_counted = burst->is_polled = 0;
    burst->last = launch;
    set_going(bursts, burst, 1);
    if (bursts->count > 1)
        sweep(bursts, now_ns, ends);
}

/* What comes after the first of several waits without any launch between them is its end only if it waited, too. */
static void end(struct ct_bursts *bursts, struct ct_burst *burst, int has_waited, uint64_t now_ns)
{
    if (!burst->is_going && (!has_waited || !burst->ended_ns || burst->is_counted))
        return;
    set_going(bursts, burst, 0);
    burst->ended_ns = now_ns > burst->began_ns ? now_ns : burst->began_ns;
    burst->is_polled = 0;
}

void ct_burst_waited(struct ct_bursts *bursts, uintptr_t thread, uint64_t took_ns, uint64_t now_ns)
{
    struct ct_burst *burst = burst_of(bursts, thread);
    if (!burst && bursts->going == 1) /* one thread launches, this one only waits */
        for (uint32_t i = 0; i < bursts->count; i++)
            burst = bursts->burst[i].is_going ? &bursts->burst[i] : burst;
    if (burst)
        end(bursts, burst, took_ns >= CT_BURST_WAITED_NS, now_ns);
}

void ct_burst_polled(struct ct_bursts *bursts, uintptr_t thread, int is_done, uint64_t now_ns)
{
    struct ct_burst *burst = burst_of(bursts, thread);
    if (!burst)
        return;
    if (is_done)
        end(bursts, burst, burst->is_polled, now_ns);
    else
        burst->is_polled = 1;
}

uint64_t ct_bursts_oldest(const struct ct_bursts *bursts)
{
    uint64_t oldest_ns = 0;
    if (bursts->found <= CT_BURST_FIRST)
        return 0;
    for (uint32_t i = 0; i < bursts->count; i++) {
        const struct ct_burst *burst = &bursts->burst[i];
        if (burst->is_going && (!oldest_ns || burst->began_ns < oldest_ns))
            oldest_ns = burst->began_ns;
    }
    return oldest_ns;
}

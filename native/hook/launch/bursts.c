/* Distinguishes pauses between requests from pauses within a request. */
#include "hook/launch/bursts.h"

#include <string.h>

enum {
    LONG_DIVISOR = 2,  /* a pause longer than the typical one divided by this is long */
    FEW_PAUSES = 8, /* after this many pauses none counts for more than PAUSE_FACTOR_MAX typical ones */
    PAUSE_FACTOR_MAX = 64,
    HISTORY_PAUSES = 64, /* the history covers about this many typical pauses */
    TRANSITION_PAUSES = 512,
    LONG_RATIO = 16,     /* a request ends where at least one in this many pauses is long */
    SHORT_COUNT = 64, /* and no longer after this many short pauses in a row, while long ones occurred elsewhere */
    LONG_ELSEWHERE = 4,
    IDLE_PAUSES = 4, /* a thread that is idle for this many typical pauses has ended its request */
    MIN_NS = 1,
};

/* ---- the typical pause -------------------------------------------------------------------------------------------- */

static unsigned power_of(uint64_t pause_ns)
{
    const unsigned power = 63 - (unsigned)__builtin_clzll(pause_ns | MIN_NS);
    return power < CT_BURST_POWERS ? power : CT_BURST_POWERS - 1;
}

/* Finds the power of two up to which pauses account for three quarters of the total pause time. */
static void learn_scale(struct ct_bursts *bursts, uint64_t pause_ns)
{
    if (bursts->pauses >= FEW_PAUSES && pause_ns / PAUSE_FACTOR_MAX > bursts->scale_ns)
        pause_ns = bursts->scale_ns * PAUSE_FACTOR_MAX;
    bursts->pauses += bursts->pauses < UINT32_MAX;
    bursts->weight_ns[power_of(pause_ns)] += pause_ns;
    bursts->total_ns += pause_ns;
    uint64_t sum_ns = 0;
    unsigned power = 0;
    while (power < CT_BURST_POWERS - 1 &&
           (sum_ns += bursts->weight_ns[power]) < bursts->total_ns - bursts->total_ns / 4)
        power++;
    bursts->scale_ns = UINT64_C(1) << power;
    if (bursts->total_ns / HISTORY_PAUSES <= bursts->scale_ns)
        return;
    bursts->total_ns = 0;
    for (unsigned i = 0; i < CT_BURST_POWERS; i++)
        bursts->total_ns += bursts->weight_ns[i] /= 2;
}

/* ---- the ends of requests ----------------------------------------------------------------------------------------- */

/* Returns the entry of a transition; another transition with the same hash is replaced. */
static struct ct_transition *transition_of(struct ct_bursts *bursts, uint32_t before, uint32_t after)
{
    const uint64_t key = ((uint64_t)before << 32 | after) + 1;
    struct ct_transition *transition = &bursts->transition[key * UINT64_C(0x9e3779b97f4a7c15) >> 54];
    _Static_assert(CT_BURST_TRANSITIONS == 1 << (64 - 54), "the upper bits of the hash are an index of the table");
    if (transition->key != key)
        *transition = (struct ct_transition){.key = key};
    return transition;
}

/* Learns from a pause and returns whether a request ended before it. */
static int ends_request(struct ct_bursts *bursts, struct ct_transition *transition, uint64_t pause_ns)
{
    const int is_long = pause_ns >= bursts->scale_ns / LONG_DIVISOR;
    transition->pause_count++;
    transition->since_long++;
    if (is_long) {
        transition->long_count++;
        transition->since_long = 0;
        transition->last_long = ++bursts->long_count;
    }
    if (transition->since_long >= SHORT_COUNT && bursts->long_count - transition->last_long >= LONG_ELSEWHERE)
        transition->is_end = 0; /* only if long pauses occur elsewhere: under load there are none at all */
    else if (transition->long_count >= 2 && transition->long_count * LONG_RATIO >= transition->pause_count)
        transition->is_end = 1;
    if (transition->pause_count >= TRANSITION_PAUSES) {
        transition->pause_count /= 2;
        transition->long_count /= 2;
    }
    return transition->is_end || is_long;
}

/* ---- threads ------------------------------------------------------------------------------------------------------ */

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

static void set_active(struct ct_bursts *bursts, struct ct_burst *burst, int is_active)
{
    bursts->active += (uint32_t)(is_active - burst->is_active);
    burst->is_active = is_active;
}

/* Returns an entry for another thread: a free one, or that of the thread that has been idle longest, or any. */
static struct ct_burst *entry_for(struct ct_bursts *bursts, uintptr_t thread)
{
    struct ct_burst *idle = NULL;
    if (bursts->count < CT_BURST_THREADS)
        return &bursts->burst[bursts->count++];
    for (uint32_t i = 0; i < CT_BURST_THREADS; i++) {
        struct ct_burst *burst = &bursts->burst[i];
        if (!burst->is_active && (!idle || burst->ended_ns < idle->ended_ns))
            idle = burst;
    }
    return idle ? idle : &bursts->burst[thread / 64 % CT_BURST_THREADS];
}

void ct_bursts_switch_thread(struct ct_bursts *bursts, uintptr_t thread)
{
    struct ct_burst *burst = burst_of(bursts, thread);
    if (!burst) {
        burst = entry_for(bursts, thread);
        set_active(bursts, burst, 0);
        *burst = (struct ct_burst){.thread = thread};
    }
    bursts->current = burst;
}

/* ---- bursts ------------------------------------------------------------------------------------------------------- */

/* Adds the latency of a burst that was a request, except during the warm-up. */
static void count_request(struct ct_bursts *bursts, const struct ct_burst *burst, struct ct_burst_ends *ends)
{
    bursts->burst_count += bursts->burst_count < UINT32_MAX;
    if (bursts->burst_count > CT_BURST_WARMUP && ends->count < CT_BURST_THREADS)
        ends->latency_ns[ends->count++] = burst->ended_ns - burst->began_ns;
}

/* Counts requests of threads that have exited, which never launch again. */
static void count_idle_bursts(struct ct_bursts *bursts, uint64_t now_ns, struct ct_burst_ends *ends)
{
    for (uint32_t i = 0; i < bursts->count; i++) {
        struct ct_burst *burst = &bursts->burst[i];
        if (burst == bursts->current || burst->is_active || burst->is_counted || !burst->ended_ns ||
            now_ns <= burst->ended_ns || (now_ns - burst->ended_ns) / IDLE_PAUSES < bursts->scale_ns)
            continue;
        count_request(bursts, burst, ends);
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
        struct ct_transition *transition = transition_of(bursts, burst->last_launch, launch);
        learn_scale(bursts, pause_ns);
        begins = ends_request(bursts, transition, pause_ns) || burst->is_counted;
        if (begins && !burst->is_counted)
            count_request(bursts, burst, ends);
    }
    if (begins)
        burst->began_ns = now_ns;
    burst->ended_ns = 0;
    burst->is_counted = burst->is_polled = 0;
    burst->last_launch = launch;
    set_active(bursts, burst, 1);
    if (bursts->count > 1)
        count_idle_bursts(bursts, now_ns, ends);
}

/* Of several waits without a launch in between, a later one ends the burst only if it actually waited. */
static void end_burst(struct ct_bursts *bursts, struct ct_burst *burst, int has_waited, uint64_t now_ns)
{
    if (!burst->is_active && (!has_waited || !burst->ended_ns || burst->is_counted))
        return;
    set_active(bursts, burst, 0);
    burst->ended_ns = now_ns > burst->began_ns ? now_ns : burst->began_ns;
    burst->is_polled = 0;
}

void ct_burst_waited(struct ct_bursts *bursts, uintptr_t thread, uint64_t took_ns, uint64_t now_ns)
{
    struct ct_burst *burst = burst_of(bursts, thread);
    if (!burst && bursts->active == 1) /* one thread launches, and this one only waits */
        for (uint32_t i = 0; i < bursts->count; i++)
            burst = bursts->burst[i].is_active ? &bursts->burst[i] : burst;
    if (burst)
        end_burst(bursts, burst, took_ns >= CT_BURST_WAITED_NS, now_ns);
}

void ct_burst_polled(struct ct_bursts *bursts, uintptr_t thread, int is_done, uint64_t now_ns)
{
    struct ct_burst *burst = burst_of(bursts, thread);
    if (!burst)
        return;
    if (is_done)
        end_burst(bursts, burst, burst->is_polled, now_ns);
    else
        burst->is_polled = 1;
}

uint64_t ct_bursts_oldest(const struct ct_bursts *bursts)
{
    uint64_t oldest_ns = 0;
    if (bursts->burst_count <= CT_BURST_WARMUP)
        return 0;
    for (uint32_t i = 0; i < bursts->count; i++) {
        const struct ct_burst *burst = &bursts->burst[i];
        if (burst->is_active && (!oldest_ns || burst->began_ns < oldest_ns))
            oldest_ns = burst->began_ns;
    }
    return oldest_ns;
}

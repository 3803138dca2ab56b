/* What do two events say? How long the work between them took, and what the device did before it. */
#include "hook/pairs.h"

enum { CLOSE_NS = 50, NEAR_NS = 500, PPM = 1000 * 1000, USUAL = 4, PROMPT_NS = 20 * 1000 };

static uint64_t whole_ns(double ns)
{
    return ns > 0 ? (uint64_t)(ns + 0.5) : 0;
}

/* When the begin was marked, by the device's own time; whether the device stood idle then. */
static int place_begin(const struct ct_timed_context *context, const struct ct_pair *pair, double *begin_ns, int *is_idle)
{
    float since_ms = 0;
    const struct ct_pair *reference = context->reference;
    if (reference && CT_NEXT(cuEventElapsedTime)(&since_ms, reference->end, pair->begin) != CUDA_SUCCESS)
        return 0;
    *begin_ns = context->reference_end_ns + 1e6 * (double)since_ms;
    *is_idle = !reference || *begin_ns > context->covered_until_ns + CLOSE_NS;
    return 1;
}

/* Where this work lies on the device's own time, and what the device did before it. */
static void place_in_time(struct ct_session *session, struct ct_timed_context *context, const struct ct_pair *pair,
                          double begin_ns, double length_ns)
{
    struct ct_record_header *header = session->record.header;
    const struct ct_pair *reference = context->reference;
    double end_ns = begin_ns + length_ns;
    int is_next = reference && reference->untimed_before == pair->untimed_before;
    if (!reference || begin_ns >= context->covered_until_ns) {
        uint64_t gap_ns = reference ? whole_ns(begin_ns - context->covered_until_ns) : 0;
        if (is_next)
            ct_histogram_add(&context->covered_by->kernel->gap, gap_ns);
        CT_ADD(header->span_ns, gap_ns + whole_ns(length_ns));
        CT_ADD(header->busy_ns, whole_ns(length_ns));
    } else { /* it ran beside what came before */
        uint64_t more_ns = whole_ns(end_ns - context->covered_until_ns);
        if (is_next)
            ct_histogram_add(&context->covered_by->kernel->gap, 0);
        CT_ADD(header->span_ns, more_ns);
        CT_ADD(header->busy_ns, more_ns);
    }
    if (!reference || end_ns > context->covered_until_ns) {
        context->covered_until_ns = end_ns;
        context->covered_by = pair->identity;
    }
    context->reference_end_ns = end_ns;
}

/* Begun on an idle stream, and its end marked by the device as soon as by the host: such a kernel was over before the
 * mark, which shows only a bound of its time. The least bound is the best that is known, until a run that was marked
 * in time tells better. */
static void add_length(struct ct_session *session, const struct ct_identity *identity, uint64_t length_ns, int is_bound)
{
    struct ct_record_kernel *kernel = identity->kernel;
    uint64_t count = atomic_load_explicit(&kernel->device.count, memory_order_relaxed);
    if (is_bound && count &&
        (!kernel->is_bound || atomic_load_explicit(&kernel->device.lowest, memory_order_relaxed) <= length_ns))
        return;
    if (kernel->is_bound || is_bound) {
        atomic_store_explicit(&kernel->device.count, 0, memory_order_relaxed);
        atomic_store_explicit(&kernel->device.total, 0, memory_order_relaxed);
        atomic_store_explicit(&kernel->device.highest, 0, memory_order_relaxed);
        for (unsigned i = 0; count && i < CT_RECORD_BUCKETS; i++)
            atomic_store_explicit(&kernel->device.buckets[i], 0, memory_order_relaxed);
    }
    kernel->is_bound = (uint32_t)is_bound;
    ct_histogram_add(&kernel->device, length_ns);
    if (!session->gateway)
        return; /* nobody plans with it */
    ct_lock(session);
    ct_known_learn(&session->known[identity->number], &kernel->device);
    ct_unlock(session);
}

/* A launch that was measured stands for all of its kind since the last that was: what they were charged is corrected to what
 * they used. Of one that takes much longer than its kind (`most_ns`; 0: any may), the excess is its own. */
static void correct(struct ct_session *session, const struct ct_pair *pair, uint64_t length_ns, uint64_t most_ns)
{
    const struct ct_known *known = &session->known[pair->identity->number];
    const uint64_t part_ppm = PPM - (known->free_ppm < PPM ? known->free_ppm : PPM);
    const uint64_t usual_ns = most_ns && length_ns > most_ns ? most_ns : length_ns;
    if (length_ns >= CT_GATE_FAR_NS || usual_ns > CT_GATE_FAR_NS / pair->charges)
        return;
    const uint64_t used_ns = usual_ns * pair->charges + (length_ns - usual_ns);
    ct_gate_measured(&session->gateway->gate, pair->charged_ns, used_ns * part_ppm / PPM,
                     ct_gateway_now(session, ct_clock_ticks(&session->clock)));
}

static void settle_share(struct ct_session *session, const struct ct_pair *pair, uint64_t length_ns, int is_right,
                         int is_bound)
{
    ct_lock(session);
    struct ct_known *known = &session->known[pair->identity->number];
    if (is_right ? !is_bound : !known->is_known) { /* of what nobody knows, a bound is better than nothing */
        correct(session, pair, length_ns, known->expect_ns * USUAL);
        if (!is_right && !is_bound && !session->gateway->gate.above_count) /* nobody above relies on it */
            ct_known_guess(known, length_ns);
    } else if (!is_right && !is_bound && !session->gateway->gate.is_mps) {
        const uint64_t shown_ns = ct_known_beside(known, length_ns, pair->has_waited);
        if (shown_ns)
            correct(session, pair, shown_ns, 0);
    }
    ct_unlock(session);
}

/* What a neighbour slowed down says nothing of the kernel: there was none, or none of them did anything meanwhile. */
static int is_clean(struct ct_session *session, const struct ct_pair *pair, uint64_t length_ns)
{
    if (session->gateway && !session->is_measuring && !ct_kin_was_still(session, &pair->still))
        return 0;
    if (pair->alone_since && pair->alone_since == ct_alone_since(&session->beside))
        return 1;
    if (!session->gateway)
        return 0;
    ct_lock(session);
    const struct ct_known *known = &session->known[pair->identity->number];
    const uint64_t least_ns = known->varies ? known->sure_ns : 0;
    ct_unlock(session);
    return ct_others_were_still(session, &pair->still, length_ns, least_ns);
}

int ct_pair_read_oldest(struct ct_session *session, struct ct_timed_context *context)
{
    struct ct_timing *timing = session->timing;
    float length_ms = 0;
    ct_timing_hold(&timing->lock);
    struct ct_pair *pair = context->first;
    ct_timing_let_go(&timing->lock);
    if (!pair)
        return 0;
    CUresult result = CT_NEXT(cuEventElapsedTime)(&length_ms, pair->begin, pair->end);
    if (result == CUDA_ERROR_NOT_READY)
        return 0;
    int is_read = result == CUDA_SUCCESS, is_idle = 1;
    double marked_ns = 1e6 * (double)length_ms, begin_ns = 0;
    if (is_read && session->is_measuring)
        is_read = place_begin(context, pair, &begin_ns, &is_idle);
    is_idle = is_idle && pair->begin_ticks;
    double late_ns = is_idle ? pair->late_ns : 0, length_ns = marked_ns > late_ns ? marked_ns - late_ns : 0;
    if (is_read && session->is_measuring)
        place_in_time(session, context, pair, begin_ns + late_ns, length_ns);
    if (is_read) {
        const int is_bound = is_idle && marked_ns <= pair->host_ns + NEAR_NS;
        const int is_right = is_clean(session, pair, whole_ns(length_ns));
        /* A host that got no processor between mark and launch shows in the length, whatever the kernel took. */
        const int is_prompt = session->is_measuring || pair->gap_ns <= marked_ns / 4 + PROMPT_NS;
        if (pair->charges && is_prompt)
            settle_share(session, pair, whole_ns(length_ns), is_right, is_bound);
        if (is_right && is_prompt)
            add_length(session, pair->identity, whole_ns(length_ns), is_bound);
    }
    ct_timing_hold(&timing->lock);
    context->first = pair->next;
    context->is_broken |= !is_read;
    struct ct_pair *done = context->reference;
    context->reference = pair;
    ct_timing_let_go(&timing->lock);
    atomic_fetch_sub_explicit(&timing->waiting, 1, memory_order_relaxed);
    if (done)
        ct_pair_give_back(timing, done, 0);
    return is_read;
}

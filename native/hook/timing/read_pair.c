/* Evaluates a pair of events: the time of the work between them, and what the device did before. */
#include "hook/slice/modules.h"
#include "hook/timing/pairs.h"

enum { CLOSE_NS = 50, NEAR_NS = 500, PPM = 1000 * 1000, USUAL_FACTOR = 4, PROMPT_NS = 20 * 1000 };

static uint64_t rounded_ns(double ns)
{
    return ns > 0 ? (uint64_t)(ns + 0.5) : 0;
}

/* Computes when the begin was recorded in device time, and whether the device was idle then. */
static int locate_begin(const struct ct_timed_context *context, const struct ct_pair *pair, double *begin_ns,
                        int *is_idle)
{
    float since_ms = 0;
    const struct ct_pair *reference = context->reference;
    if (reference && CT_NEXT(cuEventElapsedTime)(&since_ms, reference->end, pair->begin) != CUDA_SUCCESS)
        return 0;
    *begin_ns = context->reference_end_ns + 1e6 * (double)since_ms;
    *is_idle = !reference || *begin_ns > context->covered_until_ns + CLOSE_NS;
    return 1;
}

/* Places the work in device time, and counts the gap before it. */
static void locate_work(struct ct_session *session, struct ct_timed_context *context, const struct ct_pair *pair,
                        double begin_ns, double length_ns)
{
    struct ct_record_header *header = session->record.header;
    const struct ct_pair *reference = context->reference;
    double end_ns = begin_ns + length_ns;
    int is_next = reference && reference->untimed_before == pair->untimed_before;
    if (!reference || begin_ns >= context->covered_until_ns) {
        uint64_t gap_ns = reference ? rounded_ns(begin_ns - context->covered_until_ns) : 0;
        if (is_next && !reference->part_blocks && context->covered_by->kernel)
            ct_histogram_add(&context->covered_by->kernel->gap, gap_ns);
        add_single_writer(&header->span_ns, gap_ns + rounded_ns(length_ns));
        add_single_writer(&header->busy_ns, rounded_ns(length_ns));
    } else { /* it overlapped with earlier work */
        uint64_t more_ns = rounded_ns(end_ns - context->covered_until_ns);
        if (is_next && context->covered_by->kernel)
            ct_histogram_add(&context->covered_by->kernel->gap, 0);
        add_single_writer(&header->span_ns, more_ns);
        add_single_writer(&header->busy_ns, more_ns);
    }
    if (!reference || end_ns > context->covered_until_ns) {
        context->covered_until_ns = end_ns;
        context->covered_by = pair->identity;
    }
    context->reference_end_ns = end_ns;
}

/* Adds a measurement to the record. A bound is kept there until there is a real measurement. */
static void record_length(struct ct_record_kernel *kernel, uint64_t length_ns, int is_bound)
{
    uint64_t count = load_relaxed(&kernel->device.count);
    if (is_bound && count &&
        (!kernel->is_bound || load_relaxed(&kernel->device.lowest) <= length_ns))
        return;
    if (kernel->is_bound || is_bound) {
        store_relaxed(&kernel->device.count, 0);
        store_relaxed(&kernel->device.total, 0);
        store_relaxed(&kernel->device.highest, 0);
        for (unsigned i = 0; count && i < CT_RECORD_BUCKETS; i++)
            store_relaxed(&kernel->device.buckets[i], 0);
    }
    kernel->is_bound = (uint32_t)is_bound;
    ct_histogram_add(&kernel->device, length_ns);
}

/* If the stream was idle, and the device recorded the end as early as the host, then the kernel had ended before, and
 * the measurement is only an upper bound; the same holds next to an active neighbour, of which the record has none. */
static void add_length(struct ct_session *session, const struct ct_identity *identity, uint64_t length_ns, int is_bound,
                       int is_undisturbed)
{
    if (identity->kernel && is_undisturbed)
        record_length(identity->kernel, length_ns, is_bound);
    if (!session->gateway)
        return; /* the times are not used */
    ct_lock(session);
    ct_kernel_time_learn(identity->kernel_time, length_ns,
                         ct_gate_clock_ppm(&session->gateway->gate), is_bound || !is_undisturbed);
    ct_unlock(session);
}

/* Adds the measurement of a part, or of a variant, which is none of the kernel. */
static void add_part(struct ct_session *session, const struct ct_pair *pair, uint64_t length_ns, int is_bound)
{
    struct ct_slice *slice = load_relaxed(&pair->identity->function->slice);
    if (!session->gateway)
        return;
    ct_lock(session);
    struct ct_kernel_time *kernel_time = pair->identity->kernel_time;
    const uint64_t clock_ppm = ct_gate_clock_ppm(&session->gateway->gate);
    if (!pair->is_variant)
        ct_kernel_time_learn_part(kernel_time, pair->part_blocks, length_ns, clock_ppm, is_bound);
    else if (slice && !is_bound && kernel_time->duration.count)
        ct_slice_measured(slice, ct_duration_at_reference(length_ns, clock_ppm), kernel_time->expect_ns);
    ct_unlock(session);
}

/* A measured launch represents all launches of its kernel since the last measurement: what they were charged is
 * corrected to what they used. If it took much longer than usual (`max_ns`; 0: no limit), the excess counts for it
 * alone. */
static void correct_charge(struct ct_session *session, const struct ct_pair *pair, uint64_t length_ns, uint64_t max_ns)
{
    const struct ct_kernel_time *kernel_time = pair->identity->kernel_time;
    const uint64_t part_ppm = PPM - (kernel_time->free_ppm < PPM ? kernel_time->free_ppm : PPM);
    const uint64_t usual_ns = max_ns && length_ns > max_ns ? max_ns : length_ns;
    if (length_ns >= CT_GATE_HORIZON_NS || usual_ns > CT_GATE_HORIZON_NS / pair->charges)
        return;
    const uint64_t used_ns = usual_ns * pair->charges + (length_ns - usual_ns);
    ct_gate_measured(&session->gateway->gate, pair->charged_ns, used_ns * part_ppm / PPM,
                     ct_gateway_now(session, ct_clock_ticks(&session->clock)));
}

static void settle_share(struct ct_session *session, const struct ct_pair *pair, uint64_t length_ns, int is_undisturbed,
                         int is_bound)
{
    ct_lock(session);
    struct ct_kernel_time *kernel_time = pair->identity->kernel_time;
    if (is_undisturbed ? !is_bound : !kernel_time->is_known) { /* for an unknown kernel, a bound is better than
                                                                * nothing */
        correct_charge(session, pair, length_ns, kernel_time->expect_ns * USUAL_FACTOR);
        if (!is_undisturbed && !is_bound && !session->gateway->gate.higher_count) /* no higher-priority tenant depends
                                                                                   * on it */
            ct_kernel_time_learn_corun(kernel_time, length_ns);
    } else if (!is_undisturbed && !is_bound && !session->gateway->gate.is_mps) {
        const uint64_t corrected_ns = ct_kernel_time_corun(kernel_time, length_ns, pair->has_waited);
        if (corrected_ns)
            correct_charge(session, pair, corrected_ns, 0);
    }
    ct_unlock(session);
}

/* Returns whether no neighbour disturbed the measurement: there was none, or none of them launched meanwhile. */
static int is_clean(struct ct_session *session, const struct ct_pair *pair, uint64_t length_ns)
{
    if (session->gateway && !session->is_measuring && !ct_siblings_were_quiescent(session, &pair->quiescence))
        return 0;
    if (pair->alone_since && pair->alone_since == ct_membership_alone_since(session->membership))
        return 1;
    if (!session->gateway)
        return 0;
    ct_lock(session);
    const struct ct_kernel_time *kernel_time = pair->identity->kernel_time;
    const uint64_t min_ns = kernel_time->varies ? kernel_time->upper_ns : 0;
    ct_unlock(session);
    return ct_others_were_quiescent(session, &pair->quiescence, length_ns, min_ns);
}

int ct_pair_read_oldest(struct ct_session *session, struct ct_timed_context *context)
{
    struct ct_timing *timing = session->timing;
    float length_ms = 0;
    ct_timing_lock(&timing->lock);
    struct ct_pair *pair = context->first;
    ct_timing_unlock(&timing->lock);
    if (!pair)
        return 0;
    CUresult result = CT_NEXT(cuEventElapsedTime)(&length_ms, pair->begin, pair->end);
    if (result == CUDA_ERROR_NOT_READY)
        return 0;
    int is_read = result == CUDA_SUCCESS, is_idle = 1;
    double event_ns = 1e6 * (double)length_ms, begin_ns = 0;
    if (is_read && session->is_measuring)
        is_read = locate_begin(context, pair, &begin_ns, &is_idle);
    is_idle = is_idle && pair->begin_ticks;
    double late_ns = is_idle ? pair->late_ns : 0, length_ns = event_ns > late_ns ? event_ns - late_ns : 0;
    if (is_read && session->is_measuring)
        locate_work(session, context, pair, begin_ns + late_ns, length_ns);
    if (is_read) {
        const int is_bound = is_idle && event_ns <= pair->host_ns + NEAR_NS;
        const int is_undisturbed = is_clean(session, pair, rounded_ns(length_ns));
        /* If the host was descheduled between the event and the launch, the measurement is too long. */
        const int is_prompt = session->is_measuring || pair->gap_ns <= event_ns / 4 + PROMPT_NS;
        const int is_current = pair->identity_generation == pair->identity->generation; /* otherwise evicted */
        if (pair->charges && is_prompt && is_current)
            settle_share(session, pair, rounded_ns(length_ns), is_undisturbed, is_bound);
        if ((pair->part_blocks || pair->is_variant) && is_prompt && is_current)
            add_part(session, pair, rounded_ns(length_ns), is_bound || !is_undisturbed);
        else if (is_prompt && is_current)
            add_length(session, pair->identity, rounded_ns(length_ns), is_bound, is_undisturbed);
    }
    ct_timing_lock(&timing->lock);
    context->first = pair->next;
    context->is_broken |= !is_read;
    struct ct_pair *previous = context->reference;
    context->reference = pair;
    ct_timing_unlock(&timing->lock);
    fetch_sub_relaxed(&timing->waiting, 1);
    if (previous)
        ct_pair_give_back(timing, previous, 0);
    return is_read;
}

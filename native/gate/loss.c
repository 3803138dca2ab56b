/* What have those above really lost, of what was charged? The holder knows when its work should have been over, and when its
 * host came out of the wait for it: nothing is measured for that. */
#include "gate/loss.h"

#include "gate/words.h"

enum {
    PPM = 1000 * 1000,
    CLEAN_MOST = 16,              /* the mean over about so many waits beside nobody */
    MEMORY_NS = 4 * 1000 * 1000,  /* of what was charged, so much is remembered: then half of it */
    PRIOR_NS = 500 * 1000,        /* until much more than this was charged, the charges are taken to be right */
    ASTRAY_NS = 64 * MEMORY_NS,
    MET_MOST = 64,                /* waits in a row beside others after which nobody knows what it would be alone */
    LEAST_PPM = PPM / 8, /* charges are lowered by what is told, this far, and never raised */
    SLACK_PPM = 50 * 1000, /* a loss of this part of a wait, or of `delay` of it, counts twice */
    FELT_MOST = 31,        /* and none more than this and one */
};

void ct_loss_announced(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    struct ct_gate_burst *burst = &gate->burst;
    if (!burst->begin_ns) {
        burst->begin_ns = now_ns;
        burst->is_unsure = 0;
    }
    burst->end_ns = plus(later(burst->end_ns, now_ns), expect_ns);
    burst->is_unsure |= !expect_ns;
}

/* A loss counts for more, the more it is of the time that the host waited for: many small ones are felt less than a large
 * one, and what is promised of a tail is of single requests. */
static int64_t felt(const struct ct_gate *gate, int64_t late_ns, uint64_t span_ns)
{
    if (late_ns <= 0 || !span_ns)
        return late_ns;
    const uint64_t lost_ns = sooner((uint64_t)late_ns, CT_GATE_FAR_NS);
    const uint64_t slack_ppm = later(sooner(gate->delay_ppm, 8 * PPM), SLACK_PPM);
    const uint64_t slack_ns = later(sooner(span_ns, CT_GATE_FAR_NS) * slack_ppm / PPM, 1);
    return (int64_t)(lost_ns + sooner(lost_ns * sooner(lost_ns, UINT32_MAX) / slack_ns, FELT_MOST * lost_ns));
}

void ct_loss_drained(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_burst *burst = &gate->burst;
    const uint64_t begin_ns = burst->begin_ns, waits_ns = LOAD(gate->mine->waits_ns);
    const uint64_t due_ns = later(burst->end_ns, waits_ns);
    burst->begin_ns = burst->end_ns = 0;
    /* Who did not wait lost nothing that counts; a distance beyond all that is foreseen is none. */
    if (!begin_ns || !waits_ns || burst->is_unsure || left(due_ns, now_ns) > CT_GATE_FAR_NS ||
        left(now_ns, due_ns) > CT_GATE_FAR_NS)
        return;
    const int64_t late_ns = (int64_t)(now_ns - due_ns);
    if (believed(LOAD(gate->floor->below_ns), now_ns) < begin_ns) {
        burst->clean_count += burst->clean_count < CLEAN_MOST;
        burst->clean_ns += (late_ns - burst->clean_ns) / (int64_t)burst->clean_count;
        burst->met = 0;
    } else if (burst->clean_count && burst->met < MET_MOST) { /* one that is never alone does not know for long */
        burst->met++;
        ADD(gate->mine->lost_ns, (uint64_t)felt(gate, late_ns - burst->clean_ns, left(now_ns, begin_ns)));
        ADD(gate->mine->told, 1);
    }
}

void ct_loss_show(struct ct_gate *gate)
{
    const uint64_t busy_ns = LOAD(gate->mine->busy_ns);
    if (LOAD(gate->floor->below_ns) < busy_ns) /* of two that do this at once the later one should win; either is near */
        STORE(gate->floor->below_ns, busy_ns);
}

/* Whether all of those above who launched since the last time have told since what they lost. */
static int have_told(const struct ct_gate *gate)
{
    for (uint32_t i = 0; i < gate->above_count; i++) {
        const struct ct_gate_peer *peer = &gate->above[i];
        if (SEE(peer->page->sequence) != peer->told_at && LOAD(peer->page->told) == peer->told)
            return 0;
    }
    return 1;
}

static void fold(struct ct_gate_scale *scale, int64_t lost_ns, int64_t charged_ns)
{
    scale->lost_ns += lost_ns;
    scale->charged_ns += charged_ns;
    if (scale->charged_ns > MEMORY_NS) {
        scale->lost_ns /= 2;
        scale->charged_ns /= 2;
    }
    const int64_t really_ns = scale->lost_ns + PRIOR_NS;
    const uint64_t thought_us = (uint64_t)(scale->charged_ns + PRIOR_NS) / 1000;
    const uint64_t ppm = really_ns <= 0 ? 0 : (uint64_t)really_ns * 1000 / thought_us;
    scale->ppm = sooner(later(ppm, LEAST_PPM), PPM);
}

void ct_loss_look(struct ct_gate *gate)
{
    struct ct_gate_scale *scale = &gate->scale;
    const uint64_t sum_ns = LOAD(gate->floor->charged_ns);
    uint64_t lost_sum_ns = 0;
    for (uint32_t i = 0; i < gate->above_count; i++)
        if (SEE(gate->above[i].page->generation) == gate->above[i].generation)
            lost_sum_ns += LOAD(gate->above[i].page->lost_ns);
    const int64_t lost_ns = (int64_t)(lost_sum_ns - scale->lost_sum_ns);
    const int64_t charged_ns = (int64_t)(sum_ns - scale->charged_sum_ns);
    /* Whoever came or went took its sum along; and who has not told anything for long is to be believed no longer. */
    const int is_astray = charged_ns < 0 || charged_ns > ASTRAY_NS || lost_ns > ASTRAY_NS || lost_ns < -ASTRAY_NS;
    if (scale->is_begun && !is_astray && !have_told(gate))
        return;
    if (scale->is_begun && !is_astray)
        fold(scale, lost_ns, charged_ns);
    else
        *scale = (struct ct_gate_scale){.is_begun = 1, .ppm = PPM};
    scale->lost_sum_ns = lost_sum_ns;
    scale->charged_sum_ns = sum_ns;
    for (uint32_t i = 0; i < gate->above_count; i++) {
        gate->above[i].told = LOAD(gate->above[i].page->told);
        gate->above[i].told_at = SEE(gate->above[i].page->sequence);
    }
}

uint64_t ct_loss_scaled(const struct ct_gate *gate, uint64_t thought_ns)
{
    if (!gate->scale.ppm || thought_ns > UINT64_MAX / PPM)
        return thought_ns;
    return later(thought_ns * gate->scale.ppm / PPM, thought_ns != 0);
}

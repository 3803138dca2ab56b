/* What would a kernel cost those above, and how much of such work may be under way? */
#include "gate/price.h"

#include "gate/debt.h"
#include "gate/words.h"

enum { PPM = 1000 * 1000, DEEPER = 4 };

/* What a change of the process on the device costs, when ours would be the first since one above launched. */
uint64_t ct_price_switch(const struct ct_gate *gate)
{
    return gate->has_switched || gate->is_mps ? 0 : gate->switch_ns;
}

/* What one above loses in the mean if our work ends then. Its launch is as likely at any instant between the earliest and
 * the latest expected; past the latest, in as long as it has been waited for. */
static uint64_t loss_at(const struct sight *sight, uint64_t until_ns, uint64_t now_ns)
{
    const uint64_t from_ns = later(sight->end_ns, now_ns), over_ns = left(until_ns, from_ns);
    const uint64_t width_ns = later(left(sight->latest_ns, from_ns), left(now_ns, sight->end_ns));
    if (over_ns >= width_ns)
        return over_ns - width_ns / 2;
    return over_ns < UINT32_MAX ? over_ns * over_ns / width_ns / 2 : over_ns / 2;
}

/* What they lose by one that gives way block by block: what comes while it runs waits for a part of a block. What was
 * submitted before it has paid for its own time. */
uint64_t ct_price_beside(const struct ct_gate_wish *wish, const struct sight *sight, uint64_t now_ns)
{
    const uint64_t begin_ns = plus(now_ns, sight->submitted_ns), until_ns = plus(begin_ns, wish->expect_ns);
    /* What was launched and has not begun may begin at any instant. */
    const uint64_t from_ns = now_ns < sight->open_ns ? begin_ns : later(sight->end_ns, begin_ns);
    const uint64_t over_ns = left(until_ns, from_ns);
    if (!over_ns)
        return 0;
    const uint64_t pieces = sooner(over_ns, UINT32_MAX) * sight->pieces_per_s / UINT64_C(1000000000);
    return plus(sooner(ct_gate_yielded(plus(pieces, 1), wish->grain_ns), over_ns), 1);
}

uint64_t ct_price_part(uint64_t amount_ns, uint64_t ppm)
{
    return sooner(amount_ns, UINT32_MAX) * sooner(ppm, PPM) / PPM;
}

/* What may be submitted and not be over while nobody above is active: of work that gives way the more, the more those above
 * may lose, for it keeps nobody from the device but by the blocks that run. */
uint64_t ct_price_bound(const struct ct_gate *gate, const struct ct_gate_wish *wish)
{
    return wish->grain_ns ? plus(gate->bound_ns, ct_price_part(DEEPER * gate->bound_ns, gate->delay_ppm)) : gate->bound_ns;
}

/* And while somebody is. */
static uint64_t depth_of(const struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    const int gives_way = wish->grain_ns && (gate->grain_ns || LOAD(gate->mine->busy_ns) <= now_ns);
    return plus(CT_GATE_DEPTH_NS, gives_way ? ct_price_part(ct_price_bound(gate, wish), gate->delay_ppm) : 0);
}

int ct_price_is_deep(const struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                     uint64_t now_ns)
{
    return sight->submitted_ns > CT_GATE_LEAD_NS / 2 &&
           plus(sight->submitted_ns, wish->expect_ns) > depth_of(gate, wish, now_ns);
}

/* What those above lose in the mean by this kernel in a gap; hardly any takes as long as it may, so mostly the mean counts. */
uint64_t ct_price_gap(const struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                      uint64_t now_ns)
{
    const uint64_t cost_ns = ct_price_switch(gate);
    const uint64_t from_ns = plus(now_ns, plus(sight->submitted_ns, plus(cost_ns, cost_ns)));
    const uint64_t sure_ns = later(wish->sure_ns, wish->expect_ns);
    if (!cost_ns && plus(from_ns, sure_ns) <= sight->end_ns)
        return 0;
    const uint64_t mean_ns = loss_at(sight, plus(from_ns, wish->expect_ns), now_ns);
    const uint64_t most_ns = loss_at(sight, plus(from_ns, sure_ns), now_ns);
    const uint64_t loss_ns = plus(mean_ns - mean_ns / 4 + most_ns / 4, cost_ns + 1);
    /* One that ends in time in the mean only is not for nothing, though no kernel of theirs is expected to meet it. */
    return wish->grain_ns && !cost_ns ? sooner(loss_ns, later(ct_price_beside(wish, sight, now_ns), 1)) : loss_ns;
}

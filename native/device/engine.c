/* Copies to and from the host: one at a time per engine, in the order of readiness, independent of priorities and time
 * slices.
 *
 * Traces show that engines take the copy that is ready next and ignore stream priorities (meta-pytorch/torchrec, pull
 * requests 4303 and 4315). The hardware schedules them independently too, so copies of one process overlap with kernels
 * of another. */
#include "device/state.h"

static uint32_t engine_for(const struct ct_device *d, const struct ct_op *op)
{
    return op->kind == CT_OP_COPY_DTOH && d->config.copy_engines > 1;
}

static void begin(struct ct_device *d, struct ct_engine *engine)
{
    if (engine->first == CT_NONE) {
        engine->end_ns = CT_DEVICE_NEVER;
        return;
    }
    struct ct_op *op = &ct_ops(d)[engine->first];
    uint64_t host_bytes_per_s = d->config.host_bytes_per_s;
    uint64_t copy_ns = ct_scale(op->bytes, 1000000000, host_bytes_per_s, host_bytes_per_s - 1);
    op->start_ns = d->now_ns;
    engine->end_ns = ct_instant_after(d->now_ns, ct_instant_after(copy_ns, d->config.copy_latency_ns));
}

void ct_engine_enter(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    struct ct_engine *engine = &d->engines[engine_for(d, o)];
    o->ready_prev = engine->last;
    o->ready_next = CT_NONE;
    if (engine->last != CT_NONE)
        ct_ops(d)[engine->last].ready_next = op;
    else
        engine->first = op;
    engine->last = op;
    if (engine->first == op)
        begin(d, engine);
}

void ct_engine_remove(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    struct ct_engine *engine = &d->engines[engine_for(d, o)];
    int was_first = engine->first == op;
    if (o->ready_prev != CT_NONE)
        ct_ops(d)[o->ready_prev].ready_next = o->ready_next;
    else
        engine->first = o->ready_next;
    if (o->ready_next != CT_NONE)
        ct_ops(d)[o->ready_next].ready_prev = o->ready_prev;
    else
        engine->last = o->ready_prev;
    if (was_first)
        begin(d, engine);
}

void ct_engine_finish(struct ct_device *d, uint32_t engine)
{
    uint32_t op = d->engines[engine].first;
    ct_engine_remove(d, op);
    ct_order_complete(d, op);
}

/* Every order of the accesses when each thread's stores wait in a queue before others see them, as on x86 (TSO). */
#include "tests/gate_explore.h"

enum { QUEUE = 16 };

struct state {
    uint64_t memory[PLACES]; /* as memory_at() reads it: words are met one after the other, and begin as in the file */
    uint64_t queued[THREADS][QUEUE];
    uint8_t place[THREADS][QUEUE];
    uint32_t node[THREADS];
    uint8_t waiting[THREADS], is_dead[THREADS]; /* the queue of the dead still empties */
    uint8_t fill[6];
};
_Static_assert(sizeof(struct state) % 8 == 0, "it is hashed in words, and none of them is left to chance");

static void step_to(struct world *world, struct state *state, int thread, uint64_t result)
{
    state->node[thread] = follow(world, thread, state->node[thread], result);
    if (world->judge_step)
        complain(world, world->judge_step(world, thread, state->node[thread], state->memory));
}

/* What a thread sees at a place: its own latest store, even while that waits. */
static uint64_t seen_by(const struct state *state, int thread, int place)
{
    for (int i = state->waiting[thread] - 1; i >= 0; i--)
        if (state->place[thread][i] == place)
            return state->queued[thread][i];
    return memory_at(state->memory, place);
}

static void flush(struct state *state, int thread, int which)
{
    const int place = state->place[thread][which];
    state->memory[place] = state->queued[thread][which] ^ value_at_start(place);
    const int last = --state->waiting[thread];
    for (int i = which; i < last; i++) {
        state->place[thread][i] = state->place[thread][i + 1];
        state->queued[thread][i] = state->queued[thread][i + 1];
    }
    state->place[thread][last] = 0;
    state->queued[thread][last] = 0;
}

/* Steps that no other thread can tell from a later instant are done at once, so that fewer orders remain. */
static void run_alone(struct world *world, struct state *state, int thread)
{
    while (!state->is_dead[thread]) {
        const struct access access = node_of(&world->thread[thread], state->node[thread])->next;
        if (access.kind == A_FENCE) {
            step_to(world, state, thread, 0);
        } else if (access.kind == A_STORE && seen_by(state, thread, access.place) == access.value) {
            step_to(world, state, thread, 0); /* nobody can tell that it was stored again */
        } else if (access.kind == A_STORE) {
            if (state->waiting[thread] == QUEUE)
                return; /* a full queue empties first */
            state->place[thread][state->waiting[thread]] = (uint8_t)access.place;
            state->queued[thread][state->waiting[thread]++] = access.value;
            step_to(world, state, thread, 0);
        } else if (access.kind == A_LOAD &&
                   (is_constant(access.place) || owner_of(access.place) == world->thread[thread].slot)) {
            step_to(world, state, thread, seen_by(state, thread, access.place));
        } else {
            return;
        }
    }
}

static void visit(struct world *world, const struct state *from);

static void try_flush(struct world *world, const struct state *from, int thread)
{
    const int most = world->broken == UNORDERED_STORES ? from->waiting[thread] : from->waiting[thread] > 0;
    for (int which = 0; which < most; which++) {
        struct state to = *from;
        flush(&to, thread, which);
        visit(world, &to);
    }
}

static void try_access(struct world *world, const struct state *from, int thread)
{
    const struct access access = node_of(&world->thread[thread], from->node[thread])->next;
    if (from->is_dead[thread] || access.kind == A_END || (access.kind != A_LOAD && from->waiting[thread]))
        return; /* a read and write in one waits until the queue is empty */
    struct state to = *from;
    const uint64_t before = seen_by(from, thread, access.place);
    if (access.kind == A_ADD)
        to.memory[access.place] = (before + access.value) ^ value_at_start(access.place);
    else if (access.kind == A_SWAP && before == access.expected)
        to.memory[access.place] = access.value ^ value_at_start(access.place);
    step_to(world, &to, thread, before);
    visit(world, &to);
}

static void visit(struct world *world, const struct state *from)
{
    struct state state = *from;
    bool is_over = true;
    for (int i = 0; i < world->threads; i++)
        run_alone(world, &state, i);
    if (world->complaint || seen_before(&state, sizeof state))
        return;
    world->states++;
    for (int i = 0; i < world->threads; i++) {
        is_over &= !state.waiting[i] &&
                   (state.is_dead[i] || node_of(&world->thread[i], state.node[i])->next.kind == A_END);
        try_flush(world, &state, i);
        try_access(world, &state, i);
        if (world->thread[i].is_mortal && !state.is_dead[i] &&
            node_of(&world->thread[i], state.node[i])->next.kind != A_END) {
            struct state to = state;
            to.is_dead[i] = 1;
            visit(world, &to);
        }
    }
    if (is_over)
        judge(world, state.node, state.memory);
}

void explore_buffers(struct world *world)
{
    const struct state start = {0};
    world_begin(world);
    visit(world, &start);
}

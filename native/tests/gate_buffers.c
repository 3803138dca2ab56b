/* Explores every order of accesses under total store order (x86): each thread's stores wait in a queue before others
 * see them. */
#include "tests/gate_explore.h"

enum { QUEUE = 16 };

struct state {
    uint64_t memory[PLACES]; /* as memory_at() reads it: initially as in the file */
    uint64_t queued[THREADS][QUEUE];
    uint8_t place[THREADS][QUEUE];
    uint32_t node[THREADS];
    uint8_t waiting[THREADS], is_dead[THREADS]; /* the queue of a dead thread still drains */
    uint8_t fill[6];
};
_Static_assert(sizeof(struct state) % 8 == 0, "it is hashed in words, and none of them is left to chance");

static void step_to(struct scenario *scenario, struct state *state, int thread, uint64_t result)
{
    state->node[thread] = follow(scenario, thread, state->node[thread], result);
    if (scenario->check_step)
        complain(scenario, scenario->check_step(scenario, thread, state->node[thread], state->memory));
}

/* Returns what a thread reads: its own latest store, even if that is still queued. */
static uint64_t read_by(const struct state *state, int thread, int place)
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

/* Steps that other threads cannot distinguish from later ones are executed at once, so that fewer orders remain. */
static void run_alone(struct scenario *scenario, struct state *state, int thread)
{
    while (!state->is_dead[thread]) {
        const struct access access = node_of(&scenario->thread[thread], state->node[thread])->next;
        if (access.kind == A_FENCE) {
            step_to(scenario, state, thread, 0);
        } else if (access.kind == A_STORE && read_by(state, thread, access.place) == access.value) {
            step_to(scenario, state, thread, 0); /* storing the same value again is not observable */
        } else if (access.kind == A_STORE) {
            if (state->waiting[thread] == QUEUE)
                return; /* a full queue drains first */
            state->place[thread][state->waiting[thread]] = (uint8_t)access.place;
            state->queued[thread][state->waiting[thread]++] = access.value;
            step_to(scenario, state, thread, 0);
        } else if (access.kind == A_LOAD &&
                   (is_constant(access.place) || owner_of(access.place) == scenario->thread[thread].slot)) {
            step_to(scenario, state, thread, read_by(state, thread, access.place));
        } else {
            return;
        }
    }
}

static void visit(struct scenario *scenario, const struct state *from);

static void try_flush(struct scenario *scenario, const struct state *from, int thread)
{
    const int max = scenario->broken == UNORDERED_STORES ? from->waiting[thread] : from->waiting[thread] > 0;
    for (int which = 0; which < max; which++) {
        struct state to = *from;
        flush(&to, thread, which);
        visit(scenario, &to);
    }
}

static void try_access(struct scenario *scenario, const struct state *from, int thread)
{
    const struct access access = node_of(&scenario->thread[thread], from->node[thread])->next;
    if (from->is_dead[thread] || access.kind == A_END || (access.kind != A_LOAD && from->waiting[thread]))
        return; /* an atomic read-modify-write waits until the queue is empty */
    struct state to = *from;
    const uint64_t before = read_by(from, thread, access.place);
    if (access.kind == A_ADD)
        to.memory[access.place] = (before + access.value) ^ value_at_start(access.place);
    else if (access.kind == A_SWAP && before == access.expected)
        to.memory[access.place] = access.value ^ value_at_start(access.place);
    step_to(scenario, &to, thread, before);
    visit(scenario, &to);
}

static void visit(struct scenario *scenario, const struct state *from)
{
    struct state state = *from;
    bool is_over = true;
    for (int i = 0; i < scenario->threads; i++)
        run_alone(scenario, &state, i);
    if (scenario->complaint || was_visited(&state, sizeof state))
        return;
    scenario->states++;
    for (int i = 0; i < scenario->threads; i++) {
        is_over &= !state.waiting[i] &&
                   (state.is_dead[i] || node_of(&scenario->thread[i], state.node[i])->next.kind == A_END);
        try_flush(scenario, &state, i);
        try_access(scenario, &state, i);
        if (scenario->thread[i].is_mortal && !state.is_dead[i] &&
            node_of(&scenario->thread[i], state.node[i])->next.kind != A_END) {
            struct state to = state;
            to.is_dead[i] = 1;
            visit(scenario, &to);
        }
    }
    if (is_over)
        judge(scenario, state.node, state.memory);
}

void explore_buffers(struct scenario *scenario)
{
    const struct state start = {0};
    scenario_begin(scenario);
    visit(scenario, &start);
}

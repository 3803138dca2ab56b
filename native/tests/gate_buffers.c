/* Explores every order of accesses under total store order (x86): each thread's stores wait in a queue before others
 * see them. */
#include "tests/gate_explore.h"

enum { QUEUE = 16 };

struct state {
    uint64_t memory[WORDS]; /* as memory_at() reads it: initially as in the file */
    uint64_t queued[THREADS][QUEUE];
    uint8_t word[THREADS][QUEUE];
    uint32_t node[THREADS];
    uint8_t waiting[THREADS], is_dead[THREADS]; /* the queue of a dead thread still drains */
    uint8_t padding[6];
};
_Static_assert(sizeof(struct state) % 8 == 0, "the state is hashed in words, and all of its bytes are initialized");

/* Advances a thread by the access that returned this result. */
static void step_to(struct scenario *scenario, struct state *state, int thread, uint64_t result)
{
    state->node[thread] = follow(scenario, thread, state->node[thread], result);
    if (scenario->check_step)
        report_violation(scenario, scenario->check_step(scenario, thread, state->node[thread], state->memory));
}

/* Returns what a thread reads: its own latest store, even if that is still queued. */
static uint64_t read_value(const struct state *state, int thread, int word)
{
    for (int i = state->waiting[thread] - 1; i >= 0; i--)
        if (state->word[thread][i] == word)
            return state->queued[thread][i];
    return memory_at(state->memory, word);
}

static void flush(struct state *state, int thread, int position)
{
    const int word = state->word[thread][position];
    state->memory[word] = state->queued[thread][position] ^ initial_value(word);
    const int last = --state->waiting[thread];
    for (int i = position; i < last; i++) {
        state->word[thread][i] = state->word[thread][i + 1];
        state->queued[thread][i] = state->queued[thread][i + 1];
    }
    state->word[thread][last] = 0;
    state->queued[thread][last] = 0;
}

/* Executes steps that other threads cannot distinguish from later ones at once, so that fewer orders remain. */
static void run_invisible_steps(struct scenario *scenario, struct state *state, int thread)
{
    while (!state->is_dead[thread]) {
        const struct access access = node_of(&scenario->thread[thread], state->node[thread])->next;
        if (access.kind == A_FENCE) {
            step_to(scenario, state, thread, 0);
        } else if (access.kind == A_STORE && read_value(state, thread, access.word) == access.value) {
            step_to(scenario, state, thread, 0); /* storing the same value again is not observable */
        } else if (access.kind == A_STORE) {
            if (state->waiting[thread] == QUEUE)
                return; /* a full queue drains first */
            state->word[thread][state->waiting[thread]] = (uint8_t)access.word;
            state->queued[thread][state->waiting[thread]++] = access.value;
            step_to(scenario, state, thread, 0);
        } else if (access.kind == A_LOAD &&
                   (is_constant(access.word) || owner_of(access.word) == scenario->thread[thread].slot)) {
            step_to(scenario, state, thread, read_value(state, thread, access.word));
        } else {
            return;
        }
    }
}

static void visit(struct scenario *scenario, const struct state *from);

static void try_flush(struct scenario *scenario, const struct state *from, int thread)
{
    const int max = scenario->defect == UNORDERED_STORES ? from->waiting[thread] : from->waiting[thread] > 0;
    for (int position = 0; position < max; position++) {
        struct state to = *from;
        flush(&to, thread, position);
        visit(scenario, &to);
    }
}

static void try_access(struct scenario *scenario, const struct state *from, int thread)
{
    const struct access access = node_of(&scenario->thread[thread], from->node[thread])->next;
    if (from->is_dead[thread] || access.kind == A_END || (access.kind != A_LOAD && from->waiting[thread]))
        return; /* an atomic read-modify-write waits until the queue is empty */
    struct state to = *from;
    const uint64_t before = read_value(from, thread, access.word);
    if (access.kind == A_ADD)
        to.memory[access.word] = (before + access.value) ^ initial_value(access.word);
    else if (access.kind == A_SWAP && before == access.expected)
        to.memory[access.word] = access.value ^ initial_value(access.word);
    step_to(scenario, &to, thread, before);
    visit(scenario, &to);
}

static void visit(struct scenario *scenario, const struct state *from)
{
    struct state state = *from;
    bool has_ended = true;
    for (int i = 0; i < scenario->threads; i++)
        run_invisible_steps(scenario, &state, i);
    if (scenario->violation || was_visited(&state, sizeof state))
        return;
    scenario->states++;
    for (int i = 0; i < scenario->threads; i++) {
        has_ended &= !state.waiting[i] &&
                   (state.is_dead[i] || node_of(&scenario->thread[i], state.node[i])->next.kind == A_END);
        try_flush(scenario, &state, i);
        try_access(scenario, &state, i);
        if (scenario->thread[i].may_die && !state.is_dead[i] &&
            node_of(&scenario->thread[i], state.node[i])->next.kind != A_END) {
            struct state to = state;
            to.is_dead[i] = 1;
            visit(scenario, &to);
        }
    }
    if (has_ended)
        check_final_state(scenario, state.node, state.memory);
}

void explore_buffers(struct scenario *scenario)
{
    const struct state start = {0};
    scenario_begin(scenario);
    visit(scenario, &start);
}

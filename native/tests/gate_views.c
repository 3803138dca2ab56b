/* Explores every order that C11 permits: a load may return any store to its word that is not older than what the thread
 * has observed.
 *
 * Each word has the list of its stores, each thread the latest store of each word that it has observed (its view), and
 * each store the view that an acquiring load takes over. A store is appended at once: others may still read older ones.
 * This is correct because every word has a single writer, or is only changed by read-modify-write operations. Loads do
 * not move after later stores of the same thread. */
#include "tests/expect.h"
#include "tests/gate_explore.h"

#include <string.h>

enum { STORES = 5 };

struct state {
    uint64_t value[PLACES][STORES]; /* [0]: as in the file, represented by 0 */
    uint8_t taken_over[PLACES][STORES][PLACES];
    uint8_t view[THREADS][PLACES], released[THREADS][PLACES], unacquired[THREADS][PLACES];
    uint8_t last[PLACES];
    uint32_t node[4];
};
_Static_assert(sizeof(struct state) % 8 == 0 && THREADS < 4, "it is hashed in words");

static void join(uint8_t *view, const uint8_t *other)
{
    for (int i = 0; i < PLACES; i++)
        view[i] = view[i] > other[i] ? view[i] : other[i];
}

static bool acquires(int order)
{
    return order == memory_order_acquire || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static bool releases(int order)
{
    return order == memory_order_release || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static uint64_t value_of(const struct state *state, int place, int which)
{
    return which ? state->value[place][which] : value_at_start(place);
}

static void take(struct state *state, int thread, int place, int which, int order)
{
    state->view[thread][place] = (uint8_t)which;
    join(acquires(order) ? state->view[thread] : state->unacquired[thread], state->taken_over[place][which]);
}

static void append(struct state *state, int thread, int place, uint64_t value, int order)
{
    const int which = ++state->last[place];
    EXPECT(which < STORES);
    state->value[place][which] = value;
    state->view[thread][place] = (uint8_t)which;
    join(state->taken_over[place][which], releases(order) ? state->view[thread] : state->released[thread]);
    state->taken_over[place][which][place] = (uint8_t)which;
}

static void change(struct state *state, int thread, const struct access *access, uint64_t value)
{
    const int before = state->last[access->place];
    take(state, thread, access->place, before, access->order);
    append(state, thread, access->place, value, access->order);
    /* A load that acquires a read-modify-write also acquires the earlier stores of its release sequence. */
    join(state->taken_over[access->place][before + 1], state->taken_over[access->place][before]);
}

static void step_to(struct scenario *scenario, struct state *state, int thread, uint64_t result)
{
    state->node[thread] = follow(scenario, thread, state->node[thread], result);
}

static void run_alone(struct scenario *scenario, struct state *state, int thread)
{
    for (;;) {
        const struct access access = node_of(&scenario->thread[thread], state->node[thread])->next;
        if (access.kind == A_END || access.kind == A_SWAP)
            return;
        const int last = state->last[access.place];
        const bool is_own = owner_of(access.place) == scenario->thread[thread].slot;
        uint64_t result = 0;
        if (access.kind == A_FENCE && releases(access.order)) {
            memcpy(state->released[thread], state->view[thread], PLACES);
        } else if (access.kind == A_FENCE) {
            join(state->view[thread], state->unacquired[thread]);
        } else if (access.kind == A_STORE && value_of(state, access.place, last) == access.value) {
            result = 0; /* as if it were not stored again: that only permits more orders */
        } else if (access.kind == A_STORE) {
            append(state, thread, access.place, access.value, access.order);
        } else if (access.kind == A_ADD && is_own) {
            result = value_of(state, access.place, last);
            change(state, thread, &access, result + access.value);
        } else if (access.kind == A_LOAD && (is_own || is_constant(access.place))) {
            result = value_of(state, access.place, last);
        } else {
            return;
        }
        step_to(scenario, state, thread, result);
    }
}

static void visit(struct scenario *scenario, const struct state *from);

static void try_access(struct scenario *scenario, const struct state *from, int thread)
{
    const struct access access = node_of(&scenario->thread[thread], from->node[thread])->next;
    if (access.kind == A_END)
        return;
    const int last = from->last[access.place];
    for (int which = from->view[thread][access.place]; which <= last; which++) {
        const uint64_t value = value_of(from, access.place, which);
        const bool is_swapped = access.kind == A_SWAP && value == access.expected;
        if (is_swapped && which != last)
            continue; /* what follows a store directly is already determined */
        struct state to = *from;
        if (is_swapped)
            change(&to, thread, &access, access.value);
        else
            take(&to, thread, access.place, which, access.kind == A_LOAD ? access.order : memory_order_relaxed);
        step_to(scenario, &to, thread, value);
        visit(scenario, &to);
    }
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
        is_over &= node_of(&scenario->thread[i], state.node[i])->next.kind == A_END;
        try_access(scenario, &state, i);
    }
    if (is_over)
        judge(scenario, state.node, NULL);
}

void explore_views(struct scenario *scenario)
{
    static struct state start;
    memset(&start, 0, sizeof start);
    scenario_begin(scenario);
    visit(scenario, &start);
}

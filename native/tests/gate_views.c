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
    uint64_t value[WORDS][STORES]; /* [0]: as in the file, represented by 0 */
    uint8_t store_view[WORDS][STORES][WORDS];
    uint8_t view[THREADS][WORDS], released[THREADS][WORDS], unacquired[THREADS][WORDS];
    uint8_t last[WORDS];
    uint32_t node[4];
};
_Static_assert(sizeof(struct state) % 8 == 0 && THREADS < 4, "it is hashed in words");

static void merge_views(uint8_t *view, const uint8_t *other)
{
    for (int i = 0; i < WORDS; i++)
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

static uint64_t value_of(const struct state *state, int word, int position)
{
    return position ? state->value[word][position] : initial_value(word);
}

static void read_store(struct state *state, int thread, int word, int position, int order)
{
    state->view[thread][word] = (uint8_t)position;
    merge_views(acquires(order) ? state->view[thread] : state->unacquired[thread], state->store_view[word][position]);
}

static void append_store(struct state *state, int thread, int word, uint64_t value, int order)
{
    const int position = ++state->last[word];
    EXPECT(position < STORES);
    state->value[word][position] = value;
    state->view[thread][word] = (uint8_t)position;
    merge_views(state->store_view[word][position], releases(order) ? state->view[thread] : state->released[thread]);
    state->store_view[word][position][word] = (uint8_t)position;
}

static void modify(struct state *state, int thread, const struct access *access, uint64_t value)
{
    const int before = state->last[access->word];
    read_store(state, thread, access->word, before, access->order);
    append_store(state, thread, access->word, value, access->order);
    /* A load that acquires a read-modify-write also acquires the earlier stores of its release sequence. */
    merge_views(state->store_view[access->word][before + 1], state->store_view[access->word][before]);
}

static void step_to(struct scenario *scenario, struct state *state, int thread, uint64_t result)
{
    state->node[thread] = follow(scenario, thread, state->node[thread], result);
}

static void run_invisible_steps(struct scenario *scenario, struct state *state, int thread)
{
    for (;;) {
        const struct access access = node_of(&scenario->thread[thread], state->node[thread])->next;
        if (access.kind == A_END || access.kind == A_SWAP)
            return;
        const int last = state->last[access.word];
        const bool is_own = owner_of(access.word) == scenario->thread[thread].slot;
        uint64_t result = 0;
        if (access.kind == A_FENCE && releases(access.order)) {
            memcpy(state->released[thread], state->view[thread], WORDS);
        } else if (access.kind == A_FENCE) {
            merge_views(state->view[thread], state->unacquired[thread]);
        } else if (access.kind == A_STORE && value_of(state, access.word, last) == access.value) {
            result = 0; /* as if it were not stored again: that only permits more orders */
        } else if (access.kind == A_STORE) {
            append_store(state, thread, access.word, access.value, access.order);
        } else if (access.kind == A_ADD && is_own) {
            result = value_of(state, access.word, last);
            modify(state, thread, &access, result + access.value);
        } else if (access.kind == A_LOAD && (is_own || is_constant(access.word))) {
            result = value_of(state, access.word, last);
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
    const int last = from->last[access.word];
    for (int position = from->view[thread][access.word]; position <= last; position++) {
        const uint64_t value = value_of(from, access.word, position);
        const bool is_swapped = access.kind == A_SWAP && value == access.expected;
        if (is_swapped && position != last)
            continue; /* what follows a store directly is already determined */
        struct state to = *from;
        if (is_swapped)
            modify(&to, thread, &access, access.value);
        else
            read_store(&to, thread, access.word, position, access.kind == A_LOAD ? access.order : memory_order_relaxed);
        step_to(scenario, &to, thread, value);
        visit(scenario, &to);
    }
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
        has_ended &= node_of(&scenario->thread[i], state.node[i])->next.kind == A_END;
        try_access(scenario, &state, i);
    }
    if (has_ended)
        check_final_state(scenario, state.node, NULL);
}

void explore_views(struct scenario *scenario)
{
    static struct state start;
    memset(&start, 0, sizeof start);
    scenario_begin(scenario);
    visit(scenario, &start);
}

/* Every order that C11 allows: a load may return any store to its word that is not older than what the thread knows of.
 *
 * Each word has the list of its stores, each thread the latest that it knows of each word (its view), each store the view
 * that whoever acquires it takes over. A store goes to the end of the list at once: others may still read older ones. That
 * is right because every word has one writer, or is only ever changed by reading and writing in one. Loads do not pass
 * later stores of the same thread. */
#include "tests/expect.h"
#include "tests/gate_explore.h"

#include <string.h>

enum { STORES = 5 };

struct state {
    uint64_t value[PLACES][STORES]; /* [0]: as the file says, and 0 here */
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
    /* Whoever acquires a word that was changed in one also acquires the stores before in the chain. */
    join(state->taken_over[access->place][before + 1], state->taken_over[access->place][before]);
}

static void step_to(struct world *world, struct state *state, int thread, uint64_t result)
{
    state->node[thread] = follow(world, thread, state->node[thread], result);
}

static void run_alone(struct world *world, struct state *state, int thread)
{
    for (;;) {
        const struct access access = node_of(&world->thread[thread], state->node[thread])->next;
        if (access.kind == A_END || access.kind == A_SWAP)
            return;
        const int last = state->last[access.place];
        const bool is_own = owner_of(access.place) == world->thread[thread].slot;
        uint64_t result = 0;
        if (access.kind == A_FENCE && releases(access.order)) {
            memcpy(state->released[thread], state->view[thread], PLACES);
        } else if (access.kind == A_FENCE) {
            join(state->view[thread], state->unacquired[thread]);
        } else if (access.kind == A_STORE && value_of(state, access.place, last) == access.value) {
            result = 0; /* as if it were not stored again: that only orders less */
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
        step_to(world, state, thread, result);
    }
}

static void visit(struct world *world, const struct state *from);

static void try_access(struct world *world, const struct state *from, int thread)
{
    const struct access access = node_of(&world->thread[thread], from->node[thread])->next;
    if (access.kind == A_END)
        return;
    const int last = from->last[access.place];
    for (int which = from->view[thread][access.place]; which <= last; which++) {
        const uint64_t value = value_of(from, access.place, which);
        const bool is_swapped = access.kind == A_SWAP && value == access.expected;
        if (is_swapped && which != last)
            continue; /* what follows a store at once has been decided */
        struct state to = *from;
        if (is_swapped)
            change(&to, thread, &access, access.value);
        else
            take(&to, thread, access.place, which, access.kind == A_LOAD ? access.order : memory_order_relaxed);
        step_to(world, &to, thread, value);
        visit(world, &to);
    }
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
        is_over &= node_of(&world->thread[i], state.node[i])->next.kind == A_END;
        try_access(world, &state, i);
    }
    if (is_over)
        judge(world, state.node, NULL);
}

void explore_views(struct world *world)
{
    static struct state start;
    memset(&start, 0, sizeof start);
    world_begin(world);
    visit(world, &start);
}

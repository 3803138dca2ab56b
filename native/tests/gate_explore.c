/* Computes a thread's next access from what it has read so far, and remembers the states that were visited. */
#include "tests/gate_explore.h"

#include "tests/expect.h"

#include <setjmp.h>
#include <string.h>

/* ---- the words that are explored ---------------------------------------------------------------------------------------- */

static unsigned char *file_start;
static size_t word_offset[WORDS];
static int word_count;

/* Returns the offset within a process's pages. */
static size_t offset_in_page(size_t offset)
{
    return (offset - page_start(0)) % CT_PROCESS_BYTES;
}

static bool is_explored(size_t offset)
{
    if (offset < CT_TABLE_BYTES) { /* of the tenant table: the count, and three words of each copy */
        const size_t first = offsetof(struct ct_tenant_table, copy), copy = sizeof(uint64_t) * CT_GATE_RULES_WORDS;
        return offset == offsetof(struct ct_tenant_table, writes) || (offset >= first && (offset - first) % copy < 24);
    }
    if (offset < page_start(0))
        return offset - CT_TABLE_BYTES <= offsetof(struct ct_arbitration_page, debt_ns);
    return offset_in_page(offset) < offsetof(struct ct_gate_page, counts);
}

int word_index(const volatile void *word)
{
    const unsigned char *address = (const unsigned char *)(uintptr_t)word;
    if (address < file_start || address >= file_start + page_start(SLOTS) ||
        !is_explored((size_t)(address - file_start)))
        return -1;
    size_t offset = (size_t)(address - file_start);
    for (int i = 0; i < word_count; i++)
        if (word_offset[i] == offset)
            return i;
    EXPECT(word_count < WORDS);
    word_offset[word_count] = offset;
    return word_count++;
}

int owner_of(int word)
{
    size_t offset = word_offset[word];
    if (offset < CT_TABLE_BYTES)
        return -1;
    return offset < page_start(0) ? -2 : (int)((offset - page_start(0)) / CT_PROCESS_BYTES);
}

bool is_constant(int word)
{
    size_t page_offset = offset_in_page(word_offset[word]);
    int slot = owner_of(word);
    /* The highest-priority tenant never waits, and no process changes its index. */
    return slot >= 0 && (page_offset == offsetof(struct ct_gate_page, generation) ||
                         (slot == 0 && (page_offset == offsetof(struct ct_gate_page, wanted_ns) ||
                                        page_offset == offsetof(struct ct_gate_page, asked_ns))));
}

void *address_of(int word)
{
    return file_start + word_offset[word];
}

uint64_t initial_value(int word)
{
    uint64_t value;
    memcpy(&value, address_of(word), sizeof value);
    return value;
}

/* ---- a thread's code up to its next access ------------------------------------------------------------------------ */

static struct {
    bool is_on;
    enum defect defect;
    int results_count, used;
    uint64_t results[HISTORY_MAX];
    struct access next;
    int sequence_reads; /* reads of the highest-priority tenant's sequence number */
    uint64_t last_read;
    jmp_buf stop;
} replay;

static uint64_t next_result(enum kind kind, int word, int order, uint64_t value, uint64_t expected)
{
    if (replay.used < replay.results_count)
        return replay.results[replay.used++];
    replay.next = (struct access){kind, word, order, value, expected};
    longjmp(replay.stop, 1);
}

/* A decision reads the sequence number when it settles, for its snapshot, and for its last check; then a lease does. */
static bool is_check_skipped(void)
{
    return (replay.defect == NO_RECHECK && replay.sequence_reads == 2) ||
           (replay.defect == NO_LEASE_CHECK && replay.sequence_reads == 3);
}

/* Words that no other thread reads are accessed directly, and kept out of the file during the exploration. */
uint64_t explored_load(const volatile void *word, int order)
{
    int index = word_index(word);
    if (!replay.is_on || index < 0)
        return *(const volatile uint64_t *)word;
    const bool is_top = address_of(index) == file_start + page_start(0);
    if (is_top && is_check_skipped())
        return replay.last_read;
    uint64_t result = next_result(A_LOAD, index, order, 0, 0);
    if (is_top) {
        replay.sequence_reads++;
        replay.last_read = result;
    }
    return result;
}

static bool is_private(const volatile void *word)
{
    const unsigned char *address = (const unsigned char *)(uintptr_t)word;
    return address < file_start || address >= file_start + page_start(SLOTS);
}

void explored_store(volatile void *word, uint64_t value, int order)
{
    int index = word_index(word);
    if (replay.is_on && index >= 0)
        next_result(A_STORE, index, order, value, 0);
    else if (!replay.is_on || is_private(word))
        *(volatile uint64_t *)word = value;
}

uint64_t explored_add(volatile void *word, uint64_t addend, int order)
{
    int index = word_index(word);
    if (replay.is_on && index >= 0)
        return next_result(A_ADD, index, order, addend, 0);
    uint64_t before = *(volatile uint64_t *)word;
    *(volatile uint64_t *)word = before + addend;
    return before;
}

int explored_swap(volatile void *word, uint64_t *expected, uint64_t value, int order)
{
    int index = word_index(word);
    uint64_t before = replay.is_on && index >= 0 ? next_result(A_SWAP, index, order, value, *expected)
                                                 : *(volatile uint64_t *)word;
    const int is_swapped = before == *expected;
    if (is_swapped && !replay.is_on)
        *(volatile uint64_t *)word = value;
    *expected = before;
    return is_swapped;
}

void explored_fence(int order)
{
    if (replay.is_on && replay.defect != NO_FENCE)
        next_result(A_FENCE, 0, order, 0, 0);
}

const struct node *node_of(const struct thread *thread, uint32_t index)
{
    return &thread->nodes[index];
}

int history_of(const struct thread *thread, uint32_t index, struct access *accesses, uint64_t *results)
{
    int count = (int)thread->nodes[index].depth;
    for (int i = count - 1; i >= 0; i--) {
        results[i] = thread->nodes[index].result;
        index = thread->nodes[index].parent;
        if (accesses)
            accesses[i] = thread->nodes[index].next;
    }
    return count;
}

static struct access apply_defect(const struct scenario *scenario, struct access access)
{
    const size_t offset = word_offset[access.word];
    const bool is_store = access.kind == A_STORE;
    const bool is_sequence = is_store && owner_of(access.word) >= 0 && offset_in_page(offset) == 0;
    const bool is_writes = is_store && offset == offsetof(struct ct_tenant_table, writes);
    if ((scenario->defect == RELAXED_SEQUENCE && is_sequence) || (scenario->defect == RELAXED_TABLE && is_writes))
        access.order = memory_order_relaxed;
    return access;
}

static void run_to_next_access(struct scenario *scenario, struct thread *thread, uint32_t index)
{
    static struct ct_gate scratch;
    memcpy(&scratch, thread->gate, sizeof scratch);
    if (scratch.mine == &thread->gate->unlisted_page)
        scratch.mine = &scratch.unlisted_page;
    replay.results_count = history_of(thread, index, NULL, replay.results);
    EXPECT(replay.results_count < HISTORY_MAX);
    replay.used = replay.sequence_reads = 0;
    replay.defect = scenario->defect;
    replay.is_on = true;
    if (!setjmp(replay.stop)) {
        thread->nodes[index].answer = thread->run(&scratch);
        replay.next = (struct access){.kind = A_END};
    }
    replay.is_on = false;
    thread->nodes[index].next = apply_defect(scenario, replay.next);
}

static uint32_t add_node(struct scenario *scenario, struct thread *thread, uint32_t parent, uint64_t result)
{
    if (thread->count == thread->capacity) {
        thread->capacity = thread->capacity ? 2 * thread->capacity : 64;
        thread->nodes = realloc(thread->nodes, thread->capacity * sizeof *thread->nodes);
        EXPECT(thread->nodes);
    }
    const uint32_t index = thread->count++;
    struct node *node = &thread->nodes[index];
    *node = (struct node){.result = result, .parent = parent};
    if (index) {
        node->sibling = thread->nodes[parent].child;
        node->depth = thread->nodes[parent].depth + 1;
        thread->nodes[parent].child = index;
    }
    run_to_next_access(scenario, thread, index);
    return index;
}

uint32_t follow(struct scenario *scenario, int number, uint32_t index, uint64_t result)
{
    struct thread *thread = &scenario->thread[number];
    for (uint32_t child = thread->nodes[index].child; child; child = thread->nodes[child].sibling)
        if (thread->nodes[child].result == result)
            return child;
    return add_node(scenario, thread, index, result);
}

/* ---- visited states ----------------------------------------------------------------------------------------------- */

static uint64_t *visited;
static size_t visited_capacity, visited_count;

static uint64_t hash_of(const void *state, size_t bytes)
{
    const uint64_t *word = state;
    uint64_t hash = UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < bytes / sizeof *word; i++) {
        hash = (hash ^ word[i]) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    return hash ? hash : 1;
}

static bool insert_hash(uint64_t hash)
{
    size_t index = hash & (visited_capacity - 1);
    for (; visited[index]; index = (index + 1) & (visited_capacity - 1))
        if (visited[index] == hash)
            return true;
    visited[index] = hash;
    return false;
}

bool was_visited(const void *state, size_t bytes)
{
    if (2 * visited_count >= visited_capacity) {
        uint64_t *old = visited;
        size_t old_capacity = visited_capacity;
        visited_capacity = old_capacity ? 4 * old_capacity : 1 << 14;
        visited = calloc(visited_capacity, sizeof *visited);
        EXPECT(visited);
        for (size_t i = 0; i < old_capacity; i++)
            if (old[i])
                insert_hash(old[i]);
        free(old);
    }
    const bool is_known = insert_hash(hash_of(state, bytes));
    visited_count += !is_known;
    return is_known;
}

void scenario_begin(struct scenario *scenario)
{
    file_start = scenario->file;
    word_count = 0;
    scenario->states = scenario->ends = 0;
    scenario->violation = NULL;
    memset(scenario->passed, 0, sizeof scenario->passed);
    for (int i = 0; i < scenario->threads; i++) {
        scenario->thread[i].count = 0;
        add_node(scenario, &scenario->thread[i], 0, 0);
    }
}

void scenario_end(struct scenario *scenario)
{
    for (int i = 0; i < scenario->threads; i++) {
        free(scenario->thread[i].nodes);
        scenario->thread[i].nodes = NULL;
        scenario->thread[i].capacity = scenario->thread[i].count = 0;
    }
    free(visited);
    visited = NULL;
    visited_capacity = visited_count = 0;
}

void report_violation(struct scenario *scenario, const char *description)
{
    if (description && !scenario->violation)
        scenario->violation = description;
}

void check_final_state(struct scenario *scenario, const uint32_t *node, const uint64_t *memory)
{
    int passed = 0;
    for (int i = 0; i < scenario->threads; i++) {
        const struct node *end = node_of(&scenario->thread[i], node[i]);
        passed += end->next.kind == A_END && end->answer.pass && end->answer.reason != CT_GATE_TOP;
    }
    scenario->ends++;
    scenario->passed[passed]++;
    report_violation(scenario, scenario->check_end(scenario, node, memory));
}

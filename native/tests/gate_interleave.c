/* Model checking of the gate in every order of accesses: an observed launch of a holder is respected, with a lease too; two tenants never
 * decide at once, no tenant uses a mixture of two tenant tables, and none waits for a dead one. */
#include "gate/lease.h"
#include "tests/expect.h"
#include "tests/gate_explore.h"

#include <string.h>

enum { US = 1000, START = 1000 * 1000 * 1000 };

static struct device_pages device;
static unsigned char *const file = (unsigned char *)&device;
static struct ct_gate gates[SLOTS];

static struct ct_gate_rules rules_of(int middle, int low)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .bound_ns = 500 * US, .delay_ppm = 20000,
                                  .patience_ns = 2000 * US};
    const int priority[SLOTS] = {0, middle, low};
    rules.process_count = SLOTS;
    for (int i = 0; i < SLOTS; i++)
        rules.processes[i] = (struct ct_tenant_entry){
            .generation = 1, .index = (uint16_t)i, .priority = (uint8_t)priority[i], .tenant = (uint32_t)i};
    return rules;
}

/* The highest-priority tenant has launched once, so that there is a gap of 100 us from START on. */
static void set_up(struct ct_gate_rules rules)
{
    memset(file, 0, page_start(SLOTS));
    EXPECT(ct_tenant_table_init(file, CT_TABLE_BYTES) == 0);
    ct_tenant_table_write((struct ct_tenant_table *)file, &rules);
    for (uint32_t i = 0; i < SLOTS; i++)
        open_process(&gates[i], &device, i, 1);
    struct ct_launch_request request = {.expect_ns = 10 * US, .upper_ns = 10 * US, .low_ns = 110 * US,
                                        .high_ns = 150 * US};
    ct_gate_announce(&gates[0], &request, START - 10 * US);
    for (int i = 0; i < SLOTS; i++)
        gates[i].duty_from_ns = START; /* the measured activity is a sum of words that need not be of one instant */
}

static void set_up_tenants(int middle, int low)
{
    set_up(rules_of(middle, low));
}

/* One lower-priority tenant, which needs no claim and gets a lease. */
static void set_up_pair(void)
{
    struct ct_gate_rules rules = rules_of(5, 5);
    rules.process_count = 2;
    set_up(rules);
    EXPECT(!gates[1].must_claim);
}

/* ---- what the threads do ------------------------------------------------------------------------------------------ */

static struct ct_gate_answer no_admission(void)
{
    return (struct ct_gate_answer){.pass = 1, .reason = CT_GATE_TOP};
}

static struct ct_gate_answer launch_once(struct ct_gate *gate)
{
    struct ct_launch_request request = {.expect_ns = 30 * US, .upper_ns = 30 * US, .low_ns = 500 * US,
                                        .high_ns = 600 * US};
    ct_gate_announce(gate, &request, START + US);
    return no_admission();
}

static struct ct_gate_answer launch_twice(struct ct_gate *gate)
{
    struct ct_launch_request request = {.expect_ns = 30 * US, .upper_ns = 30 * US, .low_ns = 500 * US,
                                        .high_ns = 600 * US};
    launch_once(gate);
    ct_gate_announce(gate, &request, START + 2 * US);
    return no_admission();
}

/* Two of these kernels do not fit into the gap. */
static struct ct_gate_answer ask_once(struct ct_gate *gate)
{
    struct ct_launch_request request = {.expect_ns = 60 * US, .upper_ns = 60 * US, .may_fill = 1};
    return ct_gate_admit(gate, &request, START, START);
}

/* A claim taken at START has expired by now, whether its holder is dead or slow. */
static struct ct_gate_answer ask_after_expiry(struct ct_gate *gate)
{
    struct ct_launch_request request = {.expect_ns = 60 * US, .upper_ns = 60 * US, .may_fill = 1};
    return ct_gate_admit(gate, &request, START, START + 30 * US);
}

/* The gap is over and the highest-priority tenant is quiet; two of these do not fit into the bound. */
static struct ct_gate_answer ask_idle(struct ct_gate *gate)
{
    struct ct_launch_request request = {.expect_ns = 400 * US, .upper_ns = 400 * US, .may_fill = 1};
    return ct_gate_admit(gate, &request, START + 3000 * US, START + 3000 * US);
}

/* All is quiet. The first launch is decided on, and the second one passes under its lease or not at all. */
static struct ct_gate_answer ask_and_use_lease(struct ct_gate *gate)
{
    struct ct_launch_request request = {.expect_ns = 10 * US, .upper_ns = 10 * US, .may_fill = 1};
    struct ct_gate_answer answer = ct_gate_admit(gate, &request, START + 3000 * US, START + 3000 * US);
    if (answer.pass)
        answer.pass = (uint32_t)ct_lease_pass(gate, &request, START + 3001 * US);
    return answer;
}

/* The holder enters a call that waits for the device, so that it is active without having launched. */
static struct ct_gate_answer wait_once(struct ct_gate *gate)
{
    ct_gate_sync(gate, 500 * US, 600 * US, 0, START + 3000 * US);
    return no_admission();
}

static struct ct_gate_rules numbered_rules(uint64_t number)
{
    struct ct_gate_rules rules = rules_of(5, 5);
    rules.policy = CT_GATE_OPEN; /* three words that differ and depend on each other */
    rules.bound_ns = number;
    rules.delay_ppm = 2 * number;
    return rules;
}

static struct ct_gate_answer write_table_twice(struct ct_gate *gate)
{
    for (uint64_t number = 100; number <= 101; number++) {
        struct ct_gate_rules rules = numbered_rules(number);
        ct_tenant_table_write((struct ct_tenant_table *)(uintptr_t)gate->table, &rules);
    }
    return no_admission();
}

static struct ct_gate_answer read_table(struct ct_gate *gate)
{
    ct_gate_must_ask(gate);
    return (struct ct_gate_answer){
        .pass = 0, .reason = gate->bound_ns == gate->delay_ppm / 2 ? CT_GATE_OTHER : CT_GATE_CHANGED,
            .until_ns = gate->writes};
}

/* ---- what must hold ----------------------------------------------------------------------------------------------- */

static int word_of(size_t offset)
{
    return word_index(file + offset);
}

/* Returns the words of launch n of the highest-priority tenant, as launch_twice() produces them; all of them grow. */
static uint64_t expected_word(uint64_t sequence, int word)
{
    const uint64_t launched_ns[] = {0, START - 10 * US, START + US, START + 2 * US};
    const uint64_t low_ns = sequence == 1 ? 110 * US : 500 * US, patience_ns = sequence == 1 ? 250 * US : 400 * US;
    const size_t base = page_start(0);
    if (word == word_of(base + offsetof(struct ct_gate_page, next_ns)))
        return launched_ns[sequence] + low_ns;
    if (word == word_of(base + offsetof(struct ct_gate_page, quiet_ns)))
        return launched_ns[sequence] + low_ns + patience_ns;
    if (word == word_of(base + offsetof(struct ct_gate_page, busy_ns)))
        return sequence == 1 ? START : START + US + 30 * US * (sequence - 1);
    return 0;
}

/* Checks a thread's own history: words read after a sequence number are not older, and a pass is based on the latest
 * observed launch. */
static const char *check_history(const struct scenario *scenario, int thread, uint32_t node)
{
    static struct access accesses[HISTORY_MAX];
    static uint64_t results[HISTORY_MAX];
    const int count = history_of(&scenario->thread[thread], node, accesses, results);
    const int top = word_of(page_start(0));
    const struct node *end = node_of(&scenario->thread[thread], node);
    uint64_t sequence = 0, before = 0;
    for (int i = 0; i < count; i++) {
        if (accesses[i].kind != A_LOAD)
            continue;
        if (accesses[i].word == top) {
            if (results[i] < sequence)
                return "a sequence number decreases";
            before = sequence;
            sequence = results[i];
        } else if (sequence && results[i] < expected_word(sequence, accesses[i].word)) {
            return "words are older than the sequence number that was read before them";
        }
    }
    if (end->next.kind == A_END && end->answer.pass && before != sequence)
        return "a launch passed on the basis of an older launch than the latest one read";
    return NULL;
}

static const char *check_passes(const struct scenario *scenario, const uint32_t *node, int max)
{
    int passed = 0;
    for (int i = 0; i < scenario->threads; i++) {
        const struct node *end = node_of(&scenario->thread[i], node[i]);
        if (scenario->thread[i].slot <= 0)
            continue;
        const char *violation = check_history(scenario, i, node[i]);
        if (violation)
            return violation;
        passed += end->next.kind == A_END && end->answer.pass;
    }
    return passed > max ? "two launches passed where only one fits" : NULL;
}

/* Checks that the survivors are not blocked: each one asks again, with the pages in their final state, when all tenants
 * are quiet. */
static const char *check_survivors(const uint64_t *memory)
{
    static struct device_pages copy;
    static struct ct_gate survivor;
    memcpy(&copy, file, page_start(SLOTS));
    for (int i = 0; i < WORDS; i++)
        if (memory[i]) {
            uint64_t value = memory_at(memory, i);
            memcpy((unsigned char *)&copy + ((unsigned char *)address_of(i) - file), &value, sizeof value);
        }
    for (uint32_t slot = 1; slot < SLOTS; slot++) {
        open_process(&survivor, &copy, slot, 1);
        struct ct_launch_request request = {.expect_ns = US, .upper_ns = US};
        const uint64_t since_ns = START + 50 * US;
        uint64_t now_ns = since_ns;
        struct ct_gate_answer answer = {0};
        for (int attempt = 0; attempt < 9 && !answer.pass; attempt++) {
            answer = ct_gate_admit(&survivor, &request, since_ns, now_ns);
            now_ns = answer.until_ns;
        }
        if (!answer.pass)
            return "a tenant waits for a dead one";
    }
    return NULL;
}

static const char *check_end(const struct scenario *scenario, const uint32_t *node, const uint64_t *memory)
{
    const char *violation = check_passes(scenario, node, 1);
    return violation || !memory ? violation : check_survivors(memory);
}

/* Permits one extra kernel, because a claim expires while its holder is slow. */
static const char *check_slow_end(const struct scenario *scenario, const uint32_t *node, const uint64_t *memory)
{
    const char *violation = check_passes(scenario, node, 2);
    return violation ? violation : check_survivors(memory);
}

static const char *check_claim(const struct scenario *scenario, int thread, uint32_t node, const uint64_t *memory)
{
    const struct access next = node_of(&scenario->thread[thread], node)->next;
    const int claim = word_of(CT_TABLE_BYTES);
    const bool is_release = next.kind == A_SWAP && next.word == claim && next.value == 0;
    return is_release && memory_at(memory, claim) != next.expected
        ? "a claim was taken by another tenant before it was released"
        : NULL;
}

/* The slow thread may lose its claim; the later one may not, although its claim is in the slow one's future. */
static const char *check_slow_step(const struct scenario *scenario, int thread, uint32_t node, const uint64_t *memory)
{
    return scenario->thread[thread].slot == 2 ? check_claim(scenario, thread, node, memory) : NULL;
}

static bool holds_claim(const struct scenario *scenario, int thread, uint32_t node)
{
    static struct access accesses[HISTORY_MAX];
    static uint64_t results[HISTORY_MAX];
    const int count = history_of(&scenario->thread[thread], node, accesses, results);
    bool is_held = false;
    for (int i = 0; i < count; i++)
        if (accesses[i].kind == A_SWAP && accesses[i].expected == results[i])
            is_held = accesses[i].value != 0;
    return is_held;
}

/* The last check before a launch is announced sees what the decision was based on: nothing visible by then is
 * missed. */
static const char *check_step(const struct scenario *scenario, int thread, uint32_t node, const uint64_t *memory)
{
    static struct access accesses[HISTORY_MAX];
    static uint64_t results[HISTORY_MAX];
    const struct thread *subject = &scenario->thread[thread];
    const struct access next = node_of(subject, node)->next;
    const int top = word_of(page_start(0));
    if (check_claim(scenario, thread, node, memory))
        return check_claim(scenario, thread, node, memory);
    if (subject->slot <= 0 || next.kind != A_STORE)
        return NULL;
    const size_t offset = (size_t)((unsigned char *)address_of(next.word) - file);
    const size_t page_offset = offset < page_start(0) ? 0 : (offset - page_start(0)) % CT_PROCESS_BYTES;
    const size_t recent = offsetof(struct ct_gate_page, recent_ns);
    if (page_offset < recent || page_offset >= recent + sizeof(uint64_t) * CT_GATE_RECENT)
        return NULL;
    if (subject->gate->must_claim && !holds_claim(scenario, thread, node))
        return "a launch passes without the claim";
    uint64_t last_read = 0;
    for (int i = history_of(subject, node, accesses, results) - 1; i >= 0 && !last_read; i--)
        if (accesses[i].kind == A_LOAD && accesses[i].word == top)
            last_read = results[i];
    /* With several higher-priority tenants, only the check of the last of them is the last one. */
    const bool launch_missed = subject->gate->higher_count == 1 && memory_at(memory, top) != last_read;
    return launch_missed ? "a launch was missed that the last check could have observed" : NULL;
}

static const char *check_tables(const struct scenario *scenario, const uint32_t *node, const uint64_t *memory)
{
    (void)memory;
    for (int i = 1; i < scenario->threads; i++)
        if (node_of(&scenario->thread[i], node[i])->answer.reason != CT_GATE_OTHER)
            return "a mixture of two tenant tables is used";
    return NULL;
}

/* ---- scenarios ---------------------------------------------------------------------------------------------------- */

static struct scenario scenario_of(body first, body second, body third)
{
    body bodies[] = {first, second, third};
    struct scenario scenario = {.file = file, .check_end = check_end, .check_step = check_step};
    for (int i = 0; i < 3 && bodies[i]; i++)
        scenario.thread[scenario.threads++] = (struct thread){.run = bodies[i], .gate = &gates[i], .slot = i};
    return scenario;
}

static void print(const char *name, const struct scenario *scenario)
{
    printf("%-44s %8" PRIu64 " states, %7" PRIu64 " ends (%" PRIu64 " without a pass, %" PRIu64 " with one): %s\n",
           name,
           scenario->states, scenario->ends, scenario->passed[0], scenario->passed[1],
               scenario->violation ? scenario->violation : "holds");
}

typedef void (*explorer)(struct scenario *scenario);

static void expect_no_violation(const char *name, struct scenario scenario, explorer explore)
{
    explore(&scenario);
    print(name, &scenario);
    EXPECT(!scenario.violation && scenario.ends > 0);
    /* A scenario in which nothing passes would be trivially correct. */
    EXPECT(scenario.check_end == check_tables || (scenario.passed[0] > 0 && scenario.passed[1] > 0));
    scenario_end(&scenario);
}

static void expect_violation(const char *name, struct scenario scenario, explorer explore, enum defect defect,
                             const char *expected)
{
    scenario.defect = defect;
    explore(&scenario);
    print(name, &scenario);
    EXPECT(scenario.violation && strcmp(scenario.violation, expected) == 0);
    scenario_end(&scenario);
}

static struct scenario table_scenario(void)
{
    set_up_tenants(5, 5);
    struct ct_gate_rules rules = numbered_rules(99);
    ct_tenant_table_write((struct ct_tenant_table *)file, &rules);
    struct scenario scenario = scenario_of(write_table_twice, read_table, read_table);
    scenario.thread[0].slot = -1;
    scenario.check_end = check_tables;
    scenario.check_step = NULL;
    return scenario;
}

static void invariants_hold_in_every_order(void)
{
    set_up_tenants(5, 5);
    struct scenario two = scenario_of(launch_twice, ask_once, NULL),
        three = scenario_of(launch_once, ask_once, ask_once);
    struct scenario idle = scenario_of(launch_once, ask_idle, ask_idle), mortal = three;
    mortal.thread[1].may_die = true;
    expect_no_violation("one asks, one launches twice", two, explore_buffers);
    expect_no_violation("one asks, one launches twice, C11", two, explore_views);
    expect_no_violation("two ask, one launches", three, explore_buffers);
    expect_no_violation("two ask, one launches, C11", three, explore_views);
    expect_no_violation("two ask, one of them dies", mortal, explore_buffers);
    expect_no_violation("two ask while all is quiet", idle, explore_buffers);
    struct scenario slow = scenario_of(launch_once, ask_once, ask_after_expiry);
    slow.check_step = check_slow_step;
    slow.check_end = check_slow_end;
    expect_no_violation("two ask, one of them is slow", slow, explore_buffers);
    set_up_pair();
    expect_no_violation("one uses a lease, one launches twice",
                        scenario_of(launch_twice, ask_and_use_lease, NULL), explore_buffers);
    expect_no_violation("one uses a lease, one launches twice, C11",
                        scenario_of(launch_twice, ask_and_use_lease, NULL), explore_views);
    expect_no_violation("one uses a lease, one waits", scenario_of(wait_once, ask_and_use_lease, NULL), explore_buffers);
    expect_no_violation("one uses a lease, one waits, C11", scenario_of(wait_once, ask_and_use_lease, NULL),
                        explore_views);
    set_up_tenants(3, 5);
    expect_no_violation("two of unequal priority ask", scenario_of(launch_once, ask_once, ask_once), explore_buffers);
    expect_no_violation("two of unequal priority ask, C11", scenario_of(launch_once, ask_once, ask_once),
                        explore_views);
    expect_no_violation("tenant tables", table_scenario(), explore_buffers);
    expect_no_violation("tenant tables, C11", table_scenario(), explore_views);
}

static void each_defect_is_detected(void)
{
    const char *torn = "a mixture of two tenant tables is used", *missed =
        "a launch was missed that the last check could have observed";
    expect_violation("stores that pass each other", table_scenario(), explore_buffers, UNORDERED_STORES, torn);
    expect_violation("a table's count without release, C11", table_scenario(), explore_views, RELAXED_TABLE, torn);
    expect_violation("a table without its fences, C11", table_scenario(), explore_views, NO_FENCE, torn);
    set_up_tenants(5, 5);
    struct scenario two = scenario_of(launch_twice, ask_once, NULL),
        three = scenario_of(launch_once, ask_once, ask_once);
    expect_violation("without the last check", two, explore_buffers, NO_RECHECK, missed);
    expect_violation("a sequence that releases nothing, C11", two, explore_views, RELAXED_SEQUENCE,
                     "words are older than the sequence number that was read before them");
    gates[1].must_claim = gates[2].must_claim = 0;
    three.check_step = NULL;
    expect_violation("without the claim", three, explore_buffers, CORRECT, "two launches passed where only one fits");
    set_up_pair();
    expect_violation("a lease without the last check", scenario_of(launch_twice, ask_and_use_lease, NULL),
                     explore_buffers, NO_LEASE_CHECK, missed);
}

int main(void)
{
    invariants_hold_in_every_order();
    each_defect_is_detected();
    return 0;
}

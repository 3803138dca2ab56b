/* Whatever order their accesses take effect in: is a launch that was seen heeded, do two never decide at once, does nobody
 * use half of a roster, and does nobody wait for the dead? The gate's own code, in every order. */
#include "tests/expect.h"
#include "tests/gate_explore.h"

#include <string.h>

enum { US = 1000, START = 1000 * 1000 * 1000 };

static _Alignas(4096) unsigned char file[CT_GATE_PAGE_BYTES * (2 + SLOTS)];
static struct ct_gate gates[SLOTS];

static struct ct_gate_page *page_of(int slot)
{
    return (struct ct_gate_page *)(file + ct_gate_offset((uint32_t)slot));
}

static struct ct_gate_rules rules_of(int middle, int low)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .bound_ns = 500 * US, .delay_ppm = 20000, .patience_ns = 2000 * US};
    const int priority[SLOTS] = {0, middle, low};
    rules.seats = SLOTS;
    for (int i = 0; i < SLOTS; i++)
        rules.seat[i] = (struct ct_gate_seat){.generation = 1, .slot = (uint16_t)i, .priority = (uint8_t)priority[i]};
    return rules;
}

/* Three tenants; the one at the top has launched once, so that there is a gap of 100 us from START on. */
static void begin(int middle, int low)
{
    memset(file, 0, sizeof file);
    EXPECT(ct_roster_init(file, sizeof file, SLOTS) == 0);
    struct ct_gate_rules rules = rules_of(middle, low);
    ct_roster_write((struct ct_gate_roster *)file, &rules);
    for (uint32_t i = 0; i < SLOTS; i++)
        ct_gate_open(&gates[i], file, sizeof file, page_of((int)i),
                     (struct ct_gate_floor *)(file + CT_GATE_PAGE_BYTES), i, 1);
    struct ct_gate_wish wish = {.expect_ns = 10 * US, .sure_ns = 10 * US, .low_ns = 110 * US, .high_ns = 150 * US};
    ct_gate_announce(&gates[0], &wish, START - 10 * US);
    for (int i = 0; i < SLOTS; i++)
        gates[i].duty_from_ns = START; /* how active others are is a sum of words that need not be of one instant */
}

/* ---- what the threads do ------------------------------------------------------------------------------------------- */

static struct ct_gate_answer nothing_asked(void)
{
    return (struct ct_gate_answer){.pass = 1, .reason = CT_GATE_TOP};
}

static struct ct_gate_answer launch_once(struct ct_gate *gate)
{
    struct ct_gate_wish wish = {.expect_ns = 30 * US, .sure_ns = 30 * US, .low_ns = 500 * US, .high_ns = 600 * US};
    ct_gate_announce(gate, &wish, START + US);
    return nothing_asked();
}

static struct ct_gate_answer launch_twice(struct ct_gate *gate)
{
    struct ct_gate_wish wish = {.expect_ns = 30 * US, .sure_ns = 30 * US, .low_ns = 500 * US, .high_ns = 600 * US};
    launch_once(gate);
    ct_gate_announce(gate, &wish, START + 2 * US);
    return nothing_asked();
}

/* Two of these do not fit into the gap. */
static struct ct_gate_answer ask_once(struct ct_gate *gate)
{
    struct ct_gate_wish wish = {.expect_ns = 60 * US, .sure_ns = 60 * US, .may_fill = 1};
    return ct_gate_ask(gate, &wish, START, START);
}

/* A claim taken at START has lapsed by now, whether its taker is dead or only slow. */
static struct ct_gate_answer ask_later(struct ct_gate *gate)
{
    struct ct_gate_wish wish = {.expect_ns = 60 * US, .sure_ns = 60 * US, .may_fill = 1};
    return ct_gate_ask(gate, &wish, START, START + 30 * US);
}

/* The gap is over, the one at the top quiet: nor do two of these fit into the bound. */
static struct ct_gate_answer ask_free(struct ct_gate *gate)
{
    struct ct_gate_wish wish = {.expect_ns = 400 * US, .sure_ns = 400 * US, .may_fill = 1};
    return ct_gate_ask(gate, &wish, START + 3000 * US, START + 3000 * US);
}

static struct ct_gate_rules numbered(uint64_t number)
{
    struct ct_gate_rules rules = rules_of(5, 5);
    rules.policy = CT_GATE_OPEN; /* three words that differ, as one follows from the other */
    rules.bound_ns = number;
    rules.delay_ppm = 2 * number;
    return rules;
}

static struct ct_gate_answer write_roster_twice(struct ct_gate *gate)
{
    for (uint64_t number = 100; number <= 101; number++) {
        struct ct_gate_rules rules = numbered(number);
        ct_roster_write((struct ct_gate_roster *)(uintptr_t)gate->roster, &rules);
    }
    return nothing_asked();
}

static struct ct_gate_answer read_roster(struct ct_gate *gate)
{
    ct_gate_must_ask(gate);
    return (struct ct_gate_answer){
        .pass = 0, .reason = gate->bound_ns == gate->delay_ppm / 2 ? CT_GATE_OTHER : CT_GATE_CHANGED, .until_ns = gate->writes};
}

/* ---- what must hold ------------------------------------------------------------------------------------------------ */

static int word_of(size_t offset)
{
    return place_of(file + offset);
}

/* The words of launch n of the one at the top, as launch_twice() makes them; all of them grow. */
static uint64_t least_word(uint64_t sequence, int place)
{
    const uint64_t launched_ns[] = {0, START - 10 * US, START + US, START + 2 * US};
    const uint64_t low_ns = sequence == 1 ? 110 * US : 500 * US, patience_ns = sequence == 1 ? 250 * US : 400 * US;
    const size_t base = ct_gate_offset(0);
    if (place == word_of(base + offsetof(struct ct_gate_page, next_ns)))
        return launched_ns[sequence] + low_ns;
    if (place == word_of(base + offsetof(struct ct_gate_page, quiet_ns)))
        return launched_ns[sequence] + low_ns + patience_ns;
    if (place == word_of(base + offsetof(struct ct_gate_page, busy_ns)))
        return sequence == 1 ? START : START + US + 30 * US * (sequence - 1);
    return 0;
}

/* A thread's own history: the words that follow a sequence are not older; a pass acts on the latest that was seen. */
static const char *judge_history(const struct world *world, int thread, uint32_t node)
{
    static struct access accesses[LONGEST];
    static uint64_t results[LONGEST];
    const int count = history_of(&world->thread[thread], node, accesses, results);
    const int top = word_of(ct_gate_offset(0));
    const struct node *end = node_of(&world->thread[thread], node);
    uint64_t sequence = 0, before = 0;
    for (int i = 0; i < count; i++) {
        if (accesses[i].kind != A_LOAD)
            continue;
        if (accesses[i].place == top) {
            if (results[i] < sequence)
                return "a sequence goes back";
            before = sequence;
            sequence = results[i];
        } else if (sequence && results[i] < least_word(sequence, accesses[i].place)) {
            return "words are older than the sequence that was seen before them";
        }
    }
    if (end->next.kind == A_END && end->answer.pass && before != sequence)
        return "a pass acted on an older launch than it had seen";
    return NULL;
}

static const char *judge_passes(const struct world *world, const uint32_t *node, int most)
{
    int passed = 0;
    for (int i = 0; i < world->threads; i++) {
        const struct node *end = node_of(&world->thread[i], node[i]);
        if (world->thread[i].slot <= 0)
            continue;
        const char *complaint = judge_history(world, i, node[i]);
        if (complaint)
            return complaint;
        passed += end->next.kind == A_END && end->answer.pass;
    }
    return passed > most ? "two passed where one fits" : NULL;
}

/* Whoever is left: its page and the floor as they are now, and it asks again when all is quiet. */
static const char *judge_survivors(const uint64_t *memory)
{
    static _Alignas(4096) unsigned char later[sizeof file];
    static struct ct_gate survivor;
    memcpy(later, file, sizeof file);
    for (int i = 0; i < PLACES; i++)
        if (memory[i]) {
            uint64_t value = memory_at(memory, i);
            memcpy(later + ((unsigned char *)address_of(i) - file), &value, sizeof value);
        }
    for (uint32_t slot = 1; slot < SLOTS; slot++) {
        struct ct_gate_page *page = (struct ct_gate_page *)(later + ct_gate_offset(slot));
        ct_gate_open(&survivor, later, sizeof later, page, (struct ct_gate_floor *)(later + CT_GATE_PAGE_BYTES), slot,
                     1);
        struct ct_gate_wish wish = {.expect_ns = US, .sure_ns = US};
        const uint64_t since_ns = START + 50 * US;
        uint64_t now_ns = since_ns;
        struct ct_gate_answer answer = {0};
        for (int asked = 0; asked < 9 && !answer.pass; asked++) {
            answer = ct_gate_ask(&survivor, &wish, since_ns, now_ns);
            now_ns = answer.until_ns;
        }
        if (!answer.pass)
            return "one waits for the dead";
    }
    return NULL;
}

static const char *judge_end(const struct world *world, const uint32_t *node, const uint64_t *memory)
{
    const char *complaint = judge_passes(world, node, 1);
    return complaint || !memory ? complaint : judge_survivors(memory);
}

/* One kernel more when a claim lapsed in the hands of one that was slow. */
static const char *judge_slow_end(const struct world *world, const uint32_t *node, const uint64_t *memory)
{
    const char *complaint = judge_passes(world, node, 2);
    return complaint ? complaint : judge_survivors(memory);
}

static const char *judge_claim(const struct world *world, int thread, uint32_t node, const uint64_t *memory)
{
    const struct access next = node_of(&world->thread[thread], node)->next;
    const int claim = word_of(CT_GATE_PAGE_BYTES);
    const bool gives = next.kind == A_SWAP && next.place == claim && next.value == 0;
    return gives && memory_at(memory, claim) != next.expected ? "a claim was taken by another before it was given back" : NULL;
}

/* The slow one may lose its claim; the one that came later may not, though its claim is of the slow one's future. */
static const char *judge_slow_step(const struct world *world, int thread, uint32_t node, const uint64_t *memory)
{
    return world->thread[thread].slot == 2 ? judge_claim(world, thread, node, memory) : NULL;
}

static bool holds_claim(const struct world *world, int thread, uint32_t node)
{
    static struct access accesses[LONGEST];
    static uint64_t results[LONGEST];
    const int count = history_of(&world->thread[thread], node, accesses, results);
    bool is_held = false;
    for (int i = 0; i < count; i++)
        if (accesses[i].kind == A_SWAP && accesses[i].expected == results[i])
            is_held = accesses[i].value != 0;
    return is_held;
}

/* The last look before a launch is announced finds what was acted on: nothing that others could see by then is missed. */
static const char *judge_step(const struct world *world, int thread, uint32_t node, const uint64_t *memory)
{
    static struct access accesses[LONGEST];
    static uint64_t results[LONGEST];
    const struct thread *who = &world->thread[thread];
    const struct access next = node_of(who, node)->next;
    const int top = word_of(ct_gate_offset(0));
    if (judge_claim(world, thread, node, memory))
        return judge_claim(world, thread, node, memory);
    if (who->slot <= 0 || next.kind != A_STORE)
        return NULL;
    const size_t inside = (size_t)((unsigned char *)address_of(next.place) - file) % CT_GATE_PAGE_BYTES;
    const size_t recent = offsetof(struct ct_gate_page, recent_ns);
    if (inside < recent || inside >= recent + sizeof(uint64_t) * CT_GATE_RECENT)
        return NULL;
    if (!holds_claim(world, thread, node))
        return "one passes without the claim";
    uint64_t looked = 0;
    for (int i = history_of(who, node, accesses, results) - 1; i >= 0 && !looked; i--)
        if (accesses[i].kind == A_LOAD && accesses[i].place == top)
            looked = results[i];
    /* With several above, only the look at the last of them is the last look. */
    const bool is_missed = who->gate->above_count == 1 && memory_at(memory, top) != looked;
    return is_missed ? "a launch was missed that the last look could have seen" : NULL;
}

static const char *judge_rosters(const struct world *world, const uint32_t *node, const uint64_t *memory)
{
    (void)memory;
    for (int i = 1; i < world->threads; i++)
        if (node_of(&world->thread[i], node[i])->answer.reason != CT_GATE_OTHER)
            return "half of a roster is used";
    return NULL;
}

/* ---- the worlds ----------------------------------------------------------------------------------------------------- */

static struct world world_of(body first, body second, body third)
{
    body bodies[] = {first, second, third};
    struct world world = {.file = file, .judge_end = judge_end, .judge_step = judge_step};
    for (int i = 0; i < 3 && bodies[i]; i++)
        world.thread[world.threads++] = (struct thread){.run = bodies[i], .gate = &gates[i], .slot = i};
    return world;
}

static void tell(const char *name, const struct world *world)
{
    printf("%-44s %8" PRIu64 " states, %7" PRIu64 " ends (%" PRIu64 " without a pass, %" PRIu64 " with one): %s\n", name,
           world->states, world->ends, world->passed[0], world->passed[1], world->complaint ? world->complaint : "holds");
}

typedef void (*machine)(struct world *world);

static void holds(const char *name, struct world world, machine explore)
{
    explore(&world);
    tell(name, &world);
    EXPECT(!world.complaint && world.ends > 0);
    /* A world in which nothing happens would hold, too. */
    EXPECT(world.judge_end == judge_rosters || (world.passed[0] > 0 && world.passed[1] > 0));
    world_end(&world);
}

static void breaks(const char *name, struct world world, machine explore, enum breakage how, const char *wanted)
{
    world.broken = how;
    explore(&world);
    tell(name, &world);
    EXPECT(world.complaint && strcmp(world.complaint, wanted) == 0);
    world_end(&world);
}

static struct world rosters(void)
{
    begin(5, 5);
    struct ct_gate_rules rules = numbered(99);
    ct_roster_write((struct ct_gate_roster *)file, &rules);
    struct world world = world_of(write_roster_twice, read_roster, read_roster);
    world.thread[0].slot = -1;
    world.judge_end = judge_rosters;
    world.judge_step = NULL;
    return world;
}

static void the_code_holds(void)
{
    begin(5, 5);
    struct world two = world_of(launch_twice, ask_once, NULL), three = world_of(launch_once, ask_once, ask_once);
    struct world free_ones = world_of(launch_once, ask_free, ask_free), mortal = three;
    mortal.thread[1].is_mortal = true;
    holds("one asks, one launches twice", two, explore_buffers);
    holds("one asks, one launches twice, C11", two, explore_views);
    holds("two ask, one launches", three, explore_buffers);
    holds("two ask, one launches, C11", three, explore_views);
    holds("two ask, one of them dies", mortal, explore_buffers);
    holds("two ask while all is quiet", free_ones, explore_buffers);
    struct world slow = world_of(launch_once, ask_once, ask_later);
    slow.judge_step = judge_slow_step;
    slow.judge_end = judge_slow_end;
    holds("two ask, one of them is slow", slow, explore_buffers);
    begin(3, 5);
    holds("two of unequal priority ask", world_of(launch_once, ask_once, ask_once), explore_buffers);
    holds("two of unequal priority ask, C11", world_of(launch_once, ask_once, ask_once), explore_views);
    holds("rosters", rosters(), explore_buffers);
    holds("rosters, C11", rosters(), explore_views);
}

static void what_is_broken_is_found(void)
{
    const char *torn = "half of a roster is used", *missed = "a launch was missed that the last look could have seen";
    breaks("stores that pass each other", rosters(), explore_buffers, UNORDERED_STORES, torn);
    breaks("a roster's count that releases nothing, C11", rosters(), explore_views, RELAXED_ROSTER, torn);
    breaks("a roster without its fences, C11", rosters(), explore_views, NO_FENCE, torn);
    begin(5, 5);
    struct world two = world_of(launch_twice, ask_once, NULL), three = world_of(launch_once, ask_once, ask_once);
    breaks("without the last look", two, explore_buffers, NO_RECHECK, missed);
    breaks("a sequence that releases nothing, C11", two, explore_views, RELAXED_SEQUENCE,
           "words are older than the sequence that was seen before them");
    gates[1].must_claim = gates[2].must_claim = 0;
    three.judge_step = NULL;
    breaks("without the claim", three, explore_buffers, WHOLE, "two passed where one fits");
}

int main(void)
{
    the_code_holds();
    what_is_broken_is_found();
    return 0;
}

/* The hook at the gate: what it announces, what it waits for, and files that are none. */
#include "hook_at_gate.h"

#include <pthread.h>
#include <sched.h>

enum { MANY = 2000 };

/* Of a kernel `unnamed` of five blocks of 32 threads on a device without a name. */
#define KEY_OF_UNNAMED UINT64_C(0xdb3b73dfe37e22ca)

/* ---- what is no gate ---------------------------------------------------------------------------------------------- */

static void launch_ungated(void)
{
    EXPECT(opened()->gateway == NULL);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(opened()->record.header->calls, 1);
}

static void a_tenant_without_a_file(void)
{
    setenv("COTENANT_SLOT", "0/1", 1);
    setenv("COTENANT_GATE_FD", "0,2", 1); /* which are something else */
    launch_ungated();
}

static void no_tenant(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, ONLINE);
    setenv("COTENANT_SLOT", "", 1);
    launch_ungated();
}

static void a_file_of_something_else(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, ONLINE);
    ((struct ct_gate_roster *)file)->magic++;
    launch_ungated();
}

static void a_file_that_was_cut_short(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, ct_gate_offset(1), OFFLINE); /* its roster says that there are more */
    launch_ungated();
}

static void a_slot_beyond_the_file(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, SLOTS);
    launch_ungated();
}

static void more_seats_than_there_can_be(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    rules.seats = UINT64_MAX;
    rules.policy = 77;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    EXPECT(session->gateway && !session->gateway->gate.must_ask);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
}

/* ---- the holder --------------------------------------------------------------------------------------------------- */

static void a_holder_announces_and_takes_back(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, ONLINE);
    struct ct_session *session = opened();
    const struct ct_gate_page *mine = page_of(ONLINE);
    EXPECT_EQ(mine->generation, 1);
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(mine->sequence, 10);
    EXPECT_EQ(mine->counts.launches, 10);
    uint64_t busy_ns = mine->busy_ns, device_ns = mine->counts.device_ns;
    EXPECT_EQ(test_launch(0x1000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(test_launch(0, 1, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(mine->counts.launches, 10);
    EXPECT_EQ(mine->counts.device_ns, device_ns);
    EXPECT(mine->busy_ns >= busy_ns);
    EXPECT_EQ(session->record.header->calls, 10);
    EXPECT_EQ(mine->counts.waits, 0);
    /* A wait for all ends what is announced. */
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT(mine->busy_ns <= session->gateway->instant.last_ns);
}

static void a_child_opens_its_own(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    int status;
    make_gate(&rules, SIZE_MAX, ONLINE);
    opened();
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    pid_t child = fork();
    if (child == 0) {
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
        EXPECT(ct_session()->gateway != NULL);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(page_of(ONLINE)->sequence, 2);
}

/* ---- below -------------------------------------------------------------------------------------------------------- */

static void below_a_quiet_holder_all_pass(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    page_of(ONLINE)->generation = 1; /* it is there, and has launched nothing */
    struct ct_gate_floor *floor = (struct ct_gate_floor *)(file + CT_GATE_PAGE_BYTES);
    floor->claim = floor->debt_ns = floor->asleep_until_ns = UINT64_MAX; /* left by the dead, or scribbled */
    struct ct_session *session = opened();
    for (int i = 0; i < MANY; i++)
        EXPECT_EQ(test_launch(0x1000, 1 + (unsigned)i % 3, NULL), CUDA_SUCCESS);
    const struct ct_gate_counts *counts = &page_of(OFFLINE)->counts;
    EXPECT_EQ(counts->passed[CT_GATE_FREE], MANY);
    EXPECT_EQ(counts->submitted, MANY);
    EXPECT_EQ(counts->stale, 0);
    EXPECT_EQ(counts->admitted - counts->confirmed, session->gateway->gate.unconfirmed);
    EXPECT(session->known[0].is_known && session->known[0].may_fill); /* sampled at once, for nobody else did anything */
    /* One that fails is taken back, and a wait for all shows the rest. */
    EXPECT_EQ(test_launch(0x1000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(counts->submitted, MANY);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(session->gateway->gate.unconfirmed, 0);
    EXPECT_EQ(session->gateway->marks.outstanding, 0);
    EXPECT_EQ(cuCtxDestroy_v2(NULL), CUDA_ERROR_NOT_SUPPORTED); /* drops the events */
    EXPECT_EQ(session->gateway->marks.count, 0);
}

/* What an earlier profile says of a kernel is believed until there are samples; the key is what format/known.py writes. */
static void what_a_profile_says_is_known(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    char path[96];
    const struct {
        char magic[8];
        struct ct_known_entry entry[2];
        char torn[5];
    } told = {"COTKNOW1", {{KEY_OF_UNNAMED, 70000, 90000, 400000}, {1, 2, 3, 4}}, "torn"};
    make_gate(&rules, SIZE_MAX, OFFLINE);
    snprintf(path, sizeof path, "%s/known", test_records);
    int descriptor = open(path, O_WRONLY | O_CREAT, 0600);
    EXPECT(descriptor >= 0 && write(descriptor, &told, sizeof told) == (ssize_t)sizeof told);
    close(descriptor);
    struct ct_session *session = opened();
    unlink(path);
    EXPECT_EQ(session->known_file.count, 2);
    EXPECT_EQ(test_launch(0x1000, 5, NULL), CUDA_SUCCESS);
    EXPECT(session->known[0].is_known && session->known[0].may_fill);
    EXPECT_EQ(session->known[0].expect_ns, 70000);
    EXPECT_EQ(session->known[0].sure_ns, 800000); /* its p99 is more than four times its mean: twice that must fit */
    EXPECT_EQ(test_launch(0x1000, 6, NULL), CUDA_SUCCESS);
    EXPECT(!session->known[1].is_known);
}

/* Nothing that was submitted ever ends, and yet the next launch passes: perhaps it is what the others wait for. */
static void what_never_ends_holds_up_nothing_for_good(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    opened();
    int *is_stuck = of_the_driver("idle_is_stuck");
    *is_stuck = 1;
    for (unsigned i = 1; i < 5; i++)
        EXPECT_EQ(test_launch(0x1000, i, NULL), CUDA_SUCCESS); /* each unknown, each as long as the bound */
    const struct ct_gate_counts *counts = &page_of(OFFLINE)->counts;
    EXPECT_EQ(counts->launches, 4);
    EXPECT(counts->stuck > 0);
    *is_stuck = 0;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(opened()->gateway->gate.unconfirmed, 0);
}

static void *launch_one(void *given)
{
    (void)given;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    return NULL;
}

static void a_change_acts_at_the_next_launch(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    struct ct_gate_roster *roster;
    pthread_t thread;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    roster = (struct ct_gate_roster *)file;
    struct ct_session *session = opened();
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 1);
    rules = rules_of(7, 2);
    ct_roster_write(roster, &rules);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 1); /* nobody is above any more */
    EXPECT_EQ(page_of(OFFLINE)->sequence, 2);
    rules.seat[1].flags = CT_GATE_SEAT_PAUSED;
    ct_roster_write(roster, &rules);
    EXPECT_EQ(pthread_create(&thread, NULL, launch_one, NULL), 0);
    while (!page_of(OFFLINE)->wanted_ns)
        sched_yield();
    EXPECT_EQ(page_of(OFFLINE)->sequence, 2);
    rules.seat[1].flags = 0;
    ct_roster_write(roster, &rules);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(page_of(OFFLINE)->sequence, 3);
    EXPECT_EQ(page_of(OFFLINE)->counts.waits, 1);
    EXPECT_EQ(session->record.header->calls, 3);
}

/* A tenant that is to end, alone on its device: what a kill would find is one launch, whatever it launches. */
static void one_at_a_time_at_the_end(void)
{
    struct ct_gate_rules rules = rules_of(7, 2);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    const struct ct_gate *gate = &session->gateway->gate;
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    rules.seat[1].flags = CT_GATE_SEAT_ENDING;
    for (int i = 0; i < 2; i++) {
        rules.policy = i ? CT_GATE_OPEN : CT_GATE_FILL;
        ct_roster_write((struct ct_gate_roster *)file, &rules);
        for (int j = 0; j < 40; j++) {
            EXPECT_EQ(test_launch(0x1000, 1 + (unsigned)j % 3, (CUstream)(uintptr_t)(j % 2)), CUDA_SUCCESS);
            EXPECT_EQ(gate->unconfirmed, 1);
        }
    }
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 80);
    EXPECT_EQ(page_of(OFFLINE)->counts.confirmed, 79);
    EXPECT_EQ(page_of(OFFLINE)->counts.stuck, 0);
}

static void *launch_many(void *given)
{
    for (int i = 0; i < MANY; i++) {
        EXPECT_EQ(test_launch(0x1000 + (uintptr_t)given, 1 + (unsigned)i % 5, (CUstream)given), CUDA_SUCCESS);
        if (i % 50 == 0)
            EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    return NULL;
}

/* Threads and streams of a tenant below one that launches all the time, in a process of its own. */
static void many_threads_below_an_active_holder(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    pthread_t threads[3];
    int status;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    pid_t holder = fork();
    if (holder == 0) {
        setenv("COTENANT_SLOT", "0/1", 1);
        EXPECT(opened()->gateway != NULL);
        launch_many((void *)0x10);
        _exit(0);
    }
    opened();
    for (uintptr_t i = 0; i < 3; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, launch_many, (void *)(i << 4)), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT(waitpid(holder, &status, 0) == holder);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(page_of(ONLINE)->sequence, MANY);
    EXPECT_EQ(page_of(OFFLINE)->sequence, 3 * MANY);
    EXPECT_EQ(page_of(OFFLINE)->counts.stale, 0);
    EXPECT_EQ(opened()->record.header->calls + opened()->record.header->unbooked, 3 * MANY);
    EXPECT(page_of(ONLINE)->counts.waits == 0);
}

/* ------------------------------------------------------------------------------------------------------------------- */

static void (*const CASES[])(void) = {
    a_tenant_without_a_file,
    no_tenant,
    a_file_of_something_else,
    a_file_that_was_cut_short,
    a_slot_beyond_the_file,
    more_seats_than_there_can_be,
    a_holder_announces_and_takes_back,
    a_child_opens_its_own,
    below_a_quiet_holder_all_pass,
    what_a_profile_says_is_known,
    what_never_ends_holds_up_nothing_for_good,
    a_change_acts_at_the_next_launch,
    one_at_a_time_at_the_end,
    many_threads_below_an_active_holder,
};

int main(void)
{
    return run_cases(CASES, sizeof CASES / sizeof CASES[0]);
}

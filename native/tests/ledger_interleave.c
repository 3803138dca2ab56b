/* Model checking of the ledger: in every order of the accesses of three processes, and if any of them stops forever,
 * the quota holds, and no process is refused permanently because of one that got nothing.
 *
 * What a process does next depends on the results of its accesses so far. Its code is therefore run from the beginning
 * with these results, and executes one further access. All accesses of the ledger are sequentially consistent, so the
 * orders of whole accesses are all orders there are. */
#include "tests/ledger_hooks.h"
#include "tests/ledger_pages.h"

#include <setjmp.h>
#include <stdbool.h>

enum { PROCESSES = 3, STEPS_MAX = 400, QUOTA = 10, NEVER = -1, RANDOM_ORDERS = 2000 };

static struct ledger_device device;
static const int tenant_of[PROCESSES] = {0, 0, 0};

struct process {
    struct ct_ledger ledger;
    uint64_t request_bytes, results[STEPS_MAX], value[STEPS_MAX];
    int steps; /* executed accesses */
    bool has_ended, is_dead, was_granted, was_denied;
    uint64_t granted_bytes; /* from the end of its reservation to the beginning of its release */
};

static struct process processes[PROCESSES];
static struct process *running; /* NULL: accesses are executed at once, in program order */
static int replay_index;
static jmp_buf pause_point;

static uint64_t perform(enum stepped kind, volatile uint64_t *word, uint64_t value, uint64_t *expected)
{
    uint64_t before = *word;
    if (kind == STEP_STORE || (kind == STEP_SWAP && before == *expected))
        *word = value;
    if (kind == STEP_ADD)
        *word = before + value;
    if (kind == STEP_SWAP) {
        bool is_equal = before == *expected;
        *expected = before;
        return is_equal;
    }
    return before;
}

uint64_t stepped(enum stepped kind, volatile void *place, uint64_t value, uint64_t *expected)
{
    /* The table does not change here, and no process measures or shares memory. */
    const unsigned char *address = (const unsigned char *)(uintptr_t)place;
    bool is_shared = address >= (unsigned char *)device.pages.process && address < (unsigned char *)device.account;
    if (!running || !is_shared)
        return perform(kind, place, value, expected);
    if (replay_index < running->steps) {
        if (kind == STEP_SWAP)
            *expected = running->value[replay_index];
        return running->results[replay_index++];
    }
    if (replay_index > running->steps) /* one access was executed in this run: stop here */
        longjmp(pause_point, 1);
    EXPECT(running->steps < STEPS_MAX);
    uint64_t result = perform(kind, place, value, expected);
    running->results[running->steps] = result;
    running->value[running->steps] = expected ? *expected : 0;
    replay_index = running->steps + 1;
    return result;
}

/* What each process does. Runs many times, so all its assignments are idempotent. */
static void reserve_and_release(struct process *process)
{
    process->granted_bytes = 0;
    ct_ledger_begin(&process->ledger);
    int result = ct_ledger_reserve(&process->ledger, CT_LEDGER_ALLOCATED, process->request_bytes, QUOTA);
    process->was_granted = result == CT_LEDGER_OK;
    process->was_denied = result == CT_LEDGER_OVER;
    process->granted_bytes = process->was_granted ? process->request_bytes : 0;
    ct_ledger_end(&process->ledger);
    if (process->was_granted) {
        ct_ledger_begin(&process->ledger);
        process->granted_bytes = 0;
        ct_ledger_release(&process->ledger, CT_LEDGER_ALLOCATED, process->request_bytes);
        ct_ledger_end(&process->ledger);
    }
    process->has_ended = true;
}

static void step(struct process *process)
{
    int before = process->steps;
    running = process;
    replay_index = 0;
    if (setjmp(pause_point) == 0)
        reserve_and_release(process);
    running = NULL;
    process->steps = process->has_ended ? before + 1 : replay_index;
    uint64_t granted = 0;
    for (int i = 0; i < PROCESSES; i++)
        granted += processes[i].granted_bytes;
    EXPECT(granted <= QUOTA);
}

static void begin(const uint64_t requests[PROCESSES])
{
    memset(processes, 0, sizeof processes);
    make_device(&device, tenant_of, PROCESSES);
    for (uint32_t i = 0; i < PROCESSES; i++) {
        processes[i].ledger = open_ledger(&device, i, 0);
        processes[i].request_bytes = requests[i];
    }
}

/* Every process has ended, or is dead. */
static void check_end(void)
{
    bool was_any_granted = false, was_any_denied = false;
    int present[PROCESSES];
    for (uint32_t i = 0; i < PROCESSES; i++) {
        was_any_granted |= processes[i].was_granted;
        was_any_denied |= processes[i].was_denied;
        present[i] = processes[i].is_dead ? -1 : 0;
    }
    EXPECT(was_any_granted || !was_any_denied); /* if no process got memory, none is denied it: the result
                                                  * is CT_LEDGER_CONTENDED instead */
    list_processes(&device, present, PROCESSES);
    EXPECT_EQ(ct_ledger_held(&processes[0].ledger), 0);
    for (uint32_t i = 0; i < PROCESSES; i++)
        EXPECT(processes[i].is_dead || device.pages.process[i].ledger.line.begun ==
               device.pages.process[i].ledger.line.ended);
}

/* Runs one process to its end, except for switches to another at given steps. */
static void run_with_switches(const int switch_steps[2], const int switch_targets[2], int first)
{
    int current = first, ended_count = 0;
    for (int step_number = 0; ended_count < PROCESSES; step_number++) {
        for (int i = 0; i < 2; i++)
            if (switch_steps[i] == step_number)
                current = switch_targets[i];
        while (processes[current].has_ended)
            current = (current + 1) % PROCESSES;
        step(&processes[current]);
        ended_count = 0;
        for (int i = 0; i < PROCESSES; i++)
            ended_count += processes[i].has_ended;
    }
    check_end();
}

static int total_steps(const uint64_t requests[PROCESSES])
{
    int sum = 0;
    begin(requests);
    run_with_switches((const int[]){NEVER, NEVER}, (const int[]){0, 0}, 0);
    for (int i = 0; i < PROCESSES; i++)
        sum += processes[i].steps;
    return sum;
}

/* Most defects of this kind need at most two switches at the wrong step: all first ones, and every seventh second
 * one. */
static void check_orders_with_two_switches(const uint64_t requests[PROCESSES])
{
    int steps = total_steps(requests);
    for (int first = 1; first < steps; first++)
        for (int second = first; second < steps; second += 7)
            for (int variant = 0; variant < 4; variant++) {
                begin(requests);
                run_with_switches((const int[]){first, second}, (const int[]){1 + variant % 2, variant / 2 ? 0 : 2}, 0);
            }
}

static uint64_t random_number(uint64_t *rng)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *rng >> 33;
}

static void check_random_orders_with_deaths(const uint64_t requests[PROCESSES])
{
    uint64_t rng = 5, deaths = 0;
    for (int order = 0; order < RANDOM_ORDERS; order++) {
        begin(requests);
        for (int running_count = PROCESSES; running_count;) {
            struct process *process = &processes[random_number(&rng) % PROCESSES];
            if (process->has_ended || process->is_dead)
                continue;
            if (order % 2 && random_number(&rng) % 60 == 0)
                process->is_dead = true;
            for (uint64_t steps = 1 + random_number(&rng) % 8; steps && !process->has_ended &&
                 !process->is_dead; steps--)
                step(process);
            running_count -= process->has_ended || process->is_dead;
            deaths += process->is_dead;
        }
        check_end();
    }
    EXPECT(deaths > RANDOM_ORDERS / 10);
}

int main(void)
{
    static const uint64_t requests[][PROCESSES] = {{6, 6, 6}, {4, 3, 9}, {10, 1, 1}};
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        check_orders_with_two_switches(requests[i]);
        check_random_orders_with_deaths(requests[i]);
    }
    return 0;
}

/* Model checking of the ledger: in every order of the accesses of three processes, and if any of them stops forever,
 * the quota holds, and no process is refused permanently because of one that got nothing.
 *
 * What a process does next depends on the results of its accesses so far. Its code is therefore run from the beginning
 * with these results, and executes one further access. All accesses of the ledger are sequentially consistent, so the
 * orders of whole accesses are all orders there are. */
#include "ledger/ledger.h"
#include "tests/expect.h"
#include "tests/ledger_hooks.h"

#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

enum { PROCESSES = 3, LONGEST = 400, QUOTA = 10, NEVER = -1, RANDOM_ORDERS = 2000 };

static _Alignas(4096) unsigned char file[CT_LEDGER_HEADER_BYTES + CT_LEDGER_ACCOUNT_BYTES];

struct process {
    struct ct_ledger ledger;
    uint64_t request_bytes, results[LONGEST], value[LONGEST];
    int steps; /* executed accesses */
    bool is_over, is_dead, was_granted, was_denied;
    uint64_t granted_bytes; /* from the end of its reservation to the beginning of its release */
};

static struct process processes[PROCESSES];
static struct process *running; /* NULL: accesses are executed at once, in program order */
static int replayed;
static jmp_buf pause_here;

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
    bool is_shared = (unsigned char *)place >= file && (unsigned char *)place < file + sizeof file;
    if (!running || !is_shared) /* the process's own pointer to its line is not shared */
        return perform(kind, place, value, expected);
    if (replayed < running->steps) {
        if (kind == STEP_SWAP)
            *expected = running->value[replayed];
        return running->results[replayed++];
    }
    if (replayed > running->steps) /* one access was executed in this run: stop here */
        longjmp(pause_here, 1);
    EXPECT(running->steps < LONGEST);
    uint64_t result = perform(kind, place, value, expected);
    running->results[running->steps] = result;
    running->value[running->steps] = expected ? *expected : 0;
    replayed = running->steps + 1;
    return result;
}

/* What each process does. Runs many times, so all its assignments are idempotent. */
static void take_and_give(struct process *process)
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
    process->is_over = true;
}

static void step(struct process *process)
{
    int before = process->steps;
    running = process;
    replayed = 0;
    if (setjmp(pause_here) == 0)
        take_and_give(process);
    running = NULL;
    process->steps = process->is_over ? before + 1 : replayed;
    uint64_t granted = 0;
    for (int i = 0; i < PROCESSES; i++)
        granted += processes[i].granted_bytes;
    EXPECT(granted <= QUOTA);
}

static struct ct_ledger_account *account(void)
{
    return (struct ct_ledger_account *)(file + ct_ledger_offset(0));
}

static void begin(const uint64_t requests[PROCESSES])
{
    memset(file, 0, sizeof file);
    memset(processes, 0, sizeof processes);
    EXPECT_EQ(ct_ledger_init(file, sizeof file, 1), 0);
    ct_ledger_grant(account(), 1);
    for (uint64_t i = 0; i < PROCESSES; i++) {
        EXPECT_EQ(ct_ledger_open(&processes[i].ledger, file, sizeof file, account(), 0, 1, i + 1), 0);
        processes[i].request_bytes = requests[i];
    }
}

/* Every process has ended, or is dead. */
static void check_end(void)
{
    bool was_any_granted = false, was_any_denied = false;
    for (uint32_t i = 0; i < PROCESSES; i++) {
        was_any_granted |= processes[i].was_granted;
        was_any_denied |= processes[i].was_denied;
        if (processes[i].is_dead)
            ct_ledger_clear(file, sizeof file, 0, i, i + 1);
    }
    EXPECT(was_any_granted || !was_any_denied); /* no process is denied memory that no other one got: it is told
                                                         * to try again */
    EXPECT_EQ(ct_ledger_held((const void *)file, sizeof file, account()), 0);
    for (uint32_t i = 0; i < PROCESSES; i++)
        EXPECT_EQ(account()->line[i].begun, account()->line[i].ended);
}

/* Runs one process to its end, except for switches to another at given steps. */
static void run_with(const int at[2], const int to[2], int first)
{
    int now = first, done = 0;
    for (int taken = 0; done < PROCESSES; taken++) {
        for (int i = 0; i < 2; i++)
            if (at[i] == taken)
                now = to[i];
        while (processes[now].is_over)
            now = (now + 1) % PROCESSES;
        step(&processes[now]);
        done = 0;
        for (int i = 0; i < PROCESSES; i++)
            done += processes[i].is_over;
    }
    check_end();
}

static int most_steps(const uint64_t requests[PROCESSES])
{
    int sum = 0;
    begin(requests);
    run_with((const int[]){NEVER, NEVER}, (const int[]){0, 0}, 0);
    for (int i = 0; i < PROCESSES; i++)
        sum += processes[i].steps;
    return sum;
}

/* Most defects of this kind need at most two switches at the wrong step: all first ones, and every seventh second
 * one. */
static void orders_with_two_changes(const uint64_t requests[PROCESSES])
{
    int steps = most_steps(requests);
    for (int one = 1; one < steps; one++)
        for (int other = one; other < steps; other += 7)
            for (int change = 0; change < 4; change++) {
                begin(requests);
                run_with((const int[]){one, other}, (const int[]){1 + change % 2, change / 2 ? 0 : 2}, 0);
            }
}

static uint64_t roll(uint64_t *rng)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *rng >> 33;
}

static void random_orders_with_deaths(const uint64_t requests[PROCESSES])
{
    uint64_t rng = 5, deaths = 0;
    for (int order = 0; order < RANDOM_ORDERS; order++) {
        begin(requests);
        for (int left = PROCESSES; left;) {
            struct process *process = &processes[roll(&rng) % PROCESSES];
            if (process->is_over || process->is_dead)
                continue;
            if (order % 2 && roll(&rng) % 60 == 0)
                process->is_dead = true;
            for (uint64_t steps = 1 + roll(&rng) % 8; steps && !process->is_over && !process->is_dead; steps--)
                step(process);
            left -= process->is_over || process->is_dead;
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
        orders_with_two_changes(requests[i]);
        random_orders_with_deaths(requests[i]);
    }
    return 0;
}

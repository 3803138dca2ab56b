/* In whatever order the accesses of three processes take effect, and whoever stops for ever: is the quota kept, and is nobody
 * refused for good by one who got nothing? The ledger's own code, one access at a time.
 *
 * What a process does next follows from what its accesses returned so far. So its code is run from the beginning with these
 * results, does one access more, and goes on to the next. All accesses of the ledger are sequentially consistent: orders of
 * whole accesses are all orders there are. */
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
    uint64_t wish_bytes, results[LONGEST], seen[LONGEST];
    int steps; /* accesses done */
    bool is_over, is_dead, was_granted, was_denied;
    uint64_t granted_bytes; /* from the end of its reservation to the beginning of its return */
};

static struct process processes[PROCESSES];
static struct process *running; /* NULL: accesses are done at once, in no order but the program's */
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
    if (!running || !is_shared) /* where a process keeps its line is its own business */
        return perform(kind, place, value, expected);
    if (replayed < running->steps) {
        if (kind == STEP_SWAP)
            *expected = running->seen[replayed];
        return running->results[replayed++];
    }
    if (replayed > running->steps) /* one access was done in this run: here it waits for its next turn */
        longjmp(pause_here, 1);
    EXPECT(running->steps < LONGEST);
    uint64_t result = perform(kind, place, value, expected);
    running->results[running->steps] = result;
    running->seen[running->steps] = expected ? *expected : 0;
    replayed = running->steps + 1;
    return result;
}

/* What each of them does. Runs many times over: what it sets, it sets to the same again. */
static void take_and_give(struct process *process)
{
    process->granted_bytes = 0;
    ct_ledger_begin(&process->ledger);
    int result = ct_ledger_reserve(&process->ledger, CT_LEDGER_BOOKED, process->wish_bytes, QUOTA);
    process->was_granted = result == CT_LEDGER_OK;
    process->was_denied = result == CT_LEDGER_OVER;
    process->granted_bytes = process->was_granted ? process->wish_bytes : 0;
    ct_ledger_end(&process->ledger);
    if (process->was_granted) {
        ct_ledger_begin(&process->ledger);
        process->granted_bytes = 0;
        ct_ledger_give(&process->ledger, CT_LEDGER_BOOKED, process->wish_bytes);
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

static void begin(const uint64_t wishes[PROCESSES])
{
    memset(file, 0, sizeof file);
    memset(processes, 0, sizeof processes);
    EXPECT_EQ(ct_ledger_init(file, sizeof file, 1), 0);
    ct_ledger_grant(account(), 1);
    for (uint64_t i = 0; i < PROCESSES; i++) {
        EXPECT_EQ(ct_ledger_open(&processes[i].ledger, file, sizeof file, account(), 0, 1, i + 1), 0);
        processes[i].wish_bytes = wishes[i];
    }
}

/* Everybody is at its end, or dead. */
static void judge_end(void)
{
    bool was_anybody_granted = false, was_anybody_denied = false;
    for (uint32_t i = 0; i < PROCESSES; i++) {
        was_anybody_granted |= processes[i].was_granted;
        was_anybody_denied |= processes[i].was_denied;
        if (processes[i].is_dead)
            ct_ledger_clear(file, sizeof file, 0, i, i + 1);
    }
    EXPECT(was_anybody_granted || !was_anybody_denied); /* nobody hears "no" for what nobody got: "ask again" it is */
    EXPECT_EQ(ct_ledger_held((const void *)file, sizeof file, account()), 0);
    for (uint32_t i = 0; i < PROCESSES; i++)
        EXPECT_EQ(account()->line[i].begun, account()->line[i].ended);
}

/* Runs one process to its end, but for so many changes to another at given steps. */
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
    judge_end();
}

static int most_steps(const uint64_t wishes[PROCESSES])
{
    int sum = 0;
    begin(wishes);
    run_with((const int[]){NEVER, NEVER}, (const int[]){0, 0}, 0);
    for (int i = 0; i < PROCESSES; i++)
        sum += processes[i].steps;
    return sum;
}

/* Most faults of this kind need no more than two changes at the wrong moment: all first ones, and every seventh second. */
static void orders_with_two_changes(const uint64_t wishes[PROCESSES])
{
    int steps = most_steps(wishes);
    for (int one = 1; one < steps; one++)
        for (int other = one; other < steps; other += 7)
            for (int change = 0; change < 4; change++) {
                begin(wishes);
                run_with((const int[]){one, other}, (const int[]){1 + change % 2, change / 2 ? 0 : 2}, 0);
            }
}

static uint64_t roll(uint64_t *dice)
{
    *dice = *dice * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *dice >> 33;
}

static void random_orders_with_deaths(const uint64_t wishes[PROCESSES])
{
    uint64_t dice = 5, deaths = 0;
    for (int order = 0; order < RANDOM_ORDERS; order++) {
        begin(wishes);
        for (int left = PROCESSES; left;) {
            struct process *process = &processes[roll(&dice) % PROCESSES];
            if (process->is_over || process->is_dead)
                continue;
            if (order % 2 && roll(&dice) % 60 == 0)
                process->is_dead = true;
            for (uint64_t steps = 1 + roll(&dice) % 8; steps && !process->is_over && !process->is_dead; steps--)
                step(process);
            left -= process->is_over || process->is_dead;
            deaths += process->is_dead;
        }
        judge_end();
    }
    EXPECT(deaths > RANDOM_ORDERS / 10);
}

int main(void)
{
    static const uint64_t wishes[][PROCESSES] = {{6, 6, 6}, {4, 3, 9}, {10, 1, 1}};
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        orders_with_two_changes(wishes[i]);
        random_orders_with_deaths(wishes[i]);
    }
    return 0;
}

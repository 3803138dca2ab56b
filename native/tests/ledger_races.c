/* Race test: threads and processes together never hold more than their quota, and killed processes leave nothing
 * behind. */
#define _GNU_SOURCE
#include "tests/ledger_pages.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RACERS = 4, THREADS = 3, ROUNDS = 4000, KILLS = 60, QUOTA = 1000 };

/* Shared by all processes of the test: the pages, and the sum of granted reservations. */
struct shared {
    struct ledger_device device;
    _Atomic uint64_t granted, max_granted, granted_count, refused_count;
    _Atomic int has_ended;
};

static struct shared *shared;

/* All processes of one tenant: one more than there are racers, or a survivor and a killed one. */
static void make_shared(void)
{
    static const int tenant_of[RACERS + 1] = {0};
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(shared != MAP_FAILED);
    make_device(&shared->device, tenant_of, RACERS + 1);
}

static uint64_t random_number(uint64_t *rng)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *rng >> 33;
}

static void record_maximum(uint64_t granted)
{
    uint64_t max = atomic_load(&shared->max_granted);
    while (granted > max && !atomic_compare_exchange_weak(&shared->max_granted, &max, granted))
        ;
}

/* Counts bytes as granted only while they are reserved: the counter never exceeds the actual sum. */
static void reserve_and_release(struct ct_ledger *ledger, uint64_t *rng)
{
    uint64_t bytes = 1 + random_number(rng) % (QUOTA / 3);
    enum ct_ledger_kind kind = (enum ct_ledger_kind)(random_number(rng) % 3);
    ct_ledger_begin(ledger);
    int result = ct_ledger_reserve(ledger, kind, bytes, QUOTA);
    if (result == CT_LEDGER_OK) {
        uint64_t granted = atomic_fetch_add(&shared->granted, bytes) + bytes;
        EXPECT(granted <= QUOTA);
        record_maximum(granted);
        atomic_fetch_add(&shared->granted_count, 1);
    } else {
        EXPECT(result == CT_LEDGER_OVER || result == CT_LEDGER_CONTENDED);
        atomic_fetch_add(&shared->refused_count, 1);
    }
    ct_ledger_end(ledger);
    if (result != CT_LEDGER_OK)
        return;
    if (random_number(rng) % 8 == 0)
        sched_yield();
    ct_ledger_begin(ledger);
    atomic_fetch_sub(&shared->granted, bytes);
    ct_ledger_release(ledger, kind, bytes);
    ct_ledger_end(ledger);
}

struct thread {
    struct ct_ledger *ledger;
    uint64_t rng;
};

static void *race(void *argument)
{
    struct thread *thread = argument;
    for (int i = 0; i < ROUNDS; i++)
        reserve_and_release(thread->ledger, &thread->rng);
    return NULL;
}

static void run_racing_process(uint64_t number)
{
    struct ct_ledger ledger = open_ledger(&shared->device, (uint32_t)number, 0);
    struct thread threads[THREADS];
    pthread_t running[THREADS];
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){&ledger, number * 100 + (uint64_t)i};
        EXPECT_EQ(pthread_create(&running[i], NULL, race, &threads[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_join(running[i], NULL), 0);
    exit(0);
}

/* Starts a process that only observes. */
static pid_t start_observer(void)
{
    pid_t observer = fork();
    if (observer)
        return observer;
    while (!atomic_load(&shared->has_ended)) {
        uint64_t granted = atomic_load(&shared->granted);
        EXPECT(granted <= QUOTA);
        record_maximum(granted);
    }
    exit(0);
}

static void expect_success(pid_t child)
{
    int status;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static uint64_t held(void)
{
    const struct ct_ledger observer = open_ledger(&shared->device, 0, 0);
    return ct_ledger_held(&observer);
}

static void racing_processes_never_exceed_the_quota(void)
{
    pid_t racers[RACERS];
    make_shared();
    pid_t observer = start_observer();
    for (uint64_t i = 0; i < RACERS; i++) {
        racers[i] = fork();
        if (racers[i] == 0)
            run_racing_process(i + 1);
    }
    for (int i = 0; i < RACERS; i++)
        expect_success(racers[i]);
    atomic_store(&shared->has_ended, 1);
    expect_success(observer);
    EXPECT(atomic_load(&shared->granted_count) > 0 && atomic_load(&shared->refused_count) > 0); /* both outcomes occurred */
    EXPECT(atomic_load(&shared->max_granted) > QUOTA / 2);
    EXPECT_EQ(atomic_load(&shared->granted), 0);
    EXPECT_EQ(held(), 0);
    munmap(shared, sizeof *shared);
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec duration = {.tv_nsec = (long)ns};
    nanosleep(&duration, NULL);
}

/* A process killed at any point counts until the node removes it from the table, and not at all afterwards. */
static void killed_processes_leave_no_memory_counted(void)
{
    uint64_t rng = 3;
    make_shared();
    struct ct_ledger survivor = open_ledger(&shared->device, 0, 0);
    ct_ledger_begin(&survivor);
    EXPECT_EQ(ct_ledger_reserve(&survivor, CT_LEDGER_ALLOCATED, 7, QUOTA), CT_LEDGER_OK);
    ct_ledger_end(&survivor);
    for (uint64_t i = 1; i <= KILLS; i++) {
        list_processes(&shared->device, (const int[]){0, 0}, 2);
        memset(&shared->device.pages.process[1], 0, sizeof shared->device.pages.process[1]);
        pid_t child = fork();
        if (child == 0) {
            struct ct_ledger ledger = open_ledger(&shared->device, 1, 0);
            uint64_t own_rng = i;
            for (uint64_t n = 0;; n++) {
                enum ct_ledger_kind kind = (enum ct_ledger_kind)(n % 3);
                ct_ledger_begin(&ledger);
                if (ct_ledger_reserve(&ledger, kind, 1 + random_number(&own_rng) % 50, QUOTA) != CT_LEDGER_OK)
                    ct_ledger_release(&ledger, kind, 100);
                if (n % 16 == 0 && ct_ledger_share_add(&ledger, CT_LEDGER_EXPORT, i * 1000 + n % 64 + 1, 3))
                    ct_ledger_share_drop(&ledger, CT_LEDGER_EXPORT, i * 1000 + (n - 16) % 64 + 1);
                ct_ledger_end(&ledger);
            }
        }
        sleep_ns(200 * 1000 + random_number(&rng) % (2 * 1000 * 1000));
        EXPECT_EQ(kill(child, SIGKILL), 0);
        EXPECT_EQ(waitpid(child, NULL, 0), child);
        const uint64_t counted = held();
        EXPECT(counted >= 7 && counted <= QUOTA + 50);
        ct_ledger_account_write(&shared->device.account[0], 0, counted - 7, 0);
        list_processes(&shared->device, (const int[]){0, -1}, 2);
        EXPECT_EQ(held(), counted);
        ct_ledger_account_write(&shared->device.account[0], 0, 0, 0);
        EXPECT_EQ(held(), 7);
    }
    munmap(shared, sizeof *shared);
}

int main(void)
{
    racing_processes_never_exceed_the_quota();
    killed_processes_leave_no_memory_counted();
    return 0;
}

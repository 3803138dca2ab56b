/* Race test: however the ranks of a gang interleave, none is refused a collective that another has launched, and all launch
 * the same collectives. */
#include "tests/expect.h"

#include "gate/gang.h"

#include <pthread.h>
#include <sched.h>

enum { RANKS = 3 };

static struct ct_gang_page page;
static _Atomic uint64_t launched[RANKS]; /* the latest collective that each rank has launched */
static uint64_t collectives;

static uint64_t random_number(uint64_t *rng)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *rng >> 33;
}

static uint64_t latest_launch(void)
{
    uint64_t latest = 0;
    for (int i = 0; i < RANKS; i++)
        if (atomic_load(&launched[i]) > latest)
            latest = atomic_load(&launched[i]);
    return latest;
}

/* Asks once, as the gate does, with a gate that is open at random. Time stands still, so no rank loses its patience. */
static int asks(struct ct_gang *gang, uint64_t *rng)
{
    const uint64_t number = gang->passed + 1;
    EXPECT(ct_gang_begin(gang, 1, 1));
    const int is_launched = latest_launch() >= number; /* before this rank asks */
    int passes = ct_gang_is_agreed(gang);
    if (!passes && random_number(rng) % 3)
        passes = ct_gang_open(gang, 1);
    else if (!passes)
        passes = ct_gang_close(gang);
    EXPECT(passes || !is_launched);
    return passes;
}

static void *run_rank(void *argument)
{
    struct ct_gang gang = {0};
    uint64_t rng = (uintptr_t)argument;
    ct_gang_join(&gang, &page, RANKS, (uint32_t)(uintptr_t)argument + 1);
    while (gang.passed < collectives) {
        if (!asks(&gang, &rng)) {
            sched_yield();
            continue;
        }
        atomic_store(&launched[gang.rank], gang.passed + 1);
        ct_gang_passed(&gang);
        /* No rank is more than one collective ahead of another. */
        for (int i = 0; i < RANKS; i++)
            EXPECT(atomic_load(&page.ranks[i].passed) + 1 >= gang.passed);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[RANKS];
    collectives = rounds_of(3000, 300000);
    for (uintptr_t i = 0; i < RANKS; i++)
        EXPECT(pthread_create(&threads[i], NULL, run_rank, (void *)i) == 0);
    for (int i = 0; i < RANKS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < RANKS; i++)
        EXPECT_EQ(atomic_load(&launched[i]), collectives);
    return 0;
}

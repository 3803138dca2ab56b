/* Eviction of the least recently used half of a table that is full, with everything that refers to it. Half of it at once,
 * so that a program with ever new shapes rarely pays for it.
 *
 * The memory of an entry is reused. A thread that looks up an identity without the lock while it is evicted finds it or
 * does not; then it creates it again under the lock. */
#include "hook/entry/session.h"

#include "hook/timing/timing.h"

#include <string.h>

/* Returns the instant up to which half of the entries were last used. `first` is this word of the first entry. */
static uint64_t median_of(const uint64_t *first, size_t stride_bytes, uint32_t count)
{
    uint64_t low = UINT64_MAX, high = 0;
#define USED(i) (*(const uint64_t *)((const char *)first + (i)*stride_bytes))
    for (uint32_t i = 0; i < count; i++) {
        low = USED(i) < low ? USED(i) : low;
        high = USED(i) > high ? USED(i) : high;
    }
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        uint32_t older = 0;
        for (uint32_t i = 0; i < count; i++)
            older += USED(i) <= middle;
        if (older >= count / 2)
            high = middle;
        else
            low = middle + 1;
    }
#undef USED
    return low;
}

/* ---- steps -------------------------------------------------------------------------------------------------------- */

/* Returns whether all kernels of the step's history still have a kernel time. */
static int has_history(const struct ct_session *session, const struct ct_step *step)
{
    for (int i = 0; i < CT_RECORD_HISTORY; i++)
        if (step->after[i] && !session->kernel_times[step->after[i] - 1].key)
            return 0;
    return 1;
}

static void put_step(struct ct_session *session, struct ct_step *step)
{
    uint64_t hash = 0;
    for (int i = 0; i < CT_RECORD_HISTORY; i++)
        hash = (hash + step->after[i]) * UINT64_C(0x9e3779b97f4a7c15);
    unsigned bucket = (unsigned)(hash >> 40) % CT_STEP_BUCKETS;
    while (session->step_buckets[bucket])
        bucket = (bucket + 1) % CT_STEP_BUCKETS;
    session->step_buckets[bucket] = step;
}

/* Evicts the steps that were last used up to an instant, and those without a history. The first one stands for the time
 * before the first launch; the current one is in use. */
static void evict_steps_until(struct ct_session *session, uint64_t until_ticks)
{
    memset(session->step_buckets, 0, sizeof session->step_buckets);
    for (uint32_t i = 1; i < session->step_count; i++) {
        struct ct_step *step = &session->step_storage[i];
        if (!step->is_used || (step != session->step && (step->used_ticks <= until_ticks || !has_history(session, step))))
            step->is_used = 0;
    }
    session->step_free = NULL;
    for (uint32_t i = 0; i < session->step_count; i++) {
        struct ct_step *step = &session->step_storage[i];
        if (i && !step->is_used) {
            step->next_step = session->step_free;
            session->step_free = step;
            continue;
        }
        if (step->next_number && !step->next_step->is_used) {
            step->next_number = 0;
            step->next_step = NULL;
        }
        if (i)
            put_step(session, step);
    }
}

void ct_steps_evict(struct ct_session *session)
{
    evict_steps_until(session, median_of(&session->step_storage[0].used_ticks, sizeof session->step_storage[0],
                                         session->step_count));
}

/* ---- kernel times ------------------------------------------------------------------------------------------------- */

/* Evicts the kernel times that no identity refers to, and the steps that do. */
static void evict_unreferenced(struct ct_session *session)
{
    const unsigned bucket_count = sizeof session->time_buckets / sizeof session->time_buckets[0];
    for (uint32_t i = 0; i < session->time_count; i++)
        session->kernel_times[i].is_referenced = 0;
    for (uint32_t i = 0; i < session->identity_count; i++)
        if (session->identity_storage[i].handle)
            session->kernel_times[session->identity_storage[i].number].is_referenced = 1;
    memset(session->time_buckets, 0, sizeof session->time_buckets);
    memset(session->name_buckets, 0, sizeof session->name_buckets);
    session->time_free = 0;
    for (uint32_t i = 0; i < session->time_count; i++) {
        struct ct_kernel_time *time = &session->kernel_times[i];
        if (!time->is_referenced) {
            *time = (struct ct_kernel_time){.next_of_name = session->time_free};
            session->time_free = i + 1;
            continue;
        }
        unsigned bucket = (unsigned)(time->key >> 32) % bucket_count;
        while (session->time_buckets[bucket])
            bucket = (bucket + 1) % bucket_count;
        session->time_buckets[bucket] = i + 1;
        time->next_of_name = session->name_buckets[time->name_hash % CT_NAME_BUCKETS];
        session->name_buckets[time->name_hash % CT_NAME_BUCKETS] = i + 1;
    }
    evict_steps_until(session, 0);
}

/* ---- identities and functions --------------------------------------------------------------------------------------- */

/* Evicts the identities that were last used up to an instant, and those whose function is gone. */
static void evict_identities_until(struct ct_session *session, uint64_t until_ticks)
{
    for (unsigned bucket = 0; bucket < CT_IDENTITY_BUCKETS; bucket++) {
        _Atomic(struct ct_identity *) *link = &session->identities[bucket];
        for (struct ct_identity *identity = load_relaxed(link); identity; identity = load_relaxed(link)) {
            if (identity->used_ticks > until_ticks && load_relaxed(&identity->function->is_alive)) {
                link = &identity->next;
                continue;
            }
            store_release(link, load_relaxed(&identity->next));
            identity->handle = 0;
            identity->generation++;
            store_relaxed(&identity->next, session->identity_free);
            session->identity_free = identity;
        }
    }
    evict_unreferenced(session);
}

void ct_identities_evict(struct ct_session *session)
{
    evict_identities_until(session, median_of(&session->identity_storage[0].used_ticks,
                                              sizeof session->identity_storage[0], session->identity_count));
}

void ct_functions_evict(struct ct_session *session)
{
    for (uint32_t i = 0; i < session->identity_count; i++) {
        const struct ct_identity *identity = &session->identity_storage[i];
        if (identity->handle && identity->function->used_ticks < identity->used_ticks)
            identity->function->used_ticks = identity->used_ticks;
    }
    const uint64_t until_ticks = median_of(&session->function_storage[0].used_ticks,
                                           sizeof session->function_storage[0], session->function_count);
    for (uint32_t i = 0; i < session->function_count; i++)
        if (session->function_storage[i].used_ticks <= until_ticks && session->function_storage[i].owner != CT_ENGINES)
            store_relaxed(&session->function_storage[i].is_alive, 0);
    evict_identities_until(session, 0);
    session->function_free = NULL;
    for (unsigned bucket = 0; bucket < CT_IDENTITY_BUCKETS; bucket++)
        for (struct ct_function **link = &session->functions[bucket]; *link;) {
            struct ct_function *function = *link;
            if (load_relaxed(&function->is_alive)) {
                link = &function->next;
                continue;
            }
            *link = function->next;
            function->next = session->function_free;
            session->function_free = function;
        }
}

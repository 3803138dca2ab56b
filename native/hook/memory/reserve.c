/* Opens the ledger of this process's tenant, and reserves memory in it within the quota. */
#define _GNU_SOURCE
#include "hook/launch/partition.h"
#include "hook/memory/memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_FIRST_NS = 50 * 1000, WAIT_MAX_NS = 4 * 1000 * 1000 };
enum { RETRY_NS = 20 * 1000 * 1000, GIVE_UP_NS = 1000 * 1000 * 1000 };
uint64_t ct_memory_wait_max_ns = 200 * 1000 * 1000;
#define RETRY_MAX_NS (UINT64_C(12) * 1000 * 1000 * 1000)

/* ---- opening the ledger ------------------------------------------------------------------------------------------- */

static void open_ledger(struct ct_memory *memory)
{
    const struct ct_membership *membership = memory->membership;
    memory->attachments = load_acquire(&membership->attachments);
    ct_ledger_open(&memory->ledger, membership->table, membership->region, membership->account,
                   &membership->pages->ledger, load_relaxed(&membership->index),
                   load_relaxed(&membership->process_generation), (uint32_t)load_relaxed(&membership->slot));
}

static struct ct_memory *open_memory(void)
{
    const struct ct_membership *membership = ct_membership();
    if (!membership || !membership->table)
        return NULL;
    struct ct_memory *memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, sizeof *memory, MADV_DONTFORK);
    memory->membership = membership;
    open_ledger(memory);
    return memory;
}

/* The ledger keeps the addresses of its pages, so nothing changes if the node still knows the process. Otherwise other
 * threads may see its new place in parts, and wait until they see all of it. */
void ct_memory_reattached(struct ct_memory *memory)
{
    const struct ct_membership *membership = memory->membership;
    if (memory->ledger.index != load_relaxed(&membership->index) ||
        memory->ledger.generation != load_relaxed(&membership->process_generation) ||
        memory->ledger.tenant != load_relaxed(&membership->slot))
        open_ledger(memory);
}

/* Opens the ledger under a lock, because all threads must use the same one. */
struct ct_memory *ct_memory_open(void)
{
    int saved_errno = errno;
    struct ct_page *page = ct_page_open();
    if (page)
        ct_membership(); /* states how many devices there are */
    struct ct_device *device = page ? ct_device_of(page) : NULL;
    if (device) {
        if (exchange_acquire(&device->memory_lock, 1))
            ct_lock_slow(&device->memory_lock);
        if (!load_relaxed(&device->is_memory_tried)) {
            struct ct_memory *memory = open_memory();
            store_seq_cst(&device->memory, memory);
            /* The hook's thread adapts only a ledger that it finds. */
            if (memory && load_seq_cst(&memory->membership->attachments) != memory->attachments)
                ct_memory_reattached(memory);
            store_release(&device->is_memory_tried, 1);
        }
        store_release(&device->memory_lock, 0);
    }
    errno = saved_errno;
    return device ? load_acquire(&device->memory) : NULL;
}

/* ---- the quota ---------------------------------------------------------------------------------------------------- */

/* A grant of another tenant is ignored: the last quota stays in force. */
uint64_t ct_memory_quota(struct ct_memory *memory)
{
    struct ct_grant grant;
    if (!memory)
        return 0;
    if (ct_membership_grant(memory->membership, &grant)) {
        if (load_relaxed(&memory->quota_bytes) != grant.memory_bytes)
            store_relaxed(&memory->quota_bytes, grant.memory_bytes);
        if (load_relaxed(&memory->is_online) != (grant.online == 1))
            store_relaxed(&memory->is_online, grant.online == 1);
    }
    return load_relaxed(&memory->quota_bytes);
}

uint64_t ct_memory_held(struct ct_memory *memory)
{
    return memory ? ct_ledger_held(&memory->ledger) : 0;
}

/* ---- reservations ------------------------------------------------------------------------------------------------- */

void ct_memory_begin(struct ct_memory *memory)
{
    if (memory)
        ct_ledger_begin(&memory->ledger);
}

void ct_memory_end(struct ct_memory *memory)
{
    if (memory)
        ct_ledger_end(&memory->ledger);
}

void ct_memory_release(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (memory && bytes)
        ct_ledger_release(&memory->ledger, kind, bytes);
}

/* Uses the system call, because nanosleep() is a cancellation point. */
static void sleep_briefly(uint64_t ns)
{
    const struct timespec duration = {.tv_nsec = (long)ns};
    int saved_errno = errno;
    syscall(SYS_nanosleep, &duration, NULL);
    errno = saved_errno;
}

static int reserve_once(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    uint64_t quota = ct_memory_quota(memory);
    ct_ledger_begin(&memory->ledger);
    int result = ct_ledger_reserve(&memory->ledger, kind, bytes, quota);
    if (result != CT_LEDGER_OK)
        ct_ledger_end(&memory->ledger);
    return result;
}

/* Returns whether waiting may help: other processes are allocating, the device is releasing what an ended one held, or the
 * node is about to add this one to the table. */
static int may_change(const struct ct_memory *memory, int result)
{
    return result == CT_LEDGER_CONTENDED || result == CT_LEDGER_REVOKED ||
           load_seq_cst(&memory->ledger.account->unattached_bytes);
}

int ct_memory_try(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (!memory)
        return 1;
    int result = reserve_once(memory, kind, bytes), saved_errno = errno;
    /* spread over time between processes */
    uint64_t waited_ns = 0, next_ns = WAIT_FIRST_NS + memory->ledger.generation * UINT64_C(7919) % WAIT_FIRST_NS;
    for (int is_last = 0; CT_UNLIKELY(result != CT_LEDGER_OK) && !is_last;) {
        /* If there is nothing to wait for, try once more: a process may have ended between the attempt and now. */
        is_last = waited_ns >= ct_memory_wait_max_ns || !may_change(memory, result);
        if (!is_last)
            sleep_briefly(next_ns);
        waited_ns += next_ns;
        next_ns = next_ns * 2 < WAIT_MAX_NS ? next_ns * 2 : WAIT_MAX_NS;
        result = reserve_once(memory, kind, bytes);
    }
    errno = saved_errno;
    return result == CT_LEDGER_OK;
}

void ct_memory_deny(struct ct_memory *memory, uint64_t bytes)
{
    ct_ledger_denied(&memory->ledger, bytes);
}

CUresult ct_memory_reserve(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (ct_memory_try(memory, kind, bytes) || (ct_supplies_trim(memory) && ct_memory_try(memory, kind, bytes)) ||
        (ct_partition_trim() && ct_memory_try(memory, kind, bytes)))
        return CUDA_SUCCESS;
    ct_memory_deny(memory, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void publish_wanted(struct ct_memory *memory, uint64_t bytes)
{
    store_seq_cst(&memory->ledger.page->line.wanted_bytes, bytes);
}

static uint64_t free_memory(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    return CT_NEXT(cuMemGetInfo_v2)(&free_bytes, &total_bytes) == CUDA_SUCCESS ? free_bytes : 0;
}

/* Returns whether the node can provide the missing memory by evicting offline tenants. Otherwise the program should get
 * the error at once, so that it can use memory that it has cached. */
static int can_be_reclaimed(const struct ct_memory *memory, uint64_t bytes, uint64_t free_bytes)
{
    const uint64_t reclaimable = ct_ledger_reclaimable_bytes(&memory->ledger);
    return reclaimable && (bytes <= free_bytes || bytes - free_bytes <= reclaimable);
}

/* Waits until the device has the memory; returns 0 after the longest wait, and if it can no longer be provided. That has
 * to last for a while: what an evicted tenant held is not reclaimable any more shortly before it is free. */
static int wait_for_memory(struct ct_memory *memory, struct ct_memory_wait *wait, uint64_t bytes)
{
    uint64_t in_vain_ns = 0;
    while (wait->waited_ns < RETRY_MAX_NS && in_vain_ns < GIVE_UP_NS) {
        sleep_briefly(RETRY_NS);
        wait->waited_ns += RETRY_NS;
        const uint64_t free_bytes = free_memory();
        if (free_bytes >= bytes)
            return 1;
        in_vain_ns = can_be_reclaimed(memory, bytes, free_bytes) ? 0 : in_vain_ns + RETRY_NS;
    }
    return 0;
}

/* Ends the change during the wait: the reservation stays, and other processes need not wait for this one to settle. */
int ct_memory_should_retry(struct ct_memory *memory, struct ct_memory_wait *wait, uint64_t bytes, CUresult result)
{
    int should_retry = 0;
    if (!memory || !bytes || (result != CUDA_ERROR_OUT_OF_MEMORY && !wait->waited_ns))
        return 0;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && load_relaxed(&memory->is_online) &&
        can_be_reclaimed(memory, bytes, free_memory())) {
        ct_memory_end(memory);
        publish_wanted(memory, bytes);
        should_retry = wait_for_memory(memory, wait, bytes);
        ct_memory_begin(memory);
    }
    if (!should_retry)
        publish_wanted(memory, 0);
    return should_retry;
}

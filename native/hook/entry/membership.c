/* Joins the node at the first driver call, and says so if that fails. */
#define _GNU_SOURCE
#include "hook/entry/membership.h"

#include "hook/entry/session.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, SETTLE_NS = 200 * 1000, SETTLE_MAX_NS = 100 * 1000 * 1000 };

/* ---- the other processes ------------------------------------------------------------------------------------------ */

/* Returns whether this process is in the table, whether the pages of all others are mapped here, and whether the processes of the same tenant have
 * mapped ours: until then they do not see what this one allocates. */
static int is_settled(const struct ct_membership *membership, const struct ct_gate_rules *rules)
{
    const uint32_t own = load_relaxed(&membership->index);
    int is_listed = 0;
    for (uint64_t i = 0; i < rules->process_count; i++) {
        const struct ct_tenant_entry *entry = &rules->processes[i];
        const struct ct_process_pages *pages = ct_process_pages_of(membership->region, entry->index);
        if (entry->index == own)
            is_listed = 1;
        if (entry->index == own || !pages)
            continue;
        if (load_acquire(&pages->gate.generation) != entry->generation)
            return 0;
        if (entry->tenant == load_relaxed(&membership->slot) &&
            load_acquire(&pages->gate.mapped_epoch) < load_relaxed(&membership->epoch))
            return 0;
    }
    return is_listed;
}

/* Waits for a limited time, because another process may be stopped. */
static void settle(const struct ct_membership *membership)
{
    static struct ct_gate_rules rules; /* used by one thread at a time */
    uint64_t writes;
    for (uint64_t waited_ns = 0; membership->table && waited_ns < SETTLE_MAX_NS; waited_ns += SETTLE_NS) {
        if (ct_tenant_table_read(membership->table, &rules, &writes) == 0 && is_settled(membership, &rules))
            return;
        ct_node_sleep(SETTLE_NS);
    }
}

/* ---- joining ------------------------------------------------------------------------------------------------------ */

static void report(const char *reason)
{
    char line[CT_REASON_BYTES + 128];
    const char *outcome = ct_join_is_required() ? "cotenant: this program must not run unmanaged (COTENANT_REQUIRED=1): "
                                                : "cotenant: this program runs unmanaged: ";
    const int length = snprintf(line, sizeof line, "%s%s\n", outcome, reason);
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
        return; /* the program has no standard error */
}

/* Starts the thread without signals, so that it never runs a handler of the program. */
static int start_thread(struct ct_membership *membership, pthread_t *thread)
{
    pthread_attr_t attributes;
    sigset_t all, previous;
    if (pthread_attr_init(&attributes) != 0)
        return 0;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    const int is_started = pthread_create(thread, &attributes, ct_attachment_run, membership) == 0;
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    pthread_attr_destroy(&attributes);
    return is_started;
}

/* Returns the membership, or NULL with the reason in it. */
static struct ct_membership *join(struct ct_membership *membership)
{
    pthread_t thread;
    if (!start_thread(membership, &thread)) {
        snprintf(membership->reason, sizeof membership->reason, "the hook cannot start a thread");
        return NULL;
    }
    while (load_acquire(&membership->state) == CT_MEMBERSHIP_JOINING)
        syscall(SYS_futex, &membership->state, FUTEX_WAIT_PRIVATE, CT_MEMBERSHIP_JOINING, NULL, NULL, 0);
    if (load_acquire(&membership->state) == CT_MEMBERSHIP_FAILED) {
        pthread_join(thread, NULL);
        return NULL;
    }
    pthread_detach(thread);
    if (!membership->request.device) /* the driver has begun to use the devices that it names */
        ct_join_set_environment(membership->environment, membership->environment_bytes);
    settle(membership);
    return membership;
}

static struct ct_membership *open_membership(uint32_t device)
{
    struct ct_membership *membership =
        mmap(NULL, sizeof *membership, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (membership == MAP_FAILED)
        return NULL;
    madvise(membership, sizeof *membership, MADV_DONTFORK);
    const enum ct_join_status status = ct_join_request_make(&membership->request, device);
    struct ct_membership *joined = status == CT_JOIN_REQUESTED ? join(membership) : NULL;
    if (status == CT_JOIN_IMPOSSIBLE)
        report(membership->request.reason);
    else if (status == CT_JOIN_REQUESTED && !joined)
        report(membership->reason);
    if (!joined)
        munmap(membership, sizeof *membership);
    return joined;
}

/* Joins under a lock: other threads wait, because they must not use the device before. */
static const struct ct_membership *join_once(struct ct_page *page, struct ct_device *device)
{
    int saved_errno = errno, cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state); /* the lock must not be left behind */
    if (exchange_acquire(&page->membership_lock, 1))
        ct_lock_slow(&page->membership_lock);
    if (!load_relaxed(&device->is_membership_tried)) {
        struct ct_membership *membership = open_membership((uint32_t)(device - page->devices));
        if (membership && device == page->devices)
            store_release(&page->device_count, (uint32_t)membership->device_count);
        store_release(&device->membership, membership);
        store_release(&device->is_membership_tried, 1);
    }
    store_release(&page->membership_lock, 0);
    pthread_setcancelstate(cancel_state, &cancel_state);
    errno = saved_errno;
    return load_acquire(&device->membership);
}

/* The first attachment is for the first device, and states how many there are. */
const struct ct_membership *ct_membership(void)
{
    struct ct_page *page = ct_page_open();
    if (!page)
        return NULL;
    if (!load_acquire(&page->devices->is_membership_tried))
        join_once(page, page->devices);
    struct ct_device *device = ct_device_of(page);
    return load_acquire(&device->is_membership_tried) ? load_acquire(&device->membership) : join_once(page, device);
}

int ct_membership_is_missing(void)
{
    return !ct_membership() && ct_join_is_required();
}

/* ---- the grant ---------------------------------------------------------------------------------------------------- */

int ct_membership_grant(const struct ct_membership *membership, struct ct_grant *grant)
{
    return ct_grant_read(membership->grant, grant) == CT_GRANT_OK && grant->state == CT_GRANT_ACTIVE &&
           grant->slot == load_relaxed(&membership->slot) && grant->generation == load_relaxed(&membership->generation);
}

uint64_t ct_membership_alone_since(const struct ct_membership *membership)
{
    struct ct_grant grant;
    if (!membership)
        return 1;
    const uint64_t writes = load_acquire(&membership->grant->writes);
    const uint64_t attachments = load_acquire(&membership->attachments);
    const int is_alone = ct_membership_grant(membership, &grant) && grant.neighbours == 1;
    return is_alone ? (attachments << 48) + writes + 1 : 0;
}

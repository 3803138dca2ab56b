/* Admission of collectives on several devices of one process. */
#include "hook/launch/ranks.h"

#include "hook/launch/work.h"

/* Returns the session of another device of this process that has launched work there; NULL: it is not such a device. */
static struct ct_session *used_session(const struct ct_session *own, uint32_t device)
{
    struct ct_page *page = load_acquire(&ct_page);
    struct ct_session *session = page ? load_acquire(&page->devices[device].session) : NULL;
    if (!session || session == own || !session->gateway || !load_relaxed(&session->gateway->gate.mine->sequence))
        return NULL;
    return session;
}

static struct ct_device *device_of(const struct ct_session *session)
{
    struct ct_page *page = load_acquire(&ct_page);
    for (uint32_t i = 0; page && i < CT_DEVICES; i++)
        if (load_relaxed(&page->devices[i].session) == session)
            return &page->devices[i];
    return NULL;
}

int ct_ranks_exist(const struct ct_session *session)
{
    if (!ct_has_several_devices(load_acquire(&ct_page)))
        return 0;
    for (uint32_t i = 0; i < CT_DEVICES; i++)
        if (used_session(session, i))
            return 1;
    return 0;
}

int ct_ranks_take(struct ct_session *session, uint64_t now_ns)
{
    struct ct_device *device = device_of(session);
    uint32_t owed = device ? load_acquire(&device->owed) : 0;
    if (!owed)
        return 0;
    if (now_ns > load_relaxed(&device->owed_ns) + CT_RANKS_OWED_NS) {
        store_relaxed(&device->owed, 0);
        return 0;
    }
    while (owed && !atomic_compare_exchange_weak(&device->owed, &owed, owed - 1))
        ;
    return owed > 0;
}

/* Another thread that holds the lock of the other session may be waiting for ours, so the lock is only tried. */
int ct_ranks_are_open(struct ct_session *session, const struct ct_launch *launch, uint64_t now_ns)
{
    int are_open = 1;
    for (uint32_t i = 0; i < CT_DEVICES && are_open; i++) {
        struct ct_session *other = used_session(session, i);
        if (!other)
            continue;
        if (exchange_acquire(&other->lock, 1))
            return 0;
        are_open = ct_gate_would_admit(&other->gateway->gate, &launch->request, now_ns);
        ct_unlock(other);
    }
    return are_open;
}

void ct_ranks_collect(const struct ct_session *session)
{
    for (uint32_t i = 0; i < CT_DEVICES; i++) {
        struct ct_session *other = used_session(session, i);
        if (other)
            ct_completions_collect(other);
    }
}

void ct_ranks_passed(struct ct_session *session, uint64_t now_ns)
{
    for (uint32_t i = 0; i < CT_DEVICES; i++) {
        struct ct_session *other = used_session(session, i);
        struct ct_device *device = other ? device_of(other) : NULL;
        if (!device)
            continue;
        store_relaxed(&device->owed_ns, now_ns);
        fetch_add_release(&device->owed, 1);
    }
}

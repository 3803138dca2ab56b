/* Maps the pages of the device's gate file, and reads from them whether other tenants are quiescent. */
#define _GNU_SOURCE
#include "hook/launch/gateway.h"

#include "hook/entry/node_files.h"

#include <sys/mman.h>

enum { MARGIN_NS = 20 * 1000, QUIET_NS = 10 * 1000 * 1000 };

/* ---- the pages ---------------------------------------------------------------------------------------------------- */

struct pages {
    const struct ct_tenant_table *file;
    size_t bytes;
    struct ct_arbitration_page *arbitration;
    struct ct_gate_page *page;
};

static void unmap(const struct pages *pages)
{
    if (pages->file)
        munmap((void *)(uintptr_t)pages->file, pages->bytes);
    if (pages->arbitration)
        munmap(pages->arbitration, CT_GATE_PAGE_BYTES);
    if (pages->page)
        munmap(pages->page, CT_GATE_PAGE_BYTES);
}

static int map_pages(void *into, int reading, int writing, size_t bytes, uint64_t slot)
{
    struct pages *pages = into;
    *pages = (struct pages){.bytes = bytes};
    if (bytes < ct_gate_offset((uint32_t)slot + 1))
        return 0;
    pages->file = ct_node_file_map_part(reading, PROT_READ, 0, bytes);
    if (!pages->file || ct_tenant_table_check(pages->file, bytes) < 0 || pages->file->slots <= slot) {
        unmap(pages);
        return 0;
    }
    pages->arbitration = ct_node_file_map_part(writing, PROT_READ | PROT_WRITE, CT_GATE_PAGE_BYTES, CT_GATE_PAGE_BYTES);
    pages->page =
        ct_node_file_map_part(writing, PROT_READ | PROT_WRITE, (off_t)ct_gate_offset((uint32_t)slot),
                              CT_GATE_PAGE_BYTES);
    if (pages->arbitration && pages->page)
        return 1;
    unmap(pages);
    return 0;
}

struct ct_gateway *ct_gateway_open(const struct ct_tenancy *tenancy, const struct ct_clock *clock, const char *records)
{
    struct pages pages;
    if (!tenancy->is_tenant || tenancy->generation > UINT32_MAX || !tenancy->generation)
        return NULL;
    if (!ct_node_file_open("COTENANT_GATE_FD", records, "gate", map_pages, &pages, tenancy->slot))
        return NULL;
    struct ct_gateway *gateway =
        mmap(NULL, sizeof *gateway, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (gateway == MAP_FAILED) {
        unmap(&pages);
        return NULL;
    }
    madvise(gateway, sizeof *gateway, MADV_DONTFORK);
    gateway->file = pages.file;
    gateway->bytes = pages.bytes;
    ct_instant_open(&gateway->instant, clock);
    ct_bursts_open(&gateway->requests.bursts);
    ct_gate_open(&gateway->gate, pages.file, pages.bytes, pages.page, pages.arbitration, (uint32_t)tenancy->slot,
                 (uint32_t)tenancy->generation);
    return gateway;
}

void ct_gateway_close(struct ct_gateway *gateway)
{
    if (!gateway)
        return;
    unmap(&(struct pages){gateway->file, gateway->bytes, gateway->gate.arbitration, gateway->gate.page});
    munmap(gateway, sizeof *gateway);
}

/* ---- other tenants ------------------------------------------------------------------------------------------------ */

/* Returns whether the tenant's host still waits for its work. Tenants of equal priority delay each other, so their work
 * ends later than they predicted. */
static int is_awaited(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint64_t now_ns)
{
    const uint64_t waits_ns = load_acquire(&peer->page->waits_ns), busy_ns = load_acquire(&peer->page->busy_ns);
    const uint64_t from_ns = waits_ns > busy_ns ? waits_ns : busy_ns;
    return waits_ns && peer->priority == gate->priority && from_ns + CT_GATE_STUCK_NS > now_ns;
}

/* Returns the number of launches of all other tenants plus one; 0 if some of their work may be running, or if a tenant
 * has not taken over its page: it may not have started, or use the device without the hook. */
static uint64_t launches_of_others(const struct ct_gate *gate, uint64_t now_ns, int must_be_idle)
{
    const uint64_t quiet_ns = gate->must_share ? QUIET_NS : 0;
    uint64_t sum = 1 + (gate->writes << 48); /* changes also when a tenant joins or leaves */
    for (uint32_t i = 0; i < gate->higher_count + gate->peer_count; i++) {
        const struct ct_gate_peer *peer =
            i < gate->higher_count ? &gate->higher[i] : &gate->peers[i - gate->higher_count];
        sum += load_acquire(&peer->page->sequence);
        if (load_acquire(&peer->page->generation) != peer->generation)
            return 0;
        if (must_be_idle && (load_acquire(&peer->page->busy_ns) + quiet_ns > now_ns || is_awaited(gate, peer, now_ns)))
            return 0;
    }
    return sum;
}

/* Returns the number of launches of the tenant's other processes plus one, or 0 if they launched recently. The page
 * does not show when the work of one process ends, so they must have launched nothing for a while. */
static uint64_t quiescent_siblings(struct ct_gateway *gateway, uint64_t now_ns)
{
    const uint64_t siblings = load_acquire(&gateway->gate.mine->sequence) - gateway->gate.announced;
    if (siblings != gateway->siblings)
        gateway->siblings_ns = now_ns;
    gateway->siblings = siblings;
    return gateway->siblings_ns && now_ns - gateway->siblings_ns < QUIET_NS ? 0 : siblings + 1;
}

struct ct_quiescence ct_others_quiescent(struct ct_session *session)
{
    struct ct_gateway *gateway = session->gateway;
    ct_lock(session);
    uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    uint64_t busy_ns = load_acquire(&gateway->gate.mine->busy_ns);
    uint64_t sum = gateway->gate.has_entry ? launches_of_others(&gateway->gate, now_ns, 1) : 0;
    const uint64_t siblings = quiescent_siblings(gateway, now_ns);
    ct_unlock(session);
    return (struct ct_quiescence){sum, siblings, now_ns, busy_ns > now_ns ? busy_ns : now_ns};
}

int ct_siblings_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence)
{
    struct ct_gate *gate = &session->gateway->gate;
    ct_lock(session);
    const uint64_t siblings = load_acquire(&gate->mine->sequence) - gate->announced;
    ct_unlock(session);
    return quiescence->siblings && quiescence->siblings == siblings + 1;
}

/* Returns the first launch of another tenant after an instant, or 0 if it is no longer recorded. */
static uint64_t first_launch_after(const struct ct_gate *gate, uint64_t launches, uint64_t after_ns)
{
    uint64_t first_ns = CT_GATE_NEVER;
    if (launches > CT_GATE_RECENT - 2)
        return 0;
    for (uint32_t i = 0; i < gate->higher_count + gate->peer_count; i++) {
        const struct ct_gate_page *page =
            i < gate->higher_count ? gate->higher[i].page : gate->peers[i - gate->higher_count].page;
        uint64_t sequence = load_acquire(&page->sequence);
        for (uint64_t back = 0; back < launches && back < sequence; back++) {
            uint64_t at_ns = load_acquire(&page->recent_ns[(sequence - back) % CT_GATE_RECENT]);
            if (at_ns > after_ns && at_ns < first_ns)
                first_ns = at_ns;
        }
    }
    return first_ns;
}

int ct_others_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence, uint64_t length_ns,
                             uint64_t min_ns)
{
    struct ct_gate *gate = &session->gateway->gate;
    ct_lock(session);
    const uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    const uint64_t ours_ns = length_ns > min_ns ? length_ns : min_ns;
    uint64_t sum = launches_of_others(gate, 0, 0);
    int were_quiescent = quiescence->launches && sum == quiescence->launches &&
        (!min_ns || now_ns > quiescence->start_ns + min_ns);
    if (quiescence->launches && sum > quiescence->launches) {
        uint64_t first_ns = first_launch_after(gate, sum - quiescence->launches, quiescence->from_ns);
        were_quiescent = first_ns != CT_GATE_NEVER && first_ns > quiescence->start_ns + ours_ns + ours_ns / 4 +
            MARGIN_NS;
    }
    ct_unlock(session);
    return were_quiescent;
}

/* Finding the device's pages, and what they say of the others. */
#define _GNU_SOURCE
#include "hook/gateway.h"

#include "hook/given.h"

#include <sys/mman.h>

enum { MARGIN_NS = 20 * 1000, CALM_NS = 10 * 1000 * 1000 };

/* ---- the pages --------------------------------------------------------------------------------------------------- */

struct pages {
    const struct ct_gate_roster *file;
    size_t bytes;
    struct ct_gate_floor *floor;
    struct ct_gate_page *page;
};

static void unmap(const struct pages *pages)
{
    if (pages->file)
        munmap((void *)(uintptr_t)pages->file, pages->bytes);
    if (pages->floor)
        munmap(pages->floor, CT_GATE_PAGE_BYTES);
    if (pages->page)
        munmap(pages->page, CT_GATE_PAGE_BYTES);
}

static int map_pages(void *into, int reading, int writing, size_t bytes, uint64_t slot)
{
    struct pages *pages = into;
    *pages = (struct pages){.bytes = bytes};
    if (bytes < ct_gate_offset((uint32_t)slot + 1))
        return 0;
    pages->file = ct_given_part(reading, PROT_READ, 0, bytes);
    if (!pages->file || ct_roster_check(pages->file, bytes) < 0 || pages->file->slots <= slot) {
        unmap(pages);
        return 0;
    }
    pages->floor = ct_given_part(writing, PROT_READ | PROT_WRITE, CT_GATE_PAGE_BYTES, CT_GATE_PAGE_BYTES);
    pages->page =
        ct_given_part(writing, PROT_READ | PROT_WRITE, (off_t)ct_gate_offset((uint32_t)slot), CT_GATE_PAGE_BYTES);
    if (pages->floor && pages->page)
        return 1;
    unmap(pages);
    return 0;
}

struct ct_gateway *ct_gateway_open(const struct ct_beside *beside, const struct ct_clock *clock, const char *records)
{
    struct pages pages;
    if (!beside->is_tenant || beside->generation > UINT32_MAX || !beside->generation)
        return NULL;
    if (!ct_given_open("COTENANT_GATE_FD", records, "gate", map_pages, &pages, beside->slot))
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
    ct_gate_open(&gateway->gate, pages.file, pages.bytes, pages.page, pages.floor, (uint32_t)beside->slot,
                 (uint32_t)beside->generation);
    return gateway;
}

void ct_gateway_close(struct ct_gateway *gateway)
{
    if (!gateway)
        return;
    unmap(&(struct pages){gateway->file, gateway->bytes, gateway->gate.floor, gateway->gate.page});
    munmap(gateway, sizeof *gateway);
}

/* ---- the others -------------------------------------------------------------------------------------------------- */

#define LOAD(place) atomic_load_explicit(&(place), memory_order_acquire)

/* Equals that take turns hold each other up, so that their work is over later than they expected: what a host still waits
 * for is not over. */
static int is_awaited(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint64_t now_ns)
{
    const uint64_t waits_ns = LOAD(peer->page->waits_ns), busy_ns = LOAD(peer->page->busy_ns);
    const uint64_t from_ns = waits_ns > busy_ns ? waits_ns : busy_ns;
    return waits_ns && peer->priority == gate->priority && from_ns + CT_GATE_STUCK_NS > now_ns;
}

/* All that they have launched, plus one; 0 if something of it may still run, or if one of them has not moved into its
 * page: it may not have begun, and it may use the device past the hook. */
static uint64_t sum_of(const struct ct_gate *gate, uint64_t now_ns, int must_be_over)
{
    const uint64_t calm_ns = gate->must_share ? CALM_NS : 0;
    uint64_t sum = 1 + (gate->writes << 48); /* who joins or leaves changes it, too */
    for (uint32_t i = 0; i < gate->above_count + gate->beside_count; i++) {
        const struct ct_gate_peer *peer =
            i < gate->above_count ? &gate->above[i] : &gate->beside[i - gate->above_count];
        sum += LOAD(peer->page->sequence);
        if (LOAD(peer->page->generation) != peer->generation)
            return 0;
        if (must_be_over && (LOAD(peer->page->busy_ns) + calm_ns > now_ns || is_awaited(gate, peer, now_ns)))
            return 0;
    }
    return sum;
}

/* Nobody says when their work is over: they must have been still for long. */
static uint64_t still_kin(struct ct_gateway *gateway, uint64_t now_ns)
{
    const uint64_t kin = LOAD(gateway->gate.mine->sequence) - gateway->gate.announced;
    if (kin != gateway->kin)
        gateway->kin_ns = now_ns;
    gateway->kin = kin;
    return gateway->kin_ns && now_ns - gateway->kin_ns < CALM_NS ? 0 : kin + 1;
}

struct ct_still ct_others_still(struct ct_session *session)
{
    struct ct_gateway *gateway = session->gateway;
    ct_lock(session);
    uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    uint64_t busy_ns = LOAD(gateway->gate.mine->busy_ns);
    uint64_t sum = gateway->gate.is_seated ? sum_of(&gateway->gate, now_ns, 1) : 0;
    const uint64_t kin = still_kin(gateway, now_ns);
    ct_unlock(session);
    return (struct ct_still){sum, kin, now_ns, busy_ns > now_ns ? busy_ns : now_ns};
}

int ct_kin_was_still(struct ct_session *session, const struct ct_still *still)
{
    struct ct_gate *gate = &session->gateway->gate;
    ct_lock(session);
    const uint64_t kin = LOAD(gate->mine->sequence) - gate->announced;
    ct_unlock(session);
    return still->kin && still->kin == kin + 1;
}

/* The first launch of anybody else after an instant, if it is remembered; 0: it is not. */
static uint64_t first_after(const struct ct_gate *gate, uint64_t launches, uint64_t after_ns)
{
    uint64_t first_ns = CT_GATE_NEVER;
    if (launches > CT_GATE_RECENT - 2)
        return 0;
    for (uint32_t i = 0; i < gate->above_count + gate->beside_count; i++) {
        const struct ct_gate_page *page =
            i < gate->above_count ? gate->above[i].page : gate->beside[i - gate->above_count].page;
        uint64_t sequence = LOAD(page->sequence);
        for (uint64_t back = 0; back < launches && back < sequence; back++) {
            uint64_t at_ns = LOAD(page->recent_ns[(sequence - back) % CT_GATE_RECENT]);
            if (at_ns > after_ns && at_ns < first_ns)
                first_ns = at_ns;
        }
    }
    return first_ns;
}

int ct_others_were_still(struct ct_session *session, const struct ct_still *still, uint64_t length_ns, uint64_t least_ns)
{
    struct ct_gate *gate = &session->gateway->gate;
    ct_lock(session);
    const uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    const uint64_t ours_ns = length_ns > least_ns ? length_ns : least_ns;
    uint64_t sum = sum_of(gate, 0, 0);
    int were_still = still->launches && sum == still->launches && (!least_ns || now_ns > still->start_ns + least_ns);
    if (still->launches && sum > still->launches) {
        uint64_t first_ns = first_after(gate, sum - still->launches, still->from_ns);
        were_still = first_ns != CT_GATE_NEVER && first_ns > still->start_ns + ours_ns + ours_ns / 4 + MARGIN_NS;
    }
    ct_unlock(session);
    return were_still;
}

/* Who may launch now? A pure state machine over shared pages: no CUDA, no clock, no allocation, no system call.
 *
 * Every tenant announces its launches in its own page. One that nobody is above passes at once. Below an active holder a
 * kernel passes when it fits into what the holder is expected to leave; when nobody above is active it passes within a
 * bound. What that costs those above when they come back early is written down as a debt, and whoever is in debt waits:
 * so the loss of those above is bounded whatever the forecasts are worth. See docs/gate.md. */
#ifndef COTENANT_GATE_GATE_H
#define COTENANT_GATE_GATE_H

#include "gate/forecast.h"
#include "gate/pages.h"

/* Our choices; docs/gate.md says what each was measured by. */
enum {
    CT_GATE_LEAD_NS = 60 * 1000,   /* work submitted ahead so that the device does not idle while we wake up */
    CT_GATE_DEPTH_NS = 100 * 1000, /* of short kernels, what may be submitted at once into a gap */
    CT_GATE_WAKE_NS = 50 * 1000,   /* a sleeper is hardly later than this on a quiet machine: it sleeps so much less */
    CT_GATE_LOOK_NS = 50 * 1000,   /* who has not asked for this long sleeps, or died */
    CT_GATE_CLAIM_NS = 20 * 1000,  /* a claim that is not given back lapses after this */
    CT_GATE_NAP_NS = 5 * 1000 * 1000,
    CT_GATE_OLD_NS = 10 * 1000 * 1000,         /* who has waited this long no longer lets its equals go first, and may go
                                                * though nobody knows how long it takes */
    CT_GATE_SPARE_NS = 20 * 1000 * 1000,       /* what those above can spare is saved up for so long */
    CT_GATE_BURST_NS = 30 * 1000 * 1000,       /* debt up to this binds nobody */
    CT_GATE_HARD_DEBT_NS = 120 * 1000 * 1000,  /* debt above this closes the gaps, too */
    CT_GATE_CLOSED_NS = 2000 * 1000 * 1000,    /* what any loss costs when those above can spare nothing */
    CT_GATE_STUCK_NS = 100 * 1000 * 1000,      /* nothing ended for so long: perhaps it waits for what waits here */
};

enum {
    CT_GATE_DUTY_NS = 20 * 1000 * 1000, /* over how long the activity of those above is counted */
    CT_GATE_DUTY_LEAST_PPM = 300 * 1000, /* one that is hardly there can spare as if it were there this much */
};

enum { CT_GATE_DELAY_MOST_PPM = 100 * 1000 * 1000 }; /* those above may take a hundred times as long, and no longer */

/* No debt is longer: at 2 %, 1.2 s lost at once are charged in full. */
#define CT_GATE_DEBT_MOST_NS UINT64_C(60000000000)
/* No tenant foresees more than this: an instant further ahead is a scribble, or of another boot, and means nothing. */
#define CT_GATE_FAR_NS UINT64_C(60000000000)

enum ct_gate_reason {
    /* it passes, because */
    CT_GATE_TOP = 0,   /* nobody is above, or the policy is open */
    CT_GATE_FREE = 1,  /* nobody above is active */
    CT_GATE_GAP = 2,   /* it fits into the gap */
    CT_GATE_LEAST = 3, /* its least share is due */
    CT_GATE_RISK = 4,  /* it waited long, and those above can spare it */
    CT_GATE_STUCK = 5, /* what was submitted before does not end */
    CT_GATE_BESIDE = 6, /* it gives way block by block, and those above can spare what that costs */
    CT_GATE_LENT = 7,  /* it has had its share, and nobody wants the rest */
    /* it waits, because */
    CT_GATE_BUSY = 8,    /* work of one above still runs */
    CT_GATE_TIGHT = 9,   /* it does not fit into what is left of the gap */
    CT_GATE_DUE = 10,    /* one above may launch at any instant */
    CT_GATE_BOUND = 11,  /* as much as may be is submitted already */
    CT_GATE_OTHER = 12,  /* a better one waits, or decides at this instant */
    CT_GATE_PAUSED = 13, /* the node says so */
    CT_GATE_CHANGED = 14, /* one above launched while we looked: ask again */
    CT_GATE_DEBT = 15,   /* those above have lost as much as they may */
    CT_GATE_LIMIT = 16,  /* it has had its share */
    CT_GATE_SHARE = 17,  /* an equal has not had its share, and wants it */
};

/* A tenant as this one knows it from the roster. */
struct ct_gate_peer {
    const struct ct_gate_page *page;
    uint64_t told, told_at, lost_ns; /* how often it told what it lost, its sequence then, and what, as last taken in */
    uint64_t seen, observed; /* its sequence at our last admission, and the latest that we ever read */
    uint32_t generation;
    uint32_t slot, priority;
    uint32_t limit_ppm;
    int is_paused;
};

/* One process of a tenant at one device. Not to be used by two threads at once. */
struct ct_gate {
    const struct ct_gate_roster *roster;
    struct ct_gate_page *mine; /* the own page, or the orphan's */
    struct ct_gate_page *page;
    struct ct_gate_floor *floor;
    uint32_t slot, generation;
    int is_mps;     /* the device changes hands for nothing; whoever opens the gate says so when it knows */
    uint64_t slots; /* pages in the file as it was mapped: one that grew later is not seen further */
    /* from the roster, as of `writes` */
    uint64_t writes;
    int must_ask, is_paused, is_seated;
    int is_ending;  /* whoever kills us finds at most one launch of ours on the device */
    int must_claim; /* others must ask, too: one decides at a time */
    uint32_t priority;
    uint64_t policy, bound_ns, delay_ppm, patience_ns, switch_ns, spin_ppm, least_ppm, limit_ppm;
    int must_share; /* the shares on this device concern us: ours, or that of an equal */
    int is_static; /* never above the limit, also when nobody wants the rest */
    uint32_t above_count, beside_count;
    struct ct_gate_peer above[CT_GATE_SEATS];  /* of higher priority */
    struct ct_gate_peer beside[CT_GATE_SEATS]; /* of our own or lower, who share the gaps with us */
    /* of our own */
    uint64_t unconfirmed_ns, unconfirmed; /* submitted below a holder, and no event has shown its end */
    uint64_t ended_ns;                    /* when the end of one was shown last, or the first was submitted */
    uint64_t charged_from_ns, charged_until_ns; /* our work that may cost those above something; until 0: none */
    uint64_t grain_ns;                    /* what each kernel of those above waits for at most, of that work; 0: for all */
    uint64_t duty_ppm;                    /* of the time, how much those above were active lately */
    uint64_t duty_from_ns, duty_active_ns; /* since when that is counted, and what their pages said then */
    struct ct_gate_burst {
        uint64_t begin_ns, end_ns; /* work that its host has not waited for: since when, and expected until when; 0: none */
        int is_unsure;             /* of some of it nobody knows how long it takes */
        int64_t clean_ns;          /* how much later the host was out of its wait when nobody below had run: in the mean */
        uint32_t clean_count;      /* of how many */
        uint32_t met;              /* waits since then beside whom others ran */
    } burst;
    struct ct_gate_scale {
        uint64_t charged_sum_ns; /* as the floor said last */
        int is_begun;
        int64_t lost_ns, charged_ns;          /* of late */
        uint64_t ppm;                         /* of what is thought to be lost, what is */
    } scale;
    uint64_t owed_ns;                     /* lost by those above, and not yet charged */
    int is_back;                          /* one above launched while that work ran: it is charged up to its end */
    int has_switched;                     /* ours passed since one above launched: the device need not change hands */
    uint64_t spent_ns;                    /* what was spent on purpose of what those above can spare, as an instant */
    uint64_t spin_ns;                     /* what was used of the spinning, as an instant */
    uint64_t announced;                   /* launches of this process alone */
    uint64_t held_ns, held_at_ns;         /* for how long equals held up our work lately at most, and when that was */
    int is_lent;                          /* what passes now is not charged: nobody else wants it */
    struct ct_gate_page orphan;           /* written while we have no seat: nobody reads it */
};

/* `file` is the device's whole file as far as it is mapped, `page` our own page in it and `floor` its floor, both mapped
 * for writing. The node may let the file grow at any instant: seats beyond `bytes` are never looked at. */
void ct_gate_open(struct ct_gate *gate, const void *file, size_t bytes, struct ct_gate_page *page,
                  struct ct_gate_floor *floor, uint32_t slot, uint32_t generation);

void ct_gate_reread(struct ct_gate *gate);

/* Whether a launch must ask; the roster is read again when the node has changed it. */
static inline int ct_gate_must_ask(struct ct_gate *gate)
{
    if (__builtin_expect(atomic_load_explicit(&gate->roster->writes, memory_order_acquire) != gate->writes, 0))
        ct_gate_reread(gate);
    return gate->must_ask;
}

/* What a tenant foresees when it launches. */
struct ct_gate_wish {
    uint64_t expect_ns; /* device time of this kernel; 0: unknown */
    uint64_t sure_ns;   /* device time that it hardly exceeds */
    uint64_t low_ns;    /* the host's next launch comes hardly before this much from now; 0: unknown */
    uint64_t high_ns;   /* and hardly after this much */
    uint32_t may_fill;  /* 0: unknown or too varying to be put into a gap */
    uint32_t pieces;    /* kernels in it: more than one in a graph; 0 is one */
    uint64_t grain_ns;  /* a kernel above that comes waits for it no longer than this, since its blocks give way one by one
                         * (MPS, and those above of higher priority there); 0: until it is over */
    uint32_t free_ppm;  /* of the device, what it leaves to others while it runs: of work in few blocks; all of it: a copy */
};

/* Before a launch that need not ask: a line of own stores. Whoever reads the sequence sees what was stored before it. */
void ct_gate_announce(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns);

/* The launch that was announced last, without asking, has failed: its work is not to come. */
void ct_gate_withdrawn(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns);

/* The host goes into a call that waits for the device, or (`is_drained`) comes out of one that waited for all of it. */
void ct_gate_rest(struct ct_gate *gate, uint64_t low_ns, uint64_t high_ns, int is_drained, uint64_t now_ns);

/* Whether somebody may sleep on the floor's bell: then a holder whose work is over rings it. */
int ct_gate_has_sleepers(const struct ct_gate *gate, uint64_t now_ns);

struct ct_gate_answer {
    uint32_t pass, reason;
    uint64_t until_ns; /* when to ask again at the latest */
};

/* May this kernel go? `since_ns` is when it first asked. A pass is announced before the function returns; then follow
 * the launch, ct_gate_submitted(), and ct_gate_confirmed() when an event has shown the end. */
struct ct_gate_answer ct_gate_ask(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t since_ns,
                                  uint64_t now_ns);
void ct_gate_submitted(struct ct_gate *gate, const struct ct_gate_wish *wish, int is_submitted, uint64_t now_ns);
void ct_gate_confirmed(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns);
/* What was submitted last is expected to end only then: an event has not shown its end in time. If one above is back,
 * that is what it loses more. */
void ct_gate_prolong(struct ct_gate *gate, uint64_t until_ns);
/* Events have shown that work which was charged as so much device time, times the part of the device, has really used so
 * much: the budget is corrected. */
void ct_gate_measured(struct ct_gate *gate, uint64_t charged_ns, uint64_t used_ns, uint64_t now_ns);
/* Whoever gives up waiting, or has waited: nobody holds back for this tenant any more. */
void ct_gate_waited(struct ct_gate *gate, uint64_t since_ns, uint64_t now_ns);

/* How to wait for an answer: sleep on the bell until then (0: not at all), then spin until then (0: not at all), then ask
 * again. Spinning is within the budget; what is spun is told by ct_gate_spun(). */
struct ct_gate_nap {
    uint64_t sleep_until_ns, spin_until_ns;
};
struct ct_gate_nap ct_gate_nap(struct ct_gate *gate, const struct ct_gate_answer *answer, uint64_t now_ns);
void ct_gate_spun(struct ct_gate *gate, uint64_t spun_ns, uint64_t now_ns);
void ct_gate_slept(struct ct_gate *gate, uint64_t slept_ns);
/* It woke up so much later than it wanted to: its processor was somebody else's. It did not idle, and catches up on that. */
void ct_gate_overslept(struct ct_gate *gate, uint64_t late_ns, uint64_t now_ns);

#endif

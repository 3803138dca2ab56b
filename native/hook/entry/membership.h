/* The membership of this process in a tenant: joining the node at the first driver call, and the pages that the process
 * shares with the node and with the other processes on the device.
 *
 * A thread of the hook holds the connection. It attaches the process, maps the pages of other processes as the node
 * passes them on, and attaches again if the connection ends. The pages then change, but not their addresses, so all
 * other code can use them at any time. A forked child inherits neither the thread nor any of the pages; it attaches at
 * its own first driver call, as a program does after exec. */
#ifndef COTENANT_HOOK_ENTRY_MEMBERSHIP_H
#define COTENANT_HOOK_ENTRY_MEMBERSHIP_H

#include "atomics.h"
#include "gate/gang.h"
#include "gate/process.h"
#include "hook/entry/join_request.h"
#include "hook/entry/node_socket.h"

#include <stdint.h>

enum ct_membership_state { CT_MEMBERSHIP_JOINING = 0, CT_MEMBERSHIP_JOINED, CT_MEMBERSHIP_FAILED };

struct ct_membership {
    /* Set by the first attachment. */
    _Atomic uint32_t state; /* enum ct_membership_state; a futex */
    const struct ct_grant_page *grant;
    const struct ct_ledger_account *account;
    const struct ct_tenant_table *table; /* NULL: the node has no device, and this and the next two are not used */
    struct ct_arbitration_page *arbitration;
    const void *region;              /* the pages of other processes, by index */
    struct ct_process_pages *pages;  /* those of this process */
    /* Set by every attachment, and then counted in `attachments`. */
    _Atomic uint64_t slot, generation; /* of the tenant */
    _Atomic uint32_t index, process_generation;
    _Atomic uint64_t epoch, attachments;
    _Atomic(struct ct_gang_page *) gang; /* NULL: the process belongs to no gang; otherwise never changes */
    _Atomic uint32_t gang_ranks;
    uint64_t device_count; /* devices of the tenant, from the first attachment */
    /* Used by the hook's thread alone. */
    struct ct_owned_file socket, pages_file;
    struct ct_frame frame;
    unsigned char request_bytes[CT_FRAME_LENGTH_BYTES + CT_FRAME_MAX_BYTES];
    /* Written before the thread starts. */
    struct ct_join_request request;
    /* Written by the thread before it sets the state. */
    char reason[CT_REASON_BYTES];
    size_t environment_bytes;
    unsigned char environment[CT_FRAME_MAX_BYTES];
};

/* For how long an attachment is awaited, and the first one is tried. */
#define CT_JOIN_MAX_NS (UINT64_C(10) * 1000 * 1000 * 1000)

/* Joins at the first call in a process on the device on which the call acts; returns NULL if it is unmanaged there. */
const struct ct_membership *ct_membership(void);
/* Joins likewise; returns whether the program must not use the device, because it requires to be managed and is not. */
int ct_membership_is_missing(void);

/* Reads the grant; returns 0 if it cannot be read or is another tenant's. */
int ct_membership_grant(const struct ct_membership *membership, struct ct_grant *grant);
/* Returns a number that changes whenever the grant page does, or 0 unless this tenant is alone on the device. Equal
 * numbers before and after an interval mean that it was alone throughout. The number of other tenants is not known to an
 * unmanaged process (NULL), which is assumed to be alone. */
uint64_t ct_membership_alone_since(const struct ct_membership *membership);

/* ---- attachment.c ------------------------------------------------------------------------------------------------- */

/* The hook's thread. Ends if the first attachment fails. */
void *ct_attachment_run(void *membership);

#endif

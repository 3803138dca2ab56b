/* Accounts: device memory of all processes with the same account name, since the start of the server. */
#ifndef COTENANT_SOFTGPU_SERVER_ACCOUNT_H
#define COTENANT_SOFTGPU_SERVER_ACCOUNT_H

#include "softgpu/wire.h"

struct sg_server;

enum { SG_ACCOUNTS = 256 };

struct sg_account {
    char name[SG_ACCOUNT_BYTES]; /* empty: a free entry */
    uint32_t clients;            /* number of connected clients */
    uint64_t connected;          /* number of clients that ever connected */
    uint64_t memory_bytes;       /* of its clients without their shares, and of the shares that they created */
    uint64_t left_bytes;         /* the part in shares that only clients of other accounts hold */
    uint64_t memory_peak_bytes;
    uint64_t kept_peak_bytes;    /* the maximum without left_bytes */
    /* Count of disconnects when its last client left; the account with the lowest one is evicted first. */
    uint64_t idle_since;
};

/* Add the client to the account named in its hello, if any. 0, or the CUresult of a refusal. */
uint32_t sg_account_join(struct sg_server *server, int index);
/* Update the account after a possible change of the client's memory. */
void sg_account_update(struct sg_server *server, int index);
/* Add bytes to the shares of an account (index plus one; 0: none); the unsigned difference may be negative. The peak is
 * updated by the next sg_account_update() of the client or by sg_account_update_peak(). */
void sg_account_share(struct sg_server *server, uint32_t account, uint64_t more_bytes);
/* Add to the part that only clients of other accounts hold. */
void sg_account_left_share(struct sg_server *server, uint32_t account, uint64_t more_bytes);
void sg_account_update_peak(struct sg_server *server, uint32_t account);
/* Remove the client. Its shares have been passed on or released. */
void sg_account_leave(struct sg_server *server, int index);

#endif

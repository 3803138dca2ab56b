/* Accounts: device memory of all processes that go by one name, since the server's start. */
#ifndef COTENANT_SOFTGPU_SERVER_ACCOUNT_H
#define COTENANT_SOFTGPU_SERVER_ACCOUNT_H

#include "softgpu/wire.h"

struct sg_server;

enum { SG_ACCOUNTS = 256 };

struct sg_account {
    char name[SG_ACCOUNT_BYTES]; /* empty: a free place */
    uint32_t clients;            /* that are there now */
    uint64_t connected;          /* clients there ever were */
    uint64_t memory_bytes;       /* of its clients without their shares, and of the shares that were made by it */
    uint64_t memory_peak_bytes;
    uint64_t left; /* when its latest client left, by count of departures: the oldest idle one makes room */
};

/* Takes the client into the account that its greeting named, if any. 0, or the CUresult of a refusal. */
uint32_t sg_account_join(struct sg_server *server, int index);
/* The client's memory may have changed: the account's follows. */
void sg_account_settle(struct sg_server *server, int index);
/* A share of this account (place plus one; 0: none) became larger by so many bytes, or smaller: unsigned. The peak
 * follows with the next sg_account_settle() of the client that did it, or with sg_account_mark(). */
void sg_account_share(struct sg_server *server, uint32_t account, uint64_t more_bytes);
void sg_account_mark(struct sg_server *server, uint32_t account);
/* The client is about to go; its shares were handed on before. */
void sg_account_leave(struct sg_server *server, int index);

#endif

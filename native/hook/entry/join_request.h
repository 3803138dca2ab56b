/* What a program asks the node for: the variables COTENANT_... of its environment, and the file that COTENANT_GRANT
 * names. */
#ifndef COTENANT_HOOK_ENTRY_JOIN_REQUEST_H
#define COTENANT_HOOK_ENTRY_JOIN_REQUEST_H

#include "hook/entry/message.h"

#define CT_DEFAULT_SOCKET "/run/cotenant/tenant.sock"
enum { CT_SOCKET_PATH_BYTES = 108, CT_REASON_BYTES = 512 };

enum ct_join_status {
    CT_JOIN_NOT_REQUESTED = 0, /* nothing in the environment asks for it */
    CT_JOIN_REQUESTED,
    CT_JOIN_IMPOSSIBLE, /* `reason` says why */
};

struct ct_join_request {
    char socket_path[CT_SOCKET_PATH_BYTES];
    char reason[CT_REASON_BYTES];
    uint32_t device; /* for which the process attaches, as its driver numbers them */
    size_t count; /* bytes of the frame so far, without the last two entries: the index and the generation */
    unsigned char bytes[CT_FRAME_LENGTH_BYTES + CT_FRAME_MAX_BYTES];
};

/* Reads the environment, which other threads must not change meanwhile. */
enum ct_join_status ct_join_request_make(struct ct_join_request *request, uint32_t device);
/* Completes a copy of the frame in `bytes`, of the size of that in the request, and returns its size. The index is -1
 * for a process that the node does not know yet. */
size_t ct_join_request_complete(const struct ct_join_request *request, int64_t index, uint64_t generation,
                                unsigned char *bytes);

/* Returns whether COTENANT_REQUIRED says that the program must not run unmanaged. */
int ct_join_is_required(void);

/* Sets the variables in a map from the node: those of CUDA and of cotenant alone, and the program's choice of devices
 * only if it contains the node's. */
void ct_join_set_environment(const unsigned char *map, size_t count);

#endif

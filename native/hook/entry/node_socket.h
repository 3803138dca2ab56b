/* The connection to the node: frames and the descriptors that accompany them.
 *
 * Normally only the hook's own thread has these descriptors, see membership.c. Where it has to share the descriptor table
 * of the program, the program may close any number and use it for another file, so a descriptor is checked before each
 * use. Functions return 0 or an errno value. They never block beyond `until_ns` (CLOCK_MONOTONIC; CT_NODE_NO_LIMIT: no
 * limit). */
#ifndef COTENANT_HOOK_ENTRY_NODE_SOCKET_H
#define COTENANT_HOOK_ENTRY_NODE_SOCKET_H

#include "hook/entry/message.h"

#include <sys/types.h>

#define CT_NODE_NO_LIMIT UINT64_MAX
enum { CT_FRAME_DESCRIPTORS = 4 };

/* An open file that the hook owns. */
struct ct_owned_file {
    int descriptor; /* -1: none */
    dev_t device;
    ino_t inode;
};

/* Takes a descriptor, and moves it to a number that programs rarely use. Returns 0 if that fails; the descriptor is then
 * closed. */
int ct_owned_file_take(struct ct_owned_file *file, int descriptor);
/* Returns whether the descriptor still is this file. */
int ct_owned_file_is_valid(const struct ct_owned_file *file);
void ct_owned_file_close(struct ct_owned_file *file);

struct ct_frame {
    size_t count;
    int descriptor_count, descriptors[CT_FRAME_DESCRIPTORS]; /* -1 once taken */
    unsigned char bytes[CT_FRAME_MAX_BYTES];
};

int ct_node_connect(struct ct_owned_file *socket, const char *path);
/* Sends one frame, with a descriptor. The first CT_FRAME_LENGTH_BYTES of the bytes are for its length, which is written
 * there. */
int ct_node_send(const struct ct_owned_file *socket, unsigned char *bytes, size_t count, int descriptor,
                 uint64_t until_ns);
/* Receives one frame: EPIPE if the node has closed the connection, EPROTO if the bytes are not a frame, EBADF if the
 * program has closed the descriptor. The caller closes the descriptors of the frame. */
int ct_node_receive(const struct ct_owned_file *socket, struct ct_frame *frame, uint64_t until_ns);
void ct_frame_close(struct ct_frame *frame);

/* Sleeps without being a cancellation point. */
void ct_node_sleep(uint64_t ns);

#endif

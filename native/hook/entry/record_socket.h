/* Passes the record of this process to `cotenant run`, which keeps it after the process has ended. */
#ifndef COTENANT_HOOK_ENTRY_RECORD_SOCKET_H
#define COTENANT_HOOK_ENTRY_RECORD_SOCKET_H

/* Sends the descriptor to the socket in the record directory; returns 0 on failure. It does not wait for the receiver. */
int ct_record_send(const char *directory, int descriptor);

#endif

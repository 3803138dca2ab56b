/* The messages of the node's protocol: msgpack maps, in frames that begin with their length. See
 * docs/reference/wire.md.
 *
 * Only what the hook needs: it writes maps of texts and integers, and reads maps of any content. Whatever the bytes
 * are, the readers access nothing beyond them and take time in proportion to their number. */
#ifndef COTENANT_HOOK_ENTRY_MESSAGE_H
#define COTENANT_HOOK_ENTRY_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

/* Version of the hook's requests and of the shared pages, `HOOK_VERSION` in node/wire.py. */
enum { CT_MESSAGE_VERSION = 1, CT_FRAME_MAX_BYTES = 64 << 10, CT_FRAME_LENGTH_BYTES = 4 };

/* ---- writing ------------------------------------------------------------------------------------------------------ */

struct ct_message_writer {
    unsigned char *bytes;
    size_t capacity, count; /* `count` may exceed the capacity: then the message is incomplete */
};

/* Begins a map of this many entries: for each, a key and a value follow. */
void ct_message_map(struct ct_message_writer *writer, uint32_t entries);
/* Writes a text of this length. Bytes that are not UTF-8 are replaced by question marks, because readers refuse
 * them. */
void ct_message_bytes(struct ct_message_writer *writer, const char *text, size_t length);
void ct_message_text(struct ct_message_writer *writer, const char *text);
void ct_message_integer(struct ct_message_writer *writer, int64_t number);

/* ---- reading ------------------------------------------------------------------------------------------------------ */

enum ct_message_kind { CT_MESSAGE_OTHER = 0, CT_MESSAGE_INTEGER, CT_MESSAGE_TEXT, CT_MESSAGE_MAP };

struct ct_message_value {
    enum ct_message_kind kind;
    const unsigned char *bytes; /* of a text: its characters; of a map: its encoding */
    size_t count;
    uint64_t number;  /* of an integer; 0 if that is negative */
    int is_negative;
};

/* The entries of a map that have not been read yet. */
struct ct_message_reader {
    const unsigned char *at, *end;
    uint64_t entries;
};

/* Returns 0 if the bytes do not begin with a map. */
int ct_message_open(struct ct_message_reader *reader, const unsigned char *bytes, size_t count);
/* Reads the next entry; returns 0 after the last one, and at bytes that are not a valid entry with a text as its
 * key. */
int ct_message_next(struct ct_message_reader *reader, struct ct_message_value *key, struct ct_message_value *value);
/* Finds the first entry with this key; returns 0 if there is none. */
int ct_message_find(const unsigned char *bytes, size_t count, const char *key, struct ct_message_value *value);

int ct_message_is(const struct ct_message_value *value, const char *text);
/* Copies a text, cut to the capacity and without control characters; empty if the value is not a text. */
void ct_message_copy_text(const struct ct_message_value *value, char *into, size_t capacity);
/* Finds an integer from 0 to `max`; returns 0 if there is none. */
int ct_message_find_number(const unsigned char *bytes, size_t count, const char *key, uint64_t max, uint64_t *number);

#endif

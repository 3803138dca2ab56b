/* Writes and reads msgpack maps. */
#include "hook/entry/message.h"

#include <string.h>

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static void put(struct ct_message_writer *writer, unsigned byte)
{
    if (writer->count < writer->capacity)
        writer->bytes[writer->count] = (unsigned char)byte;
    writer->count++;
}

static void put_big_endian(struct ct_message_writer *writer, uint64_t number, unsigned bytes)
{
    while (bytes--)
        put(writer, (unsigned)(number >> 8 * bytes & 0xff));
}

void ct_message_map(struct ct_message_writer *writer, uint32_t entries)
{
    if (entries < 16) {
        put(writer, 0x80 | entries);
    } else {
        put(writer, 0xdf);
        put_big_endian(writer, entries, 4);
    }
}

/* Returns the length of the UTF-8 sequence at the beginning of the bytes; 0: there is none. */
static size_t sequence_length(const unsigned char *bytes, size_t count)
{
    const unsigned first = bytes[0];
    const size_t length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3
        : first >= 0xf0 && first < 0xf5 ? 4 : 0;
    if (length > count)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    /* The second byte excludes encodings that are longer than necessary, surrogates, and what is beyond Unicode. */
    if ((first == 0xe0 && bytes[1] < 0xa0) || (first == 0xed && bytes[1] > 0x9f) || (first == 0xf0 && bytes[1] < 0x90) ||
        (first == 0xf4 && bytes[1] > 0x8f))
        return 0;
    return length;
}

void ct_message_bytes(struct ct_message_writer *writer, const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    put(writer, 0xdb);
    put_big_endian(writer, length, 4);
    for (size_t at = 0; at < length;) {
        const size_t sequence = sequence_length(bytes + at, length - at);
        for (size_t i = 0; i < sequence; i++)
            put(writer, bytes[at + i]);
        if (!sequence)
            put(writer, '?');
        at += sequence ? sequence : 1;
    }
}

void ct_message_text(struct ct_message_writer *writer, const char *text)
{
    ct_message_bytes(writer, text, strlen(text));
}

void ct_message_integer(struct ct_message_writer *writer, int64_t number)
{
    put(writer, number < 0 ? 0xd3 : 0xcf);
    put_big_endian(writer, (uint64_t)number, 8);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static uint64_t big_endian(const unsigned char *bytes, size_t count)
{
    uint64_t number = 0;
    for (size_t i = 0; i < count; i++)
        number = number << 8 | bytes[i];
    return number;
}

/* The beginning of a value: its kind, the number of bytes of its tag and length, the number of bytes that follow, and the
 * number of values that follow. */
struct head {
    enum ct_message_kind kind;
    size_t head_bytes;
    uint64_t body_bytes, values;
};

/* Reads the head of a value whose length is in `length_bytes` bytes after its tag. */
static int read_length(const unsigned char *at, size_t left, size_t length_bytes, uint64_t *length)
{
    if (left < 1 + length_bytes)
        return 0;
    *length = big_endian(at + 1, length_bytes);
    return 1;
}

/* Returns 0 if the head is incomplete or not valid. */
static int read_head(const unsigned char *at, size_t left, struct head *head)
{
    *head = (struct head){.head_bytes = 1};
    if (!left)
        return 0;
    const unsigned tag = at[0];
    uint64_t length = 0;
    if (tag < 0x80 || tag >= 0xe0) { /* an integer in the tag itself */
        head->kind = CT_MESSAGE_INTEGER;
    } else if (tag < 0x90) {
        head->kind = CT_MESSAGE_MAP;
        head->values = 2 * (tag & 0x0f);
    } else if (tag < 0xa0) {
        head->values = tag & 0x0f;
    } else if (tag < 0xc0) {
        head->kind = CT_MESSAGE_TEXT;
        head->body_bytes = tag & 0x1f;
    } else if (tag == 0xc1) {
        return 0;
    } else if (tag < 0xc4) { /* nil and booleans */
    } else if (tag < 0xca || (tag >= 0xd9 && tag < 0xdc)) { /* binary data, extensions, and texts with a length */
        const size_t length_bytes = (size_t)1 << (tag < 0xc7 ? tag - 0xc4 : tag < 0xca ? tag - 0xc7 : tag - 0xd9);
        if (!read_length(at, left, length_bytes, &length))
            return 0;
        head->kind = tag >= 0xd9 ? CT_MESSAGE_TEXT : CT_MESSAGE_OTHER;
        head->head_bytes += length_bytes;
        head->body_bytes = length + (tag >= 0xc7 && tag < 0xca); /* an extension has a byte for its type */
    } else if (tag < 0xcc) { /* floating-point numbers */
        head->body_bytes = tag == 0xca ? 4 : 8;
    } else if (tag < 0xd4) {
        head->kind = CT_MESSAGE_INTEGER;
        head->body_bytes = (uint64_t)1 << (tag < 0xd0 ? tag - 0xcc : tag - 0xd0);
    } else if (tag < 0xd9) { /* extensions of fixed length, with a byte for the type */
        head->body_bytes = 1 + ((uint64_t)1 << (tag - 0xd4));
    } else { /* arrays and maps with a length */
        const size_t length_bytes = tag == 0xdc || tag == 0xde ? 2 : 4;
        if (!read_length(at, left, length_bytes, &length))
            return 0;
        head->kind = tag >= 0xde ? CT_MESSAGE_MAP : CT_MESSAGE_OTHER;
        head->head_bytes += length_bytes;
        head->values = tag >= 0xde ? 2 * length : length;
    }
    return head->body_bytes <= left - head->head_bytes;
}

/* Returns the number of bytes of a value with everything in it; 0: it is incomplete or not valid. Each value takes at
 * least one byte, so the number of values to come never exceeds that of the bytes. */
static size_t value_bytes(const unsigned char *at, size_t left)
{
    size_t used = 0;
    for (uint64_t values = 1; values; values--) {
        struct head head;
        if (!read_head(at + used, left - used, &head))
            return 0;
        used += head.head_bytes + (size_t)head.body_bytes;
        values += head.values;
        if (values - 1 > left - used)
            return 0;
    }
    return used;
}

static void read_integer(const unsigned char *at, const struct head *head, struct ct_message_value *value)
{
    const unsigned tag = at[0];
    if (tag < 0x80) {
        value->number = tag;
    } else if (tag >= 0xe0) {
        value->is_negative = 1;
    } else {
        value->is_negative = tag >= 0xd0 && at[1] >= 0x80;
        value->number = value->is_negative ? 0 : big_endian(at + 1, (size_t)head->body_bytes);
    }
}

static int read_value(struct ct_message_reader *reader, struct ct_message_value *value)
{
    struct head head;
    const size_t left = (size_t)(reader->end - reader->at), bytes = value_bytes(reader->at, left);
    *value = (struct ct_message_value){0};
    if (!bytes || !read_head(reader->at, left, &head))
        return 0;
    value->kind = head.kind;
    value->bytes = reader->at;
    value->count = bytes;
    if (head.kind == CT_MESSAGE_INTEGER)
        read_integer(reader->at, &head, value);
    if (head.kind == CT_MESSAGE_TEXT) {
        value->bytes += head.head_bytes;
        value->count = (size_t)head.body_bytes;
    }
    reader->at += bytes;
    return 1;
}

int ct_message_open(struct ct_message_reader *reader, const unsigned char *bytes, size_t count)
{
    struct head head;
    *reader = (struct ct_message_reader){0};
    if (!read_head(bytes, count, &head) || head.kind != CT_MESSAGE_MAP)
        return 0;
    *reader = (struct ct_message_reader){bytes + head.head_bytes, bytes + count, head.values / 2};
    return 1;
}

int ct_message_next(struct ct_message_reader *reader, struct ct_message_value *key, struct ct_message_value *value)
{
    if (!reader->entries || !read_value(reader, key) || key->kind != CT_MESSAGE_TEXT || !read_value(reader, value)) {
        reader->entries = 0;
        return 0;
    }
    reader->entries--;
    return 1;
}

int ct_message_find(const unsigned char *bytes, size_t count, const char *key, struct ct_message_value *value)
{
    struct ct_message_reader reader;
    struct ct_message_value name;
    ct_message_open(&reader, bytes, count);
    while (ct_message_next(&reader, &name, value))
        if (ct_message_is(&name, key))
            return 1;
    *value = (struct ct_message_value){0};
    return 0;
}

int ct_message_is(const struct ct_message_value *value, const char *text)
{
    return value->kind == CT_MESSAGE_TEXT && value->count == strlen(text) &&
           memcmp(value->bytes, text, value->count) == 0;
}

void ct_message_copy_text(const struct ct_message_value *value, char *into, size_t capacity)
{
    size_t length = 0;
    for (size_t i = 0; value->kind == CT_MESSAGE_TEXT && i < value->count && length + 1 < capacity; i++)
        into[length++] = value->bytes[i] < ' ' || value->bytes[i] == 0x7f ? ' ' : (char)value->bytes[i];
    into[length] = 0;
}

int ct_message_find_number(const unsigned char *bytes, size_t count, const char *key, uint64_t max, uint64_t *number)
{
    struct ct_message_value value;
    if (!ct_message_find(bytes, count, key, &value) || value.kind != CT_MESSAGE_INTEGER || value.is_negative ||
        value.number > max)
        return 0;
    *number = value.number;
    return 1;
}

/* The PTX of a fat binary. */
#include "hook/slice/fatbin.h"

#include "fat_binary.h"

#include <stdlib.h>

/* Returns the text of an entry, zero-terminated; NULL: it cannot be read, or there is no memory for it. */
static char *read_text(const struct ct_fatbin_entry *entry, const unsigned char *payload)
{
    const int is_packed = (entry->flags & CT_FATBIN_LZ4) != 0;
    const uint64_t bytes = is_packed ? entry->full_bytes : entry->bytes;
    if (entry->flags & CT_FATBIN_ZSTD || bytes > CT_FATBIN_LIMIT || (is_packed && entry->packed_bytes > entry->bytes))
        return NULL;
    unsigned char *text = malloc(bytes + 1);
    if (!text)
        return NULL;
    if (!is_packed)
        memcpy(text, payload, bytes);
    else if (ct_lz4_expand(payload, entry->packed_bytes, text, bytes) < 0) {
        free(text);
        return NULL;
    }
    text[bytes] = 0;
    return (char *)text;
}

/* Byte by byte, because a text may be shorter. */
static int begins_with(const unsigned char *image, const unsigned char magic[4])
{
    return image[0] == magic[0] && image[1] == magic[1] && image[2] == magic[2] && image[3] == magic[3];
}

int ct_slice_is_fatbin(const void *image)
{
    return begins_with(image, ct_fatbin_magic) || begins_with(image, ct_fatbin_wrapper_magic);
}

char *ct_slice_fatbin_text(const void *image, size_t bytes, unsigned capability)
{
    const unsigned char *data = image, *chosen = NULL;
    struct ct_fatbin_entry text = {0};
    unsigned code = 0; /* newest architecture of machine code that the device executes */
    int is_only = 1;
    uint16_t head_bytes;
    uint64_t body_bytes;
    if (!bytes && begins_with(data, ct_fatbin_wrapper_magic)) {
        struct ct_fatbin_wrapper wrapper;
        memcpy(&wrapper, data, sizeof wrapper);
        data = wrapper.data;
    }
    if (!data || (bytes && bytes < CT_FATBIN_HEAD_BYTES) || !begins_with(data, ct_fatbin_magic))
        return NULL;
    ct_fatbin_head(data, &head_bytes, &body_bytes);
    if (body_bytes > CT_FATBIN_LIMIT || (bytes && head_bytes + body_bytes > bytes))
        return NULL;
    const unsigned char *at = data + head_bytes;
    for (uint64_t left = body_bytes; left >= CT_FATBIN_ENTRY_BYTES;) {
        const struct ct_fatbin_entry entry = ct_fatbin_entry_at(at);
        if (!ct_fatbin_fits(&entry, left))
            return NULL;
        const int is_usable = entry.architecture <= capability;
        if (entry.kind == CT_FATBIN_ELF && is_usable && entry.architecture / 10 == capability / 10 &&
            entry.architecture > code)
            code = entry.architecture;
        if (entry.kind == CT_FATBIN_PTX && is_usable) {
            is_only = !chosen || entry.architecture != text.architecture;
            if (!chosen || entry.architecture > text.architecture) {
                chosen = at + entry.head_bytes;
                text = entry;
            }
        }
        at += entry.head_bytes + entry.bytes;
        left -= entry.head_bytes + entry.bytes;
    }
    return chosen && is_only && text.architecture >= code ? read_text(&text, chosen) : NULL;
}

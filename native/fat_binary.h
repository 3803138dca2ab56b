/* Fat binaries: a header, and entries with machine code or PTX for devices of several architectures. The format is not
 * documented by NVIDIA; this is what its tools write. Used by the hook and by the software GPU. */
#ifndef COTENANT_FAT_BINARY_H
#define COTENANT_FAT_BINARY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    CT_FATBIN_HEAD_BYTES = 16,
    CT_FATBIN_ENTRY_BYTES = 64,
    CT_FATBIN_PTX = 1,
    CT_FATBIN_ELF = 2,
    CT_FATBIN_LZ4 = 0x2000,
    CT_FATBIN_ZSTD = 0x8000,
};
#define CT_FATBIN_LIMIT (UINT64_C(1) << 28) /* a text or binary that is longer is corrupt */

static const unsigned char ct_fatbin_magic[4] = {0x50, 0xed, 0x55, 0xba};
static const unsigned char ct_fatbin_wrapper_magic[4] = {0xb1, 0x43, 0x62, 0x46};

/* The header that compilers embed in a program, which points to the fat binary. */
struct ct_fatbin_wrapper {
    uint32_t magic, version;
    const unsigned char *data;
    void *reserved;
};

struct ct_fatbin_entry {
    uint16_t kind;
    uint32_t head_bytes, packed_bytes;
    uint32_t architecture; /* 80 for compute capability 8.0 */
    uint64_t bytes, flags, full_bytes;
};

/* Reads the sizes of the header and of all entries together. */
static inline void ct_fatbin_head(const unsigned char *data, uint16_t *head_bytes, uint64_t *body_bytes)
{
    memcpy(head_bytes, data + 6, sizeof *head_bytes);
    memcpy(body_bytes, data + 8, sizeof *body_bytes);
}

static inline struct ct_fatbin_entry ct_fatbin_entry_at(const unsigned char *data)
{
    struct ct_fatbin_entry entry;
    memcpy(&entry.kind, data, sizeof entry.kind);
    memcpy(&entry.head_bytes, data + 4, sizeof entry.head_bytes);
    memcpy(&entry.bytes, data + 8, sizeof entry.bytes);
    memcpy(&entry.packed_bytes, data + 16, sizeof entry.packed_bytes);
    memcpy(&entry.architecture, data + 28, sizeof entry.architecture);
    memcpy(&entry.flags, data + 40, sizeof entry.flags);
    memcpy(&entry.full_bytes, data + 56, sizeof entry.full_bytes);
    return entry;
}

/* Whether the entry, of which `bytes` are left, ends within them. */
static inline int ct_fatbin_fits(const struct ct_fatbin_entry *entry, uint64_t bytes)
{
    return entry->head_bytes >= CT_FATBIN_ENTRY_BYTES && entry->head_bytes <= bytes &&
           entry->bytes <= bytes - entry->head_bytes;
}

/* Reads the rest of a length of the LZ4 block format. -1: the input has ended. */
static inline int ct_lz4_length(const unsigned char *in, uint64_t in_bytes, uint64_t *at, uint64_t *length)
{
    if (*length != 15)
        return 0;
    do {
        if (*at == in_bytes)
            return -1;
        *length += in[*at];
    } while (in[(*at)++] == 255);
    return 0;
}

/* Decompresses the LZ4 block format. -1: the input is corrupt. */
static inline int ct_lz4_expand(const unsigned char *in, uint64_t in_bytes, unsigned char *out, uint64_t out_bytes)
{
    uint64_t i = 0, o = 0;
    while (i < in_bytes) {
        uint64_t literals = in[i] >> 4, match = in[i] & 15, distance;
        i++;
        if (ct_lz4_length(in, in_bytes, &i, &literals) < 0 || literals > in_bytes - i || literals > out_bytes - o)
            return -1;
        memcpy(out + o, in + i, literals);
        i += literals;
        o += literals;
        if (i == in_bytes)
            break;
        if (in_bytes - i < 2)
            return -1;
        distance = in[i] | (uint64_t)in[i + 1] << 8;
        i += 2;
        if (ct_lz4_length(in, in_bytes, &i, &match) < 0)
            return -1;
        match += 4;
        if (!distance || distance > o || match > out_bytes - o)
            return -1;
        for (; match; match--, o++)
            out[o] = out[o - distance];
    }
    return o == out_bytes ? 0 : -1;
}

#endif

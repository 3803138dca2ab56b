/* The PTX that is chosen from a fat binary, and damaged fat binaries. */
#include "fat_binary.h"
#include "hook/slice/fatbin.h"
#include "tests/expect.h"

#include <stdlib.h>

enum { CAPACITY = 4096 };

static uint64_t state = 88172645463325252u;

static uint64_t next_random(void)
{
    state = state * UINT64_C(6364136223846793005) + 1;
    return state >> 33;
}

struct binary {
    unsigned char data[CAPACITY];
    size_t bytes;
};

static void begin(struct binary *binary)
{
    *binary = (struct binary){.bytes = CT_FATBIN_HEAD_BYTES};
    memcpy(binary->data, ct_fatbin_magic, sizeof ct_fatbin_magic);
    binary->data[4] = 1;
    binary->data[6] = CT_FATBIN_HEAD_BYTES;
}

static void add(struct binary *binary, uint16_t kind, uint32_t architecture, uint64_t flags, const void *payload,
                uint32_t bytes, uint64_t full_bytes)
{
    unsigned char *at = binary->data + binary->bytes;
    const uint32_t head_bytes = CT_FATBIN_ENTRY_BYTES;
    const uint64_t padded = (bytes + 7) / 8 * 8;
    memcpy(at, &kind, sizeof kind);
    memcpy(at + 4, &head_bytes, sizeof head_bytes);
    memcpy(at + 8, &padded, sizeof padded);
    memcpy(at + 16, &bytes, sizeof bytes);
    memcpy(at + 28, &architecture, sizeof architecture);
    memcpy(at + 40, &flags, sizeof flags);
    memcpy(at + 56, &full_bytes, sizeof full_bytes);
    memcpy(at + head_bytes, payload, bytes);
    binary->bytes += head_bytes + padded;
    const uint64_t body = binary->bytes - CT_FATBIN_HEAD_BYTES;
    memcpy(binary->data + 8, &body, sizeof body);
}

static void add_text(struct binary *binary, uint32_t architecture, const char *text)
{
    add(binary, CT_FATBIN_PTX, architecture, 0, text, (uint32_t)strlen(text) + 1, 0);
}

/* Returns whether this text is chosen; NULL: none. */
static int chooses(const struct binary *binary, unsigned capability, const char *expected)
{
    char *found = ct_slice_fatbin_text(binary->data, binary->bytes, capability);
    char *unsized = ct_slice_fatbin_text(binary->data, 0, capability);
    const int is_same = (found != NULL) == (unsized != NULL) && (!found || strcmp(found, unsized) == 0);
    const int is_expected = expected ? found && strcmp(found, expected) == 0 : !found;
    free(found);
    free(unsized);
    return is_same && is_expected;
}

static void the_newest_text_for_the_device_is_chosen(void)
{
    struct binary binary;
    begin(&binary);
    add_text(&binary, 70, "old");
    add_text(&binary, 80, "new");
    EXPECT(ct_slice_is_fatbin(binary.data));
    EXPECT(chooses(&binary, 75, "old") && chooses(&binary, 80, "new") && chooses(&binary, 90, "new"));
    EXPECT(chooses(&binary, 60, NULL));
    add(&binary, CT_FATBIN_ELF, 86, 0, "code", 4, 0);
    EXPECT(chooses(&binary, 80, "new") && chooses(&binary, 90, "new")); /* machine code of another generation */
    EXPECT(chooses(&binary, 86, NULL) && chooses(&binary, 89, NULL));
    add_text(&binary, 80, "another");
    EXPECT(chooses(&binary, 80, NULL)); /* which one the driver takes is unknown */
}

static void compressed_texts_are_read(void)
{
    static const unsigned char packed[] = {0x42, 'a', 'b', 'c', 'd', 4, 0, 0x10, 0}; /* abcd, then 6 bytes from 4 before, 0 */
    struct binary binary;
    begin(&binary);
    add(&binary, CT_FATBIN_PTX, 80, CT_FATBIN_LZ4, packed, sizeof packed, 11);
    EXPECT(chooses(&binary, 80, "abcdabcdab"));
    begin(&binary);
    add(&binary, CT_FATBIN_PTX, 80, CT_FATBIN_LZ4, packed, sizeof packed, 12);
    EXPECT(chooses(&binary, 80, NULL));
    begin(&binary);
    add(&binary, CT_FATBIN_PTX, 80, CT_FATBIN_ZSTD, packed, sizeof packed, 11);
    EXPECT(chooses(&binary, 80, NULL));
    struct ct_fatbin_wrapper wrapper = {.data = binary.data};
    memcpy(&wrapper.magic, ct_fatbin_wrapper_magic, sizeof wrapper.magic);
    EXPECT(ct_slice_is_fatbin(&wrapper) && !ct_slice_fatbin_text(&wrapper, 0, 80));
    begin(&binary);
    add_text(&binary, 80, "text");
    char *text = ct_slice_fatbin_text(&wrapper, 0, 80);
    EXPECT(text && strcmp(text, "text") == 0);
    free(text);
    EXPECT(!ct_slice_is_fatbin("P") && !ct_slice_is_fatbin(""));
}

static void damaged_binaries_are_survived(void)
{
    for (uint64_t i = 0; i < rounds_of(20000, 2000000); i++) {
        struct binary binary;
        static const unsigned char packed[] = {0x42, 'a', 'b', 'c', 'd', 4, 0, 0x10, 0};
        begin(&binary);
        add_text(&binary, 70, "text");
        add(&binary, CT_FATBIN_PTX, 80, CT_FATBIN_LZ4, packed, sizeof packed, 11);
        for (uint64_t k = next_random() % 4 + 1; k; k--)
            binary.data[4 + next_random() % (binary.bytes - 4)] = (unsigned char)next_random();
        const size_t bytes = next_random() % 4 ? binary.bytes : next_random() % binary.bytes + 1;
        unsigned char *exact = malloc(bytes); /* so that a read behind the end is found */
        memcpy(exact, binary.data, bytes);
        free(bytes >= 4 ? ct_slice_fatbin_text(exact, bytes, 80) : NULL);
        free(exact);
    }
}

int main(void)
{
    the_newest_text_for_the_device_is_chosen();
    compressed_texts_are_read();
    damaged_binaries_are_survived();
    return 0;
}

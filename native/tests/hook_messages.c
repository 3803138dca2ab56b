/* Messages of the node: whatever the bytes are, reading them stays within them; and what the hook writes, it can read. */
#include "expect.h"
#include "hook/entry/gang_name.h"
#include "hook/entry/join_request.h"
#include "hook/entry/message.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 200000, MAX_BYTES = 96 };

static uint64_t rng = 7;

static uint64_t random_number(void)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return rng >> 24;
}

static size_t write_sample(unsigned char *bytes, size_t capacity)
{
    struct ct_message_writer writer = {bytes, capacity, 0};
    ct_message_map(&writer, 4);
    ct_message_text(&writer, "type");
    ct_message_text(&writer, "attached");
    ct_message_text(&writer, "slot");
    ct_message_integer(&writer, 3);
    ct_message_text(&writer, "environment");
    ct_message_map(&writer, 1);
    ct_message_text(&writer, "CUDA_X");
    ct_message_text(&writer, "1");
    ct_message_text(&writer, "index");
    ct_message_integer(&writer, -1);
    return writer.count;
}

static void written_values_are_read(void)
{
    unsigned char bytes[256];
    struct ct_message_value value, inner;
    uint64_t number;
    const size_t count = write_sample(bytes, sizeof bytes);
    EXPECT(count <= sizeof bytes);
    EXPECT(ct_message_find(bytes, count, "type", &value) && ct_message_is(&value, "attached"));
    EXPECT(!ct_message_is(&value, "attach") && !ct_message_is(&value, "attached-"));
    EXPECT(ct_message_find_number(bytes, count, "slot", 3, &number) && number == 3);
    EXPECT(!ct_message_find_number(bytes, count, "slot", 2, &number)); /* beyond the maximum */
    EXPECT(!ct_message_find_number(bytes, count, "index", UINT64_MAX, &number)); /* negative */
    EXPECT(!ct_message_find_number(bytes, count, "type", UINT64_MAX, &number));
    EXPECT(!ct_message_find(bytes, count, "absent", &value));
    EXPECT(ct_message_find(bytes, count, "environment", &value) && value.kind == CT_MESSAGE_MAP);
    EXPECT(ct_message_find(value.bytes, value.count, "CUDA_X", &inner) && ct_message_is(&inner, "1"));
    EXPECT(write_sample(bytes, 10) == count); /* a buffer that is too small is not exceeded */
}

static void text_that_is_not_utf8_is_replaced(void)
{
    static const char *const pairs[][2] = {
        {"plain", "plain"}, {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xff\xfe", "??"}, {"\xc3", "?"}, {"a\xe2\x82", "a??"}, {"\xc0\x80", "??"}, {"\xed\xa0\x80", "???"},
        {"\xf4\x90\x80\x80", "????"}, {"\xe0\x80\x80", "???"}, {"\xf0\x80\x80\x80", "????"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        unsigned char bytes[64];
        struct ct_message_writer writer = {bytes, sizeof bytes, 0};
        struct ct_message_value value;
        ct_message_map(&writer, 1);
        ct_message_text(&writer, "text");
        ct_message_text(&writer, pairs[i][0]);
        EXPECT(ct_message_find(bytes, writer.count, "text", &value) && ct_message_is(&value, pairs[i][1]));
    }
}

/* Reads everything; every read is within the bytes, which the address sanitizer checks. */
static void read_all(const unsigned char *bytes, size_t count)
{
    struct ct_message_reader reader;
    struct ct_message_value key, value;
    char text[32];
    uint64_t number;
    if (!ct_message_open(&reader, bytes, count))
        return;
    for (size_t entries = 0; ct_message_next(&reader, &key, &value); entries++) {
        EXPECT(entries < count);
        EXPECT(key.bytes >= bytes && key.bytes + key.count <= bytes + count);
        EXPECT(value.bytes >= bytes && value.bytes + value.count <= bytes + count);
        ct_message_copy_text(&key, text, sizeof text);
        ct_message_copy_text(&value, text, sizeof text);
        EXPECT(memchr(text, 0, sizeof text) != NULL);
        if (value.kind == CT_MESSAGE_MAP)
            EXPECT(!ct_message_find(value.bytes, value.count, "absent", &key) || key.count <= count);
    }
    ct_message_find_number(bytes, count, "slot", 9, &number);
}

static void any_bytes_are_read_within_bounds(void)
{
    unsigned char sample[256];
    const size_t sample_count = write_sample(sample, sizeof sample);
    for (int i = 0; i < ROUNDS; i++) {
        const int is_mutation = i % 2;
        const size_t count = is_mutation ? random_number() % (sample_count + 1) : random_number() % MAX_BYTES;
        unsigned char *bytes = malloc(count ? count : 1); /* of exactly this size, so that the sanitizer sees the end */
        EXPECT(bytes != NULL);
        for (size_t at = 0; at < count; at++)
            bytes[at] = is_mutation && random_number() % 12 ? sample[at] : (unsigned char)random_number();
        if (count && !is_mutation && i % 4)
            bytes[0] = 0x80 | (random_number() & 0x0f); /* a map */
        read_all(bytes, count);
        free(bytes);
    }
}

/* Deep nesting needs no stack, and announced lengths need no memory. */
static void nested_and_endless_values_are_refused(void)
{
    static unsigned char bytes[CT_FRAME_MAX_BYTES];
    static const unsigned char huge[][9] = {{0x81, 0xa1, 'a', 0xdd, 0xff, 0xff, 0xff, 0xff},
                                            {0x81, 0xa1, 'a', 0xdf, 0xff, 0xff, 0xff, 0xff},
                                            {0x81, 0xa1, 'a', 0xdb, 0xff, 0xff, 0xff, 0xff},
                                            {0x81, 0xa1, 'a', 0xc6, 0xff, 0xff, 0xff, 0xff},
                                            {0x81, 0xa1, 'a', 0xc9, 0xff, 0xff, 0xff, 0xff}};
    struct ct_message_value value;
    memset(bytes, 0x91, sizeof bytes);
    bytes[0] = 0x81;
    bytes[1] = 0xa1;
    EXPECT(!ct_message_find(bytes, sizeof bytes, "absent", &value));
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++)
        EXPECT(!ct_message_find(huge[i], sizeof huge[i], "a", &value));
}

/* ---- the environment ---------------------------------------------------------------------------------------------- */

static void set_from_node(const char *name, const char *value)
{
    unsigned char bytes[512];
    struct ct_message_writer writer = {bytes, sizeof bytes, 0};
    ct_message_map(&writer, 1);
    ct_message_text(&writer, name);
    ct_message_text(&writer, value);
    ct_join_set_environment(bytes, writer.count);
}

static void expect_devices(const char *before, const char *from_node, const char *after)
{
    if (before)
        setenv("CUDA_VISIBLE_DEVICES", before, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
    set_from_node("CUDA_VISIBLE_DEVICES", from_node);
    EXPECT(strcmp(getenv("CUDA_VISIBLE_DEVICES"), after) == 0);
}

static void node_sets_only_its_own_variables(void)
{
    set_from_node("LD_PRELOAD_OF_TEST", "x");
    set_from_node("COTENANT_A=B", "x");
    EXPECT(!getenv("LD_PRELOAD_OF_TEST") && !getenv("COTENANT_A"));
    set_from_node("COTENANT_OF_TEST", "x");
    EXPECT(getenv("COTENANT_OF_TEST") && strcmp(getenv("COTENANT_OF_TEST"), "x") == 0);
    ct_join_set_environment((const unsigned char *)"\x93\x01\x02\x03", 4); /* not a map */
}

static void choice_of_devices_is_narrowed_but_not_replaced(void)
{
    expect_devices(NULL, "GPU-1", "GPU-1");
    expect_devices("", "GPU-1", "");
    expect_devices("0", "GPU-1", "0");
    expect_devices("GPU-0,GPU-1,GPU-2", "GPU-1", "GPU-1");
    expect_devices("GPU-10,GPU-2", "GPU-1", "GPU-10,GPU-2");
    expect_devices("1", "1", "1");
}

/* ---- the request -------------------------------------------------------------------------------------------------- */

static struct ct_join_request request;

static void clear_variables(void)
{
    static const char *const names[] = {"COTENANT_SOCKET", "COTENANT_GRANT", "COTENANT_KIND", "COTENANT_REQUIRED",
                                        "COTENANT_TASK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

static void program_without_variables_does_not_join(void)
{
    clear_variables();
    EXPECT_EQ(ct_join_request_make(&request, 0), CT_JOIN_NOT_REQUESTED);
    setenv("COTENANT_SOCKET", "", 1);
    EXPECT_EQ(ct_join_request_make(&request, 0), CT_JOIN_NOT_REQUESTED);
}

static void expect_impossible(const char *name, const char *value, const char *part)
{
    clear_variables();
    setenv(name, value, 1);
    EXPECT_EQ(ct_join_request_make(&request, 0), CT_JOIN_IMPOSSIBLE);
    EXPECT(strstr(request.reason, part) != NULL);
}

static void impossible_requests_name_the_variable(void)
{
    static char longest[5000];
    memset(longest, 'a', sizeof longest - 1);
    longest[0] = '/';
    expect_impossible("COTENANT_SOCKET", "relative/tenant.sock", "COTENANT_SOCKET");
    expect_impossible("COTENANT_SOCKET", longest, "COTENANT_SOCKET");
    expect_impossible("COTENANT_GRANT", "/nonexistent", "COTENANT_GRANT");
    expect_impossible("COTENANT_GRANT", "/dev/zero", "COTENANT_GRANT");
    expect_impossible("COTENANT_KIND", longest, "COTENANT_KIND");
}

static void grant_file_names_the_socket(void)
{
    static const char text[] = "# a comment\n  kind = offline\r\nsockets=/wrong\nsocket =  /run/other.sock \nsocket = /x";
    char path[] = "/tmp/hook-grant-XXXXXX";
    struct ct_message_value value;
    static unsigned char frame[sizeof request.bytes];
    const int descriptor = mkstemp(path);
    EXPECT(descriptor >= 0 && write(descriptor, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
    close(descriptor);
    clear_variables();
    setenv("COTENANT_GRANT", path, 1);
    setenv("COTENANT_TASK", "train", 1);
    EXPECT_EQ(ct_join_request_make(&request, 0), CT_JOIN_REQUESTED);
    EXPECT(strcmp(request.socket_path, "/run/other.sock") == 0);
    const size_t count = ct_join_request_complete(&request, 4, 12, frame) - CT_FRAME_LENGTH_BYTES;
    const unsigned char *bytes = frame + CT_FRAME_LENGTH_BYTES;
    uint64_t number;
    EXPECT(ct_message_find(bytes, count, "grant", &value) && ct_message_is(&value, text));
    EXPECT(ct_message_find(bytes, count, "fields", &value) && value.kind == CT_MESSAGE_MAP);
    EXPECT(ct_message_find(value.bytes, value.count, "task", &value) && ct_message_is(&value, "train"));
    EXPECT(ct_message_find_number(bytes, count, "generation", 12, &number) && number == 12);
    setenv("COTENANT_SOCKET", "/run/first.sock", 1); /* variables override the file */
    EXPECT_EQ(ct_join_request_make(&request, 0), CT_JOIN_REQUESTED);
    EXPECT(strcmp(request.socket_path, "/run/first.sock") == 0);
    unlink(path);
}

/* ---- the gang ----------------------------------------------------------------------------------------------------- */

static void clear_launchers(void)
{
    static const char *const names[] = {
        "COTENANT_GANG",    "COTENANT_RANKS", "MASTER_ADDR",   "MASTER_PORT",
        "LOCAL_WORLD_SIZE", "WORLD_SIZE",     "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
        "SLURM_JOB_ID",     "SLURM_STEP_ID",  "SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

static void expect_gang(const char *name, uint32_t ranks)
{
    struct ct_gang_name gang = {.ranks = 0};
    EXPECT_EQ(ct_gang_name_find(&gang), name != NULL);
    EXPECT(!name || (strcmp(gang.name, name) == 0 && gang.ranks == ranks));
}

static void launchers_name_the_gang(void)
{
    clear_launchers();
    expect_gang(NULL, 0);
    setenv("MASTER_ADDR", "10.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    expect_gang(NULL, 0); /* the number of ranks is missing */
    setenv("WORLD_SIZE", "4", 1);
    expect_gang("torch 10.0.0.1 29500", 4);
    setenv("LOCAL_WORLD_SIZE", "2", 1); /* the other two are on another machine */
    expect_gang("torchrun 10.0.0.1 29500", 2);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    expect_gang(NULL, 0);
    setenv("COTENANT_GANG", "job", 1);
    setenv("COTENANT_RANKS", "8", 1);
    expect_gang(" job ", 8);
    static const char *const wrong[] = {"", "0", "1", "33", "-2", "2x", "two", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        clear_launchers();
        setenv("COTENANT_GANG", "job", 1);
        setenv("COTENANT_RANKS", wrong[i], 1);
        expect_gang(NULL, 0);
    }
    clear_launchers();
    setenv("PMIX_NAMESPACE", "prterun-host-7", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "32", 1);
    expect_gang("mpi prterun-host-7 ", 32);
    clear_launchers();
    setenv("SLURM_JOB_ID", "17", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "4(x2)", 1);
    expect_gang("slurm 17 0", 4);
    setenv("SLURM_STEP_TASKS_PER_NODE", "4(x2),1", 1); /* this may be the machine with one */
    expect_gang(NULL, 0);
    clear_launchers();
}

static void request_names_the_gang(void)
{
    struct ct_message_value value;
    static unsigned char frame[sizeof request.bytes];
    uint64_t ranks;
    clear_variables();
    clear_launchers();
    setenv("COTENANT_SOCKET", "/run/node.sock", 1);
    for (int has_gang = 0; has_gang < 2; has_gang++) {
        if (has_gang) {
            setenv("COTENANT_GANG", "job", 1);
            setenv("COTENANT_RANKS", "2", 1);
        }
        EXPECT_EQ(ct_join_request_make(&request, 0), CT_JOIN_REQUESTED);
        const size_t count = ct_join_request_complete(&request, -1, 0, frame) - CT_FRAME_LENGTH_BYTES;
        const unsigned char *bytes = frame + CT_FRAME_LENGTH_BYTES;
        EXPECT_EQ(ct_message_find(bytes, count, "gang", &value), has_gang);
        EXPECT(!has_gang || ct_message_is(&value, " job "));
        EXPECT_EQ(ct_message_find_number(bytes, count, "ranks", 32, &ranks), has_gang);
        EXPECT_EQ(ct_message_find(bytes, count, "generation", &value), 1); /* the number of entries is right */
    }
    clear_variables();
    clear_launchers();
}

int main(void)
{
    launchers_name_the_gang();
    request_names_the_gang();
    written_values_are_read();
    text_that_is_not_utf8_is_replaced();
    any_bytes_are_read_within_bounds();
    nested_and_endless_values_are_refused();
    node_sets_only_its_own_variables();
    choice_of_devices_is_narrowed_but_not_replaced();
    program_without_variables_does_not_join();
    impossible_requests_name_the_variable();
    grant_file_names_the_socket();
    return 0;
}

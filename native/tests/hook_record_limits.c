/* The record at its limits: more kernels than it can hold, long names, reused handles, and child processes. */
#include "hook_setup.h"

#include <sys/wait.h>

enum { KERNELS_BEYOND_LIMIT = CT_RECORD_KERNELS + 500 };

static const struct ct_record_kernel *kernels(const struct ct_session *session)
{
    return (const void *)((const char *)session->record.header + CT_RECORD_KERNELS_AT);
}

static void names_follow_reused_handles(struct ct_session *session)
{
    char longest[CT_RECORD_NAME_BYTES + 200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    ct_function_note(session, 0x1000, 7, "first");
    ct_function_note(session, 0x2000, 8, longest);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(test_launch(0x2000, 1, NULL), CUDA_SUCCESS);
    EXPECT(strcmp(kernels(session)[0].name, "first") == 0);
    EXPECT_EQ(strlen(kernels(session)[1].name), CT_RECORD_NAME_BYTES - 1);
    ct_functions_forget(session, 7);
    ct_function_note(session, 0x1000, 9, "second");
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(test_launch(0x2000, 1, NULL), CUDA_SUCCESS);
    EXPECT(strcmp(kernels(session)[2].name, "second") == 0);
    EXPECT_EQ(kernels(session)[1].launches, 2);
    /* Another handle with the same name is the same kernel; a handle without a name is a kernel too. */
    ct_function_note(session, 0x3000, 10, "second");
    EXPECT_EQ(test_launch(0x3000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(kernels(session)[2].launches, 2);
    EXPECT_EQ(test_launch(0x4000, 1, NULL), CUDA_SUCCESS);
    EXPECT(strcmp(kernels(session)[3].name, "unnamed") == 0);
    /* Failed launches are not counted. */
    uint64_t calls = session->record.header->calls;
    EXPECT_EQ(test_launch(0, 1, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(test_launch(0x1000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(session->record.header->calls, calls);
}

/* Names that differ only beyond what the record keeps of them are different kernels. */
static void long_names_are_different_kernels(struct ct_session *session)
{
    const struct ct_shape shape = {{1, 1, 1}, {32, 1, 1}, 0};
    char name[CT_RECORD_NAME_BYTES + 200];
    memset(name, 'y', sizeof name - 1);
    name[sizeof name - 1] = 0;
    ct_function_note(session, 0x8000, 7, name);
    name[sizeof name - 2] = 'z';
    ct_function_note(session, 0x8100, 7, name);
    EXPECT_EQ(test_launch(0x8000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(test_launch(0x8100, 1, NULL), CUDA_SUCCESS);
    EXPECT(ct_identity(session, 0x8000, &shape)->number != ct_identity(session, 0x8100, &shape)->number);
}

static void reloaded_functions_reuse_their_entries(struct ct_session *session)
{
    uint32_t functions = session->function_count, identities = session->identity_count;
    for (int i = 0; i < 2 * CT_FUNCTIONS; i++) { /* a program that creates and destroys the same graph */
        ct_function_note(session, 0x5000, 0x5000, "graph");
        EXPECT_EQ(test_launch(0x5000, 1, NULL), CUDA_SUCCESS);
        ct_functions_forget(session, 0x5000);
    }
    EXPECT_EQ(session->function_count, functions + 1);
    EXPECT_EQ(session->identity_count, identities + 1);
}

static void destroyed_context_keeps_names_of_graphs(struct ct_session *session)
{
    const char *name = NULL;
    ct_function_note(session, 0x6000, 0x6000, "graph of another context");
    ct_function_note(session, 0x7000, 0x7100, "function");
    ct_functions_forget(session, 0);
    EXPECT(ct_function_name(session, 0x6000, &name) && strcmp(name, "graph of another context") == 0);
    EXPECT(!ct_function_name(session, 0x7000, &name));
}

static void forked_child_has_its_own_record(struct ct_session *session)
{
    int status;
    uint64_t calls = session->record.header->calls;
    pid_t child = fork();
    if (child == 0) {
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
        struct ct_session *own = ct_session();
        EXPECT(own && own->record.header->calls == 1 && own->record.header->pid == (uint32_t)getpid());
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(session->record.header->calls, calls);
}

static void full_record_counts_further_launches(struct ct_session *session)
{
    const struct ct_record_header *header = session->record.header;
    uint64_t before = header->calls + header->uncounted;
    for (int pass = 0; pass < 2; pass++)
        for (unsigned grid = 1; grid <= KERNELS_BEYOND_LIMIT; grid++)
            EXPECT_EQ(test_launch(0x1000, grid, NULL), CUDA_SUCCESS);
    EXPECT_EQ(header->kernels, CT_RECORD_KERNELS);
    EXPECT(header->intervals <= CT_RECORD_INTERVALS);
    EXPECT(header->uncounted >= 2 * 500);
    EXPECT_EQ(header->calls + header->uncounted, before + 2 * KERNELS_BEYOND_LIMIT);
    uint64_t launches = 0;
    for (uint32_t i = 0; i < header->kernels; i++)
        launches += kernels(session)[i].launches;
    EXPECT_EQ(launches, header->calls);
    /* Kernels that did not fit have an identity too, so that the driver is not asked for their name at every launch. */
    const struct ct_shape last = {{KERNELS_BEYOND_LIMIT, 1, 1}, {32, 1, 1}, 0};
    const struct ct_identity *identity = ct_identity(session, 0x1000, &last);
    EXPECT(identity && !identity->kernel);
}

/* The kernels that were used least recently are evicted; a kernel that is in use is kept with its number. */
static void full_tables_evict_the_least_recently_used(struct ct_session *session)
{
    const struct ct_shape used = {{7, 1, 1}, {64, 1, 1}, 0};
    EXPECT_EQ(cuLaunchKernel((CUfunction)0x1000, 7, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    const uint32_t number = ct_identity(session, 0x1000, &used)->number;
    const uint64_t before = session->record.header->calls + session->record.header->uncounted;
    for (unsigned grid = 1; grid <= 3 * CT_IDENTITIES; grid++) {
        EXPECT_EQ(test_launch(0x1000, 100000 + grid, NULL), CUDA_SUCCESS);
        const struct ct_shape shape = {{100000 + grid, 1, 1}, {32, 1, 1}, 0};
        EXPECT(ct_identity(session, 0x1000, &shape) != NULL);
        if (grid % 1000 == 0)
            EXPECT_EQ(cuLaunchKernel((CUfunction)0x1000, 7, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    }
    EXPECT_EQ(session->record.header->calls + session->record.header->uncounted,
              before + 3 * CT_IDENTITIES + 3 * CT_IDENTITIES / 1000);
    EXPECT_EQ(ct_identity(session, 0x1000, &used)->number, number);
    const struct ct_shape oldest = {{100001, 1, 1}, {32, 1, 1}, 0};
    EXPECT(!ct_identity(session, 0x1000, &oldest));
    for (uintptr_t handle = 0x100000; handle < 0x100000 + 3 * CT_FUNCTIONS; handle++) {
        ct_function_note(session, handle, 0x99, "one of many");
        EXPECT_EQ(test_launch(handle, 1, NULL), CUDA_SUCCESS);
    }
    EXPECT(session->function_count <= CT_FUNCTIONS && session->identity_count <= CT_IDENTITIES);
}

int main(void)
{
    test_hook_open("1", "0");
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS); /* the first call finds the driver */
    struct ct_session *session = ct_session();
    EXPECT(session && session->is_measuring);
    EXPECT_EQ(cuMemAlloc_v2(&(CUdeviceptr){0}, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&(CUdeviceptr){0}, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(session->record.header->allocations, 1);
    EXPECT_EQ(session->record.header->frees, 1);
    names_follow_reused_handles(session);
    long_names_are_different_kernels(session);
    reloaded_functions_reuse_their_entries(session);
    destroyed_context_keeps_names_of_graphs(session);
    forked_child_has_its_own_record(session);
    full_record_counts_further_launches(session);
    full_tables_evict_the_least_recently_used(session);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxDestroy_v2(NULL), CUDA_ERROR_NOT_SUPPORTED); /* missing in this driver: no effect */
    EXPECT_EQ(test_hook_close(), 2);
    return 0;
}

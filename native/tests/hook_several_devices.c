/* A process that uses two devices of its tenant: each call counts on the device on which it acts, memory is released where it
 * was allocated, and a collective that passes on one device passes on the other. */
#include "hook_gate_setup.h"

#include "hook/launch/ranks.h"
#include "hook/launch/work.h"
#include "hook/memory/memory.h"

#include <stdio.h>

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags);
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags);

static struct node_pages *nodes[2]; /* by device */

/* Makes this process an offline tenant next to an online one on both devices. */
static void make_two_devices(uint32_t index)
{
    const struct ct_gate_rules rules = rules_of(2, 7);
    for (uint32_t device = 0; device < 2; device++) {
        make_node_pages(&rules);
        become_member_on(device, index, 1, index, 1);
        nodes[device] = node;
    }
}

static struct ct_gate_page *mine_on(uint32_t device, uint32_t index)
{
    return &nodes[device]->processes[index].gate;
}

static CUresult launch_on(uint32_t device, uintptr_t function)
{
    CT_ON_DEVICE(device);
    return test_launch(function, 1, NULL);
}

static void note_on(uint32_t device, uintptr_t function, const char *name)
{
    CT_ON_DEVICE(device);
    ct_function_note(ct_session(), function, 0x77, name);
}

static void launches_count_on_their_own_device(void)
{
    make_two_devices(ONLINE);
    open_session();
    for (int i = 0; i < 5; i++)
        EXPECT_EQ(launch_on(1, 0x1000), CUDA_SUCCESS);
    EXPECT_EQ(launch_on(0, 0x1000), CUDA_SUCCESS);
    EXPECT_EQ(mine_on(0, ONLINE)->counts.launches, 1);
    EXPECT_EQ(mine_on(1, ONLINE)->counts.launches, 5);
    EXPECT(ct_page->devices[0].session != ct_page->devices[1].session);
    EXPECT(!ct_page->devices[2].session);
}

/* The idle driver's pointers are all equal, so the memory of one device is used at a time. */
static void memory_is_released_where_it_was_allocated(void)
{
    CUdeviceptr pointer = 0;
    make_two_devices(ONLINE);
    open_session();
    for (uint32_t device = 0; device < 2; device++) {
        struct ct_ledger_line *own = &nodes[device]->processes[ONLINE].ledger.line;
        struct ct_ledger_line *other = &nodes[1 - device]->processes[ONLINE].ledger.line;
        {
            CT_ON_DEVICE(device);
            EXPECT_EQ(cuMemAlloc_v2(&pointer, 1024), CUDA_SUCCESS);
        }
        EXPECT_EQ(own->allocated_bytes, 1024);
        EXPECT_EQ(other->allocated_bytes, 0);
        EXPECT_EQ(ct_pointer_device(pointer), device);
        {
            CT_ON_DEVICE(1 - device);
            EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
        }
        EXPECT_EQ(own->allocated_bytes, 0);
        EXPECT_EQ(own->begun, own->ended);
        EXPECT_EQ(ct_pointer_device(pointer), CT_ANY_DEVICE);
    }
}

static void begin_collectives(void)
{
    make_two_devices(OFFLINE);
    open_session();
    for (uint32_t device = 0; device < 2; device++) {
        mine_on(device, ONLINE)->generation = 1; /* present, but quiet */
        EXPECT_EQ(launch_on(device, 0x1000), CUDA_SUCCESS);
        note_on(device, 0x2000, "ncclDevKernel_AllReduce");
    }
}

static void collective_that_passes_on_one_device_passes_on_the_other(void)
{
    begin_collectives();
    for (int i = 0; i < 4; i++) {
        const uint32_t first = i % 2, second = 1 - first;
        EXPECT_EQ(launch_on(first, 0x2000), CUDA_SUCCESS);
        EXPECT_EQ(ct_page->devices[second].owed, 1);
        EXPECT_EQ(launch_on(second, 0x2000), CUDA_SUCCESS);
        EXPECT_EQ(ct_page->devices[first].owed, 0);
        EXPECT_EQ(ct_page->devices[second].owed, 0);
    }
    for (uint32_t device = 0; device < 2; device++)
        EXPECT_EQ(mine_on(device, OFFLINE)->counts.passed[CT_GATE_AGREED], 2);
}

/* The holder of the second device has become active in between, and the node has paused the tenant there: the first device
 * runs the collective already. */
static void agreed_collective_passes_next_to_an_active_holder(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    begin_collectives();
    EXPECT_EQ(launch_on(0, 0x2000), CUDA_SUCCESS);
    mine_on(1, ONLINE)->busy_ns = UINT64_MAX / 4;
    mine_on(1, ONLINE)->sequence = 1;
    rules.processes[1].flags = CT_TENANT_PAUSED;
    ct_tenant_table_write(&nodes[1]->table, &rules);
    EXPECT_EQ(launch_on(1, 0x2000), CUDA_SUCCESS);
    EXPECT_EQ(mine_on(1, OFFLINE)->counts.passed[CT_GATE_AGREED], 1);
}

static void collective_waits_while_another_device_does_not_admit_it(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    begin_collectives();
    rules.processes[1].flags = CT_TENANT_PAUSED;
    ct_tenant_table_write(&nodes[1]->table, &rules);
    struct ct_session *session = ct_page->devices[0].session;
    struct ct_launch launch = {.session = session, .request = {.expect_ns = 1000, .is_collective = 1}};
    ct_lock(session);
    EXPECT(ct_ranks_exist(session));
    EXPECT(!ct_ranks_are_open(session, &launch, session->gateway->instant.last_ns));
    ct_unlock(session);
    rules.processes[1].flags = 0;
    ct_tenant_table_write(&nodes[1]->table, &rules);
    ct_ranks_collect(session);
    ct_lock(session);
    const uint64_t later_ns = session->gateway->instant.last_ns + UINT64_C(1000000000); /* its work is expected to have ended */
    EXPECT(ct_ranks_are_open(session, &launch, later_ns));
    /* Another thread that holds the lock of the other session may wait for ours. */
    ct_lock(ct_page->devices[1].session);
    EXPECT(!ct_ranks_are_open(session, &launch, later_ns));
    ct_unlock(ct_page->devices[1].session);
    ct_unlock(session);
}

static void agreement_lapses(void)
{
    begin_collectives();
    struct ct_session *session = ct_page->devices[1].session;
    ct_page->devices[1].owed = 3;
    ct_page->devices[1].owed_ns = 1000;
    EXPECT(ct_ranks_take(session, 1000 + CT_RANKS_OWED_NS));
    EXPECT_EQ(ct_page->devices[1].owed, 2);
    EXPECT(!ct_ranks_take(session, 1001 + CT_RANKS_OWED_NS));
    EXPECT_EQ(ct_page->devices[1].owed, 0);
}

static void launch_into_a_stream_that_waits_for_a_value_is_a_collective(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    const CUstream stream = (CUstream)0x5000, other = (CUstream)0x6000;
    CUstreamBatchMemOpParams ops[2] = {{.operation = 2}, {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64}};
    make_gate(&rules, OFFLINE);
    page_of(ONLINE)->generation = 1;
    struct ct_session *session = open_session();
    EXPECT_EQ(cuStreamWaitValue32_v2(stream, 0x100, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitValue32_v2(stream, 0x100, 2, 0), CUDA_SUCCESS);
    EXPECT_EQ(session->waiting_stream_count, 1);
    EXPECT_EQ(test_launch(0x1000, 1, other), CUDA_SUCCESS);
    EXPECT_EQ(session->waiting_stream_count, 1);
    EXPECT_EQ(test_launch(0x1000, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(session->waiting_stream_count, 0);
    EXPECT_EQ(cuStreamBatchMemOp_v2(stream, 1, ops, 0), CUDA_SUCCESS); /* it only writes */
    EXPECT_EQ(session->waiting_stream_count, 0);
    EXPECT_EQ(cuStreamBatchMemOp_v2(stream, 2, ops, 0), CUDA_SUCCESS);
    EXPECT_EQ(session->waiting_stream_count, 1);
    for (uintptr_t i = 1; i <= 2 * CT_WAITING_STREAMS; i++)
        EXPECT_EQ(cuStreamWaitValue32_v2((CUstream)(0x10000 * i), 0x100, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(session->waiting_stream_count, CT_WAITING_STREAMS);
}

int main(void)
{
    static void (*const cases[])(void) = {
        launches_count_on_their_own_device,
        memory_is_released_where_it_was_allocated,
        collective_that_passes_on_one_device_passes_on_the_other,
        agreed_collective_passes_next_to_an_active_holder,
        collective_waits_while_another_device_does_not_admit_it,
        agreement_lapses,
        launch_into_a_stream_that_waits_for_a_value_is_a_collective,
    };
    return run_cases(cases, sizeof cases / sizeof cases[0]);
}

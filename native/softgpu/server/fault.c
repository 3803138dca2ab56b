/* Faults: the clients that each kind affects, applied immediately, at a later launch or after a timeout. */
#include "softgpu/server/fault.h"
#include "softgpu/abi/cuda.h"
#include "softgpu/server/server.h"

#include <string.h>

/* Codes are those of the driver API, Xids those of NVIDIA's catalogue. docs/how-to/inject-faults.md lists the sources. */
struct kind {
    uint32_t code, xid;
    const char *text;
};

static const struct kind kinds[] = {
    [SG_FAULT_ILLEGAL_ADDRESS] = {CUDA_ERROR_ILLEGAL_ADDRESS, 31, "MMU fault: an access to an address not mapped"},
    [SG_FAULT_MISALIGNED_ADDRESS] = {CUDA_ERROR_MISALIGNED_ADDRESS, 13, "SM exception: an address not aligned"},
    [SG_FAULT_ILLEGAL_INSTRUCTION] = {CUDA_ERROR_ILLEGAL_INSTRUCTION, 13, "SM exception: an illegal instruction"},
    [SG_FAULT_ASSERT] = {CUDA_ERROR_ASSERT, 43, "a kernel trapped and its channel was reset"},
    [SG_FAULT_STACK] = {CUDA_ERROR_HARDWARE_STACK_ERROR, 13, "SM exception: a stack error"},
    [SG_FAULT_LAUNCH_FAILED] = {CUDA_ERROR_LAUNCH_FAILED, 13, "SM exception"},
    [SG_FAULT_LAUNCH_TIMEOUT] = {CUDA_ERROR_LAUNCH_TIMEOUT, 8, "a kernel exceeded its time limit"},
    [SG_FAULT_ECC_CONTAINED] = {CUDA_ERROR_ECC_UNCORRECTABLE, 94, "contained uncorrectable memory error"},
    [SG_FAULT_MPS_SERVER_DEATH] = {CUDA_ERROR_MPS_RPC_FAILURE, 0, ""},
    [SG_FAULT_ECC] = {CUDA_ERROR_ECC_UNCORRECTABLE, 48, "uncorrectable memory error"},
    [SG_FAULT_DEVICE_LOST] = {CUDA_ERROR_UNKNOWN, 79, "the GPU has fallen off the bus"},
};

static const char *text_of(uint32_t xid)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].xid == xid && kinds[i].text)
            return kinds[i].text;
    return xid == 45 ? "its channels were removed before its work was done" : "fault";
}

static struct sg_client *client_at(const struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    return client && client->is_registered && client->ring ? client : NULL;
}

static uint32_t fail_client(struct sg_server *server, int index, uint32_t code)
{
    struct sg_client *client = client_at(server, index);
    if (!client || client->fault.code)
        return 0; /* the first fault is kept */
    client->fault = (struct sg_client_fault){.code = code};
    /* Use the model's instant: at a launch, other rings may hold work that was submitted before the current time. */
    ct_device_client_stop(server->device, ct_device_now(server->device), client->model);
    memset(client->hosts, 0, sizeof client->hosts); /* the client will not report them as done */
    atomic_store(&client->ring->fault, code);
    sg_checkpoint_fail(server, index);
    return 1;
}

/* The caller invalidates the projections of all clients. */
static uint32_t fail_group(struct sg_server *server, uint32_t group, uint32_t code)
{
    uint32_t affected = 0;
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (client_at(server, i) && server->clients[i]->group == group && sg_client_has_context(server, i))
            affected += fail_client(server, i, code);
    return affected;
}

static uint32_t fail_with_xid(struct sg_server *server, int index, uint32_t code, uint32_t xid, const char *text)
{
    struct sg_client *client = client_at(server, index);
    if (!client || client->fault.code || (client->group && !sg_client_has_context(server, index)))
        return 0;
    if (xid)
        sg_xid_add(server, xid, client->pid, text);
    uint32_t affected = client->group ? fail_group(server, client->group, code) : fail_client(server, index, code);
    if (client->group)
        sg_group_notify(server, client->group, code);
    sg_invalidate_projections(server);
    return affected;
}

void sg_fault(struct sg_server *server, int index, uint32_t code, uint32_t xid)
{
    sg_pump(server, sg_now_ns());
    fail_with_xid(server, index, code, xid, text_of(xid));
}

uint32_t sg_fault_alone(struct sg_server *server, int index, uint32_t code)
{
    sg_pump(server, sg_now_ns());
    uint32_t affected = fail_client(server, index, code);
    if (affected)
        sg_invalidate_projections(server);
    return affected;
}

uint32_t sg_fault_group(struct sg_server *server, uint32_t group, uint32_t code, uint32_t xid)
{
    sg_pump(server, sg_now_ns());
    uint32_t affected = group ? fail_group(server, group, code) : 0;
    if (!affected)
        return 0;
    if (xid)
        sg_xid_add(server, xid, 0, text_of(xid));
    sg_invalidate_projections(server);
    return affected;
}

int sg_group_refuses(const struct sg_server *server, uint32_t group)
{
    for (int i = 0; group && i < SG_CONNECTIONS; i++)
        if (client_at(server, i) && server->clients[i]->group == group && server->clients[i]->fault.code &&
            /* This one does not affect other clients. */
            server->clients[i]->fault.code != CUDA_ERROR_MPS_CLIENT_TERMINATED)
            return 1;
    return 0;
}

uint32_t sg_context_refused(const struct sg_server *server, int index)
{
    const struct sg_client *client = server->clients[index];
    if (client->fault.code)
        return client->fault.code;
    return sg_group_refuses(server, client->group) ? CUDA_ERROR_MPS_SERVER_NOT_READY : 0;
}

/* The driver's documentation requires a new process after every fault except an assert. */
void sg_fault_reset_client(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (client->fault.code != CUDA_ERROR_ASSERT || client->group)
        return;
    for (uint32_t i = 0; i <= CT_DEVICE_MAX_HANDLES; i++)
        if (server->contexts[i].client == index + 1 &&
            ct_device_context_query(server->device, server->contexts[i].handle) != CT_DEVICE_STALE)
            return;
    client->fault = (struct sg_client_fault){0};
    client->state = CU_PROCESS_STATE_RUNNING;
    atomic_store(&client->ring->fault, 0);
}

void sg_fault_death(struct sg_server *server, int index)
{
    struct sg_client *client = client_at(server, index);
    if (!client || server->stop || client->fault.code || !client->group || client->is_leaving ||
        server->faults.is_death_isolated)
        return;
    sg_pump(server, sg_now_ns());
    if (client->fault.code || !sg_pump_busy(server, client))
        return;
    sg_fault(server, index, CUDA_ERROR_LAUNCH_FAILED, 45);
}

/* ---- Faults at a launch ------------------------------------------------------------------------------------------ */

/* Limit the kernel to one wave, so that it occupies the resources of its first wave indefinitely. */
static void make_endless(const struct sg_server *server, struct ct_kernel *kernel)
{
    const struct ct_device_config *config = ct_device_config(server->device);
    uint32_t per_sm = kernel->blocks_per_sm ? kernel->blocks_per_sm
                                            : ct_device_occupancy(config, kernel->threads_per_block,
                                                                  kernel->registers_per_thread,
                                                                  kernel->shared_bytes_per_block);
    uint64_t max_blocks = (uint64_t)per_sm * config->sm_count;
    kernel->blocks = kernel->blocks < max_blocks ? kernel->blocks : max_blocks;
    kernel->block_ns = SG_HANG_BLOCK_NS;
    kernel->bytes_per_block = 0;
}

int sg_fault_at_launch(struct sg_server *server, int index, struct ct_kernel *kernel, uint64_t at_ns)
{
    struct sg_client_fault *fault = &server->clients[index]->fault;
    if (!fault->launches || --fault->launches)
        return 0;
    if (fault->kind == SG_FAULT_HANG) {
        make_endless(server, kernel);
        fault->hang_due_ns = fault->hang_ns ? at_ns + fault->hang_ns : 0;
        return 0;
    }
    const struct kind *kind = &kinds[fault->kind];
    ct_device_advance(server->device, at_ns);
    fail_with_xid(server, index, kind->code, kind->xid, kind->text);
    return 1;
}

void sg_fault_launched(struct sg_server *server, int index, const struct ct_kernel *kernel, uint64_t op)
{
    if (kernel->block_ns == SG_HANG_BLOCK_NS)
        server->clients[index]->fault.hung_op = op;
}

static void clear(struct sg_server *server, struct sg_client *client)
{
    if (client->fault.code)
        return;
    if (client->fault.hung_op)
        ct_device_op_cut(server->device, sg_now_ns(), client->fault.hung_op);
    client->fault = (struct sg_client_fault){0};
    sg_invalidate_projections(server);
}

/* ---- Timeouts ---------------------------------------------------------------------------------------------------- */

static void set_clock(struct sg_server *server, uint32_t speed, uint64_t due_ns)
{
    ct_device_set_speed(server->device, sg_now_ns(), speed);
    server->faults.clock_due_ns = due_ns;
    sg_invalidate_projections(server);
}

uint64_t sg_fault_due_ns(const struct sg_server *server)
{
    uint64_t due_ns = server->faults.clock_due_ns ? server->faults.clock_due_ns : CT_DEVICE_NEVER;
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        const struct sg_client *client = server->clients[i];
        if (client && client->fault.hang_due_ns && client->fault.hang_due_ns < due_ns)
            due_ns = client->fault.hang_due_ns;
    }
    return due_ns;
}

void sg_fault_tick(struct sg_server *server, uint64_t now_ns)
{
    const struct kind *timeout = &kinds[SG_FAULT_LAUNCH_TIMEOUT];
    if (sg_fault_due_ns(server) > now_ns)
        return;
    sg_pump(server, now_ns);
    if (server->faults.clock_due_ns && server->faults.clock_due_ns <= now_ns)
        set_clock(server, CT_DEVICE_FULL_SPEED, 0);
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        struct sg_client *client = client_at(server, i);
        if (!client || !client->fault.hang_due_ns || client->fault.hang_due_ns > now_ns)
            continue;
        client->fault.hang_due_ns = 0;
        /* Its context and the kernel may have ended. */
        if (ct_device_op_query(server->device, client->fault.hung_op) == CT_DEVICE_NOT_READY)
            fail_with_xid(server, i, timeout->code, timeout->xid, timeout->text);
    }
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static uint32_t ecc(struct sg_server *server)
{
    int remaps = ct_device_config(server->device)->compute_major >= 8;
    uint32_t affected = 0;
    sg_xid_add(server, 48, 0, kinds[SG_FAULT_ECC].text);
    sg_xid_add(server, 63, 0, remaps ? "a row is marked for remapping" : "a page is retired");
    if (remaps)
        sg_xid_add(server, 95, 0, "uncontained memory error");
    for (int i = 0; i < SG_CONNECTIONS; i++)
        affected += fail_client(server, i, CUDA_ERROR_ECC_UNCORRECTABLE);
    return affected;
}

static uint32_t lose_device(struct sg_server *server)
{
    const struct kind *kind = &kinds[SG_FAULT_DEVICE_LOST];
    uint32_t affected = 0;
    if (!server->faults.lost)
        sg_xid_add(server, kind->xid, 0, kind->text);
    server->faults.lost = 1;
    for (int i = 0; i < SG_CONNECTIONS; i++)
        affected += fail_client(server, i, kind->code);
    return affected;
}

static int reset(struct sg_server *server, struct sg_reply *reply)
{
    for (int i = 0; i < SG_CONNECTIONS; i++)
        reply->a += client_at(server, i) != NULL;
    if (reply->a)
        return CT_DEVICE_NOT_READY;
    server->faults.lost = 0;
    server->faults.ecc_errors_at_reset = server->faults.ecc_errors;
    server->faults.rows_at_reset = server->faults.rows;
    set_clock(server, CT_DEVICE_FULL_SPEED, 0);
    return CT_DEVICE_OK;
}

/* Apply a fault to one client, immediately or at a launch. */
static uint32_t apply_fault(struct sg_server *server, int index, uint32_t kind, uint64_t launch, uint64_t hang_ns)
{
    struct sg_client *client = client_at(server, index);
    if (kind == SG_FAULT_CLEAR) {
        clear(server, client);
        return 1;
    }
    if (kind == SG_FAULT_MPS_SERVER_DEATH)
        return sg_fault_group(server, client->group, kinds[kind].code, 0);
    if (kind == SG_FAULT_HANG && !launch)
        launch = 1;
    if (!launch)
        return fail_with_xid(server, index, kinds[kind].code, kinds[kind].xid, kinds[kind].text);
    if (client->fault.code)
        return 0;
    client->fault.kind = kind;
    client->fault.launches = launch;
    client->fault.hang_ns = hang_ns;
    return 1;
}

static int inject(struct sg_server *server, int requester, const struct sg_request *request, struct sg_reply *reply)
{
    uint32_t kind = (uint32_t)request->a, target = (uint32_t)request->b, launch = (uint32_t)(request->b >> 32);
    int is_found = 0;
    if (request->c > SG_KERNEL_MAX_NS || (launch && (kind == SG_FAULT_MPS_SERVER_DEATH || kind == SG_FAULT_CLEAR)))
        return CT_DEVICE_INVALID;
    if (kind == SG_FAULT_ECC_CONTAINED && ct_device_config(server->device)->compute_major < 8)
        return CT_DEVICE_INVALID;
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        const struct sg_client *client = client_at(server, i);
        int is_target = target == SG_FAULT_SELF ? i == requester
                                                : client && (target == SG_FAULT_ALL || (uint32_t)client->pid == target);
        if (!client || !is_target)
            continue;
        is_found = 1;
        reply->a += apply_fault(server, i, kind, launch, request->c);
    }
    return is_found || target == SG_FAULT_ALL ? CT_DEVICE_OK : CT_DEVICE_STALE;
}

static int device_fault(struct sg_server *server, const struct sg_request *request, struct sg_reply *reply)
{
    if (request->b)
        return CT_DEVICE_INVALID;
    if (request->a == SG_FAULT_RESET)
        return reset(server, reply);
    if (request->a == SG_FAULT_MPS_DEATHS) {
        server->faults.is_death_isolated = !request->c;
        return CT_DEVICE_OK;
    }
    reply->a = request->a == SG_FAULT_ECC ? ecc(server) : lose_device(server);
    sg_invalidate_projections(server);
    return CT_DEVICE_OK;
}

int sg_fault_answer(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply)
{
    uint64_t now_ns = sg_now_ns();
    if (request->kind == SG_XID_NEXT)
        return sg_xid_next(server, request->a, reply);
    sg_pump(server, now_ns); /* apply earlier submissions first */
    if (request->kind == SG_CLOCK) {
        reply->a = ct_device_speed(server->device);
        if (!request->a || request->a > CT_DEVICE_FULL_SPEED || request->b > SG_KERNEL_MAX_NS)
            return CT_DEVICE_INVALID;
        set_clock(server, (uint32_t)request->a, request->b ? now_ns + request->b : 0);
        return CT_DEVICE_OK;
    }
    switch (request->a) {
    case SG_FAULT_ECC:
    case SG_FAULT_DEVICE_LOST:
    case SG_FAULT_RESET:
    case SG_FAULT_MPS_DEATHS:
        return device_fault(server, request, reply);
    default:
        return request->a >= 1 && request->a <= SG_FAULT_CLEAR ? inject(server, index, request, reply)
                                                               : CT_DEVICE_INVALID;
    }
}

/* IPC handles for memory and events. A handle of 64 bytes names the device server and the object. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

#define MEMORY_MAGIC UINT64_C(0x6d656d6f72790001)
#define EVENT_MAGIC UINT64_C(0x6576656e74000001)

/* Content of the 64 opaque bytes of a handle. */
struct ticket {
    uint64_t magic;
    uint8_t uuid[16];
    uint64_t name, token; /* of the share or event at the server */
    uint64_t bytes;
    uint64_t flags;
};
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "a ticket fits a handle");
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcEventHandle), "a ticket fits a handle");

/* Move the allocation from private pages to a file at the same address. The allocation does not share pages with
 * others. */
static CUresult move_into_file(struct sg_memory *memory)
{
    uint64_t bytes = (memory->charged_bytes + PAGE - 1) / PAGE * PAGE, share;
    int descriptor;
    CUresult result = sg_share_make(memory->device, memory->context->model, SG_SHARE_ALLOCATION, memory->charged_bytes,
                                    bytes, &share, &descriptor);
    if (result != CUDA_SUCCESS)
        return result;
    int failed = sg_share_write(descriptor, memory->start, bytes) < 0 ||
                 mmap((void *)(uintptr_t)memory->start, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED | MAP_NORESERVE, descriptor, 0) == MAP_FAILED;
    close(descriptor);
    if (!failed) {
        memory->share = share;
        return CUDA_SUCCESS;
    }
    sg_share_close(memory->device, share); /* this releases the bytes, so charge them to the context again */
    struct sg_request request = {.kind = SG_MEMORY_TAKE, .a = memory->context->model, .b = memory->charged_bytes};
    struct sg_reply reply;
    sg_call(&memory->device->connection, &request, &reply);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_memory *memory = sg_memory_at(pointer);
    /* Memory of pools, mappings and other processes is shared by other calls; memory of a graph changes with each
     * launch. */
    if (!handle || !memory || memory->kind != SG_MEMORY_DEVICE || memory->pool || memory->physical || memory->opened ||
        memory->is_ending || memory->is_variable || memory->is_of_graph)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!memory->share)
        result = move_into_file(memory);
    struct sg_reply reply;
    int descriptor = -1;
    uint64_t share, token;
    if (result == CUDA_SUCCESS)
        result = sg_share_open(memory->device, memory->share, 0, SG_SHARE_ALLOCATION, &reply, &descriptor);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    const struct sg_device *device = sg_share_from_file(descriptor, &share, &token);
    close(descriptor);
    if (!device)
        return sg_leave(CUDA_ERROR_OPERATING_SYSTEM);
    struct ticket ticket = {.magic = MEMORY_MAGIC, .name = share, .token = token, .bytes = memory->bytes};
    memcpy(ticket.uuid, device->uuid, sizeof ticket.uuid);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &ticket, sizeof ticket);
    return sg_leave(CUDA_SUCCESS);
}

/* Return memory that this context has opened before. It keeps its address. */
static struct sg_memory *find_opened(CUcontext context, uint64_t share)
{
    struct sg_memory *memory = NULL;
    while ((memory = sg_memory_next(memory)) != NULL)
        if (memory->opened && memory->share == share && memory->context == context)
            return memory;
    return NULL;
}

static CUresult open_memory(CUcontext context, struct sg_device *device, const struct ticket *ticket,
                            CUdeviceptr *pointer)
{
    struct sg_reply reply;
    int descriptor;
    CUresult result =
        sg_share_open(device, ticket->name, ticket->token, SG_SHARE_ALLOCATION, &reply, &descriptor);
    if (result != CUDA_SUCCESS)
        return result;
    context = sg_owner_context(context);
    struct sg_memory *memory = find_opened(context, ticket->name);
    if (reply.c || memory || !ticket->bytes || ticket->bytes > reply.b) {
        close(descriptor);
        if (memory) { /* including memory whose ownership passed to this process */
            memory->opened++;
            *pointer = memory->start;
            return CUDA_SUCCESS;
        }
        sg_share_close(device, ticket->name);
        /* The owner cannot open its own memory. */
        return reply.c ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    void *start = mmap(NULL, reply.b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    close(descriptor);
    if (start != MAP_FAILED)
        memory = sg_memory_insert(context, device, (uintptr_t)start, ticket->bytes);
    if (!memory) {
        if (start != MAP_FAILED)
            munmap(start, reply.b);
        sg_share_close(device, ticket->name);
        return CUDA_ERROR_MAP_FAILED;
    }
    memory->share = ticket->name;
    memory->opened = 1;
    memory->charged_bytes = reply.b;
    *pointer = memory->start;
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct ticket ticket;
    memcpy(&ticket, handle.reserved, sizeof ticket);
    if (!pointer || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (ticket.magic != MEMORY_MAGIC || !ticket.token)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sg_device *device = sg_device_by_uuid(ticket.uuid);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE); /* this process cannot see the device */
    if (device != context->device && !(flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) &&
        !(context->peers >> device->ordinal & 1))
        return sg_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    return sg_leave(open_memory(context, device, &ticket, pointer));
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_memory *memory = sg_memory_at(pointer);
    if (!memory || !memory->opened || memory->start != pointer)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (memory->opened > 1) {
        memory->opened--;
        sg_share_close(memory->device, memory->share);
        return sg_leave(CUDA_SUCCESS);
    }
    uint64_t id = memory->id;
    result = sg_wait_all(context);
    memory = sg_memory_at(pointer);
    if (result == CUDA_SUCCESS && memory && memory->id == id)
        sg_memory_drop(pointer);
    return sg_leave(result);
}

API CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_EVENT, event))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!handle || !(event->flags & CU_EVENT_INTERPROCESS) || !(event->flags & CU_EVENT_DISABLE_TIMING))
        return sg_leave(handle ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    struct sg_device *device = event->context->device;
    struct sg_request request = {.kind = SG_EVENT_SHARE, .a = event->model};
    struct sg_reply reply;
    if (sg_call(&device->connection, &request, &reply) < 0)
        return sg_leave(CUDA_ERROR_DEVICE_UNAVAILABLE);
    if (reply.result != CT_DEVICE_OK)
        return sg_leave(sg_result(reply.result));
    struct ticket ticket = {.magic = EVENT_MAGIC, .name = event->model, .token = reply.a, .flags = event->flags};
    memcpy(ticket.uuid, device->uuid, sizeof ticket.uuid);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &ticket, sizeof ticket);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuIpcOpenEventHandle(CUevent *made, CUipcEventHandle handle)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct ticket ticket;
    memcpy(&ticket, handle.reserved, sizeof ticket);
    if (!made)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (ticket.magic != EVENT_MAGIC)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sg_device *device = sg_device_by_uuid(ticket.uuid);
    if (!device || device != context->device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    struct sg_request request = {.kind = SG_EVENT_OPEN, .a = ticket.name, .b = ticket.token};
    struct sg_reply reply;
    if (sg_call(&device->connection, &request, &reply) < 0)
        return sg_leave(CUDA_ERROR_DEVICE_UNAVAILABLE);
    if (reply.result != CT_DEVICE_OK)
        return sg_leave(sg_result(reply.result));
    if (reply.c)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    CUevent event = sg_new(SG_EVENT);
    if (!event)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    event->context = context;
    event->context_id = context->object.id;
    event->model = (uint32_t)ticket.name;
    event->flags = (unsigned)ticket.flags;
    event->is_shared = 1;
    *made = event;
    return sg_leave(CUDA_SUCCESS);
}

/* Memory and events of one process in another: handles of 64 bytes that say at which server to ask for what. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

#define MEMORY_MAGIC UINT64_C(0x6d656d6f72790001)
#define EVENT_MAGIC UINT64_C(0x6576656e74000001)

/* What is in the 64 opaque bytes. */
struct ticket {
    uint64_t magic;
    uint8_t uuid[16];
    uint64_t name, token; /* of the share or the event, at the server */
    uint64_t bytes;
    uint64_t flags;
};
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "a ticket fits a handle");
_Static_assert(sizeof(struct ticket) <= sizeof(CUipcEventHandle), "a ticket fits a handle");

/* From this process's own pages into a file, at the same address. The allocation has its pages for itself. */
static CUresult move_into_file(struct sg_memory *memory)
{
    uint64_t bytes = (memory->taken_bytes + PAGE - 1) / PAGE * PAGE, share;
    int descriptor;
    CUresult result = sg_share_make(memory->device, memory->context->model, SG_SHARE_ALLOCATION, memory->taken_bytes,
                                    bytes, &share, &descriptor);
    if (result != CUDA_SUCCESS)
        return result;
    int failed = sg_share_fill(descriptor, memory->start, bytes) < 0 ||
                 mmap((void *)(uintptr_t)memory->start, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED | MAP_NORESERVE, descriptor, 0) == MAP_FAILED;
    close(descriptor);
    if (!failed) {
        memory->share = share;
        return CUDA_SUCCESS;
    }
    sg_share_close(memory->device, share); /* and with it the bytes, which the context has to take again */
    struct sg_request request = {.kind = SG_MEMORY_TAKE, .a = memory->context->model, .b = memory->taken_bytes};
    struct sg_reply reply;
    sg_ask(&memory->device->link, &request, &reply);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_memory *memory = sg_memory_at(pointer);
    /* What a pool gave, what is mapped and what is another's goes other ways; a graph's comes and goes with launches. */
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
    const struct sg_device *device = sg_share_named(descriptor, &share, &token);
    close(descriptor);
    if (!device)
        return sg_leave(CUDA_ERROR_OPERATING_SYSTEM);
    struct ticket ticket = {.magic = MEMORY_MAGIC, .name = share, .token = token, .bytes = memory->bytes};
    memcpy(ticket.uuid, device->uuid, sizeof ticket.uuid);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &ticket, sizeof ticket);
    return sg_leave(CUDA_SUCCESS);
}

/* Opened before in this context: the same address again. */
static struct sg_memory *known(CUcontext context, uint64_t share)
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
    context = sg_home(context);
    struct sg_memory *memory = known(context, ticket->name);
    if (reply.c || memory || !ticket->bytes || ticket->bytes > reply.b) {
        close(descriptor);
        if (memory) { /* also one that has become its own, the maker being dead */
            memory->opened++;
            *pointer = memory->start;
            return CUDA_SUCCESS;
        }
        sg_share_close(device, ticket->name);
        return reply.c ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE; /* its own process has it already */
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
    memory->taken_bytes = reply.b;
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
        return sg_leave(CUDA_ERROR_INVALID_DEVICE); /* not one of those this process can see */
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
    result = sg_all_quiet(context);
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
    if (sg_ask(&device->link, &request, &reply) < 0)
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
    if (sg_ask(&device->link, &request, &reply) < 0)
        return sg_leave(CUDA_ERROR_DEVICE_UNAVAILABLE);
    if (reply.result != CT_DEVICE_OK)
        return sg_leave(sg_result(reply.result));
    if (reply.c)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    CUevent event = sg_make(SG_EVENT);
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

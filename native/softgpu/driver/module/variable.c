/* Variables of modules and libraries: named memory in a context, allocated on request and freed with the code. */
#include "softgpu/driver/internal.h"
#include "softgpu/ptx/ptx.h"

#include <stdlib.h>
#include <string.h>

/* Upper limits; an image that exceeds them is corrupt. */
enum { VARIABLES = 1 << 16, LARGEST = 1 << 30, CODE_UNIT = 4096 };

int sg_image_variable(struct sg_image *image, const char *name, size_t length, uint64_t bytes, const void *initial)
{
    if (!length || length >= SG_NAME_BYTES || !bytes || bytes > LARGEST || image->variable_count >= VARIABLES)
        return -1;
    struct sg_variable *larger = realloc(image->variables, (image->variable_count + 1) * sizeof *larger);
    if (!larger)
        return -1;
    image->variables = larger;
    struct sg_variable *variable = &larger[image->variable_count];
    memset(variable, 0, sizeof *variable);
    if (initial) {
        variable->initial = malloc(bytes);
        if (!variable->initial)
            return -1;
        memcpy(variable->initial, initial, bytes);
    }
    memcpy(variable->name, name, length);
    variable->bytes = bytes;
    image->variable_count++;
    return 0;
}

int sg_variables_copy(struct sg_image *image, const struct sg_image *source)
{
    image->variables = NULL;
    image->variable_count = 0;
    for (size_t i = 0; i < source->variable_count; i++) {
        const struct sg_variable *one = &source->variables[i];
        if (sg_image_variable(image, one->name, strlen(one->name), one->bytes, one->initial) < 0) {
            sg_variables_free(image);
            return -1;
        }
    }
    return 0;
}

void sg_variables_free(struct sg_image *image)
{
    for (size_t i = 0; i < image->variable_count; i++)
        free(image->variables[i].initial);
    free(image->variables);
    image->variables = NULL;
    image->variable_count = 0;
}

/* Whether the address still belongs to the placement: a destroyed context frees its memory, and the address may be
 * reused. */
static int is_current(const struct sg_placement *placement)
{
    const struct sg_memory *memory = sg_memory_at(placement->address);
    return memory && memory->id == placement->memory_id;
}

void sg_variables_end(struct CUmod_st *module)
{
    for (size_t i = 0; i < module->placement_count; i++)
        if (is_current(&module->placements[i]))
            sg_memory_drop(module->placements[i].address);
    free(module->placements);
    free(module->addresses);
    module->addresses = NULL;
    module->placements = NULL;
    module->placement_count = 0;
}

/* Return the address in this context; 0: not allocated. */
static uint64_t placement_address(const struct CUmod_st *module, size_t index, uint64_t context_id)
{
    for (size_t i = 0; i < module->placement_count; i++)
        if (module->placements[i].variable == index && module->placements[i].context_id == context_id)
            return module->placements[i].address;
    return 0;
}

/* The allocation may wait, so use the placement of another thread if it was faster. */
static CUresult put(CUcontext context, struct CUmod_st *module, size_t index, uint64_t bytes, uint64_t *address)
{
    uint64_t id = module->object.id, context_id = context->object.id, made;
    CUresult result = sg_memory_make(context, bytes, SG_MEMORY_DEVICE, 0, &made);
    if (result != CUDA_SUCCESS)
        return result;
    int is_alive = sg_alive(SG_MODULE, module) && module->object.id == id;
    uint64_t existing = is_alive ? placement_address(module, index, context_id) : 0;
    struct sg_placement *larger =
        is_alive && !existing ? realloc(module->placements, (module->placement_count + 1) * sizeof *larger) : NULL;
    if (!larger) {
        sg_memory_drop(made);
        *address = existing;
        return existing ? CUDA_SUCCESS : is_alive ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
    }
    struct sg_memory *memory = sg_memory_at(made);
    memory->is_variable = 1;
    module->placements = larger;
    larger[module->placement_count++] = (struct sg_placement){index, context_id, made, memory->id};
    *address = made;
    return CUDA_SUCCESS;
}

CUresult sg_code_load(CUcontext context, struct CUmod_st *module)
{
    uint64_t address, bytes = (module->image.code_bytes + CODE_UNIT - 1) / CODE_UNIT * CODE_UNIT;
    context = sg_owner_context(context);
    uint64_t id = context->object.id;
    if (!context->device->counts_code || !bytes || module->code_context_id == id)
        return CUDA_SUCCESS;
    if (!placement_address(module, SG_CODE, id)) {
        CUresult result = put(context, module, SG_CODE, bytes, &address);
        if (result != CUDA_SUCCESS)
            return result;
        if (!sg_alive(SG_CONTEXT, context) || context->object.id != id)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    module->code_context_id = id;
    return CUDA_SUCCESS;
}

/* Return the address of a variable in this context, with its initial value if it was allocated now. */
static CUresult place(CUcontext context, struct CUmod_st *module, size_t index, uint64_t *address)
{
    const struct sg_variable variable = module->image.variables[index];
    *address = placement_address(module, index, context->object.id);
    if (*address)
        return CUDA_SUCCESS;
    CUresult result = put(context, module, index, variable.bytes, address);
    if (result != CUDA_SUCCESS)
        return result;
    if (variable.initial)
        memcpy((void *)(uintptr_t)*address, variable.initial, variable.bytes);
    else
        memset((void *)(uintptr_t)*address, 0, variable.bytes);
    return CUDA_SUCCESS;
}

CUresult sg_variables_place(CUcontext context, struct CUmod_st *module)
{
    context = sg_owner_context(context);
    uint64_t id = module->object.id, context_id = context->object.id;
    size_t count = module->image.program ? sg_ptx_variable_count(module->image.program) : 0;
    if (!count || (module->addresses && module->placed_in == context_id))
        return CUDA_SUCCESS;
    uint64_t *addresses = calloc(count, sizeof *addresses);
    CUresult result = addresses ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    int is_new = 0;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        is_new |= !placement_address(module, i, context_id);
        result = place(context, module, i, &addresses[i]);
        if (!sg_alive(SG_MODULE, module) || module->object.id != id)
            result = CUDA_ERROR_INVALID_HANDLE; /* unloaded by another thread during the allocation */
    }
    if (result != CUDA_SUCCESS) {
        free(addresses);
        return result;
    }
    if (is_new && sg_ptx_has_relocations(module->image.program))
        sg_ptx_relocate(module->image.program, addresses);
    free(module->addresses);
    module->addresses = addresses;
    module->placed_in = context_id;
    return CUDA_SUCCESS;
}

static CUresult find(CUcontext context, struct CUmod_st *module, const char *name, CUdeviceptr *pointer, size_t *bytes)
{
    size_t index = 0;
    uint64_t address = 0;
    if (!name || (!pointer && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    while (index < module->image.variable_count && strcmp(module->image.variables[index].name, name) != 0)
        index++;
    if (index == module->image.variable_count)
        return CUDA_ERROR_NOT_FOUND;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = module->context ? CUDA_SUCCESS : sg_code_load(context, module);
    if (result != CUDA_SUCCESS)
        return result;
    if (module->image.program && sg_ptx_has_relocations(module->image.program))
        result = sg_variables_place(context, module);
    if (result == CUDA_SUCCESS)
        result = place(context, module, index, &address);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer)
        *pointer = address;
    if (bytes)
        *bytes = module->image.variables[index].bytes;
    return CUDA_SUCCESS;
}

static CUresult enter(const struct CUmod_st *module, int is_library)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_MODULE, module) || (module->context == NULL) != is_library)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    CUresult result = enter(module, 0);
    return result == CUDA_SUCCESS ? sg_leave(find(module->context, module, name, pointer, bytes)) : result;
}

/* A library has separate variables in each context. */
API CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
    struct CUmod_st *module = (struct CUmod_st *)library;
    CUresult result = enter(module, 1);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext context = sg_current();
    return sg_leave(find(sg_alive(SG_CONTEXT, context) ? context : NULL, module, name, pointer, bytes));
}

/* No supported image format marks managed variables. */
API CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
    CUresult result = enter((struct CUmod_st *)library, 1);
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(!name || (!pointer && !bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND);
}

/* No supported image format marks unified functions. */
API CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
    CUresult result = enter((struct CUmod_st *)library, 1);
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(!name || !function ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND);
}

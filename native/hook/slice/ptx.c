/* Rewriting of a PTX text: what is eligible, and why the rest is not. */
#define _GNU_SOURCE
#include "hook/slice/internal.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 256 * 1024 * 1024, FUNCTIONS_MAX = 1 << 16 };

const char *ct_ptx_reason(enum ct_ptx_reason reason)
{
    static const char *const texts[CT_PTX_REASONS] = {
        [CT_PTX_ELIGIBLE] = "it can be launched in parts",
        [CT_PTX_NOT_UNDERSTOOD] = "its text is not understood",
        [CT_PTX_TOO_LARGE] = "it is too large",
        [CT_PTX_DEBUG] = "its module is compiled for a debugger",
        [CT_PTX_INSTRUCTION] = "it has an unknown instruction",
        [CT_PTX_REGISTER] = "it has an unknown register",
        [CT_PTX_GRID_READ] = "it reads its block number in an unknown way",
        [CT_PTX_GRID_IDENTITY] = "it depends on the SM or the launch that it belongs to",
        [CT_PTX_CLUSTER] = "it uses clusters of blocks",
        [CT_PTX_ORDER] = "it orders itself with other launches",
        [CT_PTX_WAITS] = "it may wait for other blocks",
        [CT_PTX_INDIRECT_CALL] = "it calls functions through pointers",
        [CT_PTX_UNKNOWN_FUNCTION] = "it calls a function that its module does not contain",
        [CT_PTX_LAUNCHES] = "it launches kernels",
        [CT_PTX_RECURSION] = "it calls functions recursively",
        [CT_PTX_PARAMETERS] = "it has too many parameters",
    };
    return texts[reason];
}

struct ct_ptx_part ct_ptx_part(const uint32_t grid[3], uint32_t first)
{
    struct ct_ptx_part part = {.first = first, .grid = {grid[0], grid[1], grid[2]}};
    uint32_t *const multipliers[] = {&part.multiplier_x, &part.multiplier_y}, *const shifts[] = {&part.shift_x,
                                                                                                  &part.shift_y};
    /* n / d is n * m >> s for all n below 2^31, if 2^k is the least power of two that is not less than d, s is 31 + k, and
     * m is 2^s / d, rounded up; m is below 2^32. */
    for (int i = 0; i < 2; i++) {
        uint32_t shift = 31;
        while (UINT64_C(1) << (shift - 31) < grid[i])
            shift++;
        *multipliers[i] = (uint32_t)(((UINT64_C(1) << shift) + grid[i] - 1) / grid[i]);
        *shifts[i] = shift;
    }
    return part;
}

/* Examines a function whose callees have been examined. */
static void examine(struct ptx *ptx, struct function *function)
{
    for (uint32_t i = 0; i < function->call_count; i++) {
        const struct call *call = &ptx->calls[function->first_call + i];
        const struct function *callee = &ptx->functions[call->callee];
        if (callee->is_entry && !function->reason)
            function->reason = CT_PTX_INDIRECT_CALL;
        if (callee->reason && !function->reason)
            function->reason = callee->reason;
        if (!callee->reads_grid)
            continue;
        function->reads_grid = CT_PTX_WHOLE_GRID;
        if (ct_ptx_is(ptx, call->first, "@") && !function->reason) /* its arguments would be written for all threads */
            function->reason = CT_PTX_GRID_READ;
    }
    if (!function->reason && ct_ptx_may_wait(ptx, function))
        function->reason = CT_PTX_WAITS;
    const uint32_t offset = (function->parameter_bytes + 3) / 4 * 4;
    if (!function->reason && function->is_entry &&
        offset + sizeof(struct ct_ptx_part) > CT_PTX_PARAMETER_BYTES_MAX)
        function->reason = CT_PTX_PARAMETERS;
}

/* Returns whether all functions that it calls have been examined. */
static int is_ready(const struct ptx *ptx, const struct function *function)
{
    for (uint32_t i = 0; i < function->call_count; i++)
        if (!ptx->functions[ptx->calls[function->first_call + i].callee].is_ordered)
            return 0;
    return 1;
}

/* Examines all functions, callees first. Those that remain call themselves, or functions that do. */
static void examine_all(struct ptx *ptx)
{
    for (int is_changed = 1; is_changed;) {
        is_changed = 0;
        for (size_t i = 0; i < ptx->function_count && !ptx->is_lost; i++) {
            struct function *function = &ptx->functions[i];
            if (function->is_ordered || !function->body || !is_ready(ptx, function))
                continue;
            if (!function->reason)
                ct_ptx_read_body(ptx, function);
            examine(ptx, function);
            function->is_ordered = is_changed = 1;
            ptx->order[ptx->order_count++] = (uint32_t)i;
        }
    }
    for (size_t i = 0; i < ptx->function_count; i++)
        if (!ptx->functions[i].is_ordered && !ptx->functions[i].reason)
            ptx->functions[i].reason = CT_PTX_RECURSION;
}

static void examine_text(struct ptx *ptx)
{
    for (size_t i = 0; i < ptx->function_count && !ptx->is_lost; i++) {
        struct function *function = &ptx->functions[i];
        if (!function->body)
            continue;
        const enum ct_ptx_reason reason = ct_ptx_read_body(ptx, function);
        if (!function->reason)
            function->reason = ptx->has_debug ? CT_PTX_DEBUG : reason;
    }
    ptx->order = calloc(ptx->function_count + 1, sizeof *ptx->order);
    if (!ptx->order)
        ptx->is_lost = 1;
    else
        examine_all(ptx);
}

static int contains(const char *text, size_t bytes, const char *word)
{
    return memmem(text, bytes, word, strlen(word)) != NULL;
}

int ct_ptx_rewrite(const char *text, size_t bytes, struct ct_ptx_module *module)
{
    struct ptx ptx = {0};
    int is_done = 1;
    *module = (struct ct_ptx_module){0};
    if (bytes > TEXT_BYTES_MAX || contains(text, bytes, "__cotenant"))
        return 1;
    ptx.text_hash = ct_ptx_hash(text, (uint32_t)bytes);
    is_done = ct_ptx_split(&ptx, text, bytes);
    if (is_done && ct_ptx_parse(&ptx) && ptx.function_count <= FUNCTIONS_MAX) {
        examine_text(&ptx);
        is_done = !ptx.is_lost && ct_ptx_write(&ptx, text, bytes, module);
    }
    is_done = is_done && !ptx.is_lost;
    free(ptx.tokens);
    free(ptx.functions);
    free(ptx.calls);
    free(ptx.order);
    free(ptx.ins);
    free(ptx.labels);
    free(ptx.ranges);
    free(ptx.registers);
    if (!is_done)
        ct_ptx_free(module);
    return is_done;
}

char *ct_ptx_copy(const char *name, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    if (copy) {
        memcpy(copy, name, bytes);
        copy[bytes] = 0;
    }
    return copy;
}

void ct_ptx_free(struct ct_ptx_module *module)
{
    for (size_t i = 0; i < module->count; i++)
        free(module->kernels[i].name);
    free(module->kernels);
    free(module->text);
    *module = (struct ct_ptx_module){0};
}

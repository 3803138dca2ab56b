/* The text with variants: eligible kernels and the functions of theirs that read the grid are written once more. */
#define _GNU_SOURCE
#include "hook/slice/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION_PREFIX "__cotenant_function_"

static const char *const coordinates[] = {"%__cotenant_x",  "%__cotenant_y",  "%__cotenant_z",  "0",
                                        "%__cotenant_nx", "%__cotenant_ny", "%__cotenant_nz", "0"};

struct writer {
    struct ptx *ptx;
    char *text;
    size_t bytes, capacity;
    const char *copied; /* the original up to here is written */
    uint32_t call_number;
    int is_lost;
};

static void put(struct writer *writer, const char *text, size_t bytes)
{
    if (writer->is_lost)
        return;
    if (bytes >= writer->capacity - writer->bytes) {
        const size_t larger = (writer->capacity + bytes + 1) * 2;
        char *grown = realloc(writer->text, larger);
        if (!grown) {
            writer->is_lost = 1;
            return;
        }
        writer->text = grown;
        writer->capacity = larger;
    }
    memcpy(writer->text + writer->bytes, text, bytes);
    writer->bytes += bytes;
}

static void print(struct writer *writer, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    put(writer, line, (size_t)length);
}

static const char *begin_of(const struct writer *writer, uint32_t token)
{
    return writer->ptx->tokens[token].text;
}

/* Copies the original up to this token, and continues behind the next token that is not replaced. */
static void copy_to(struct writer *writer, const char *end)
{
    if (end > writer->copied)
        put(writer, writer->copied, (size_t)(end - writer->copied));
    writer->copied = end;
}

static void replace(struct writer *writer, uint32_t token, const char *text)
{
    copy_to(writer, begin_of(writer, token));
    put(writer, text, strlen(text));
    writer->copied = begin_of(writer, token) + writer->ptx->tokens[token].bytes;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------- */

/* Writes mov.v4.u32 of a whole vector as four moves. */
static void write_vector_read(struct writer *writer, const struct ins *ins, int grid_read)
{
    const struct ptx *ptx = writer->ptx;
    const int is_list = ct_ptx_is(ptx, ins->opcode + 1, "{");
    copy_to(writer, begin_of(writer, ins->first));
    for (uint32_t i = 0; i < 4; i++) {
        const struct token *target = &ptx->tokens[ins->opcode + (is_list ? 2 + 2 * i : 1)];
        if (is_list && target->bytes == 1 && *target->text == '_')
            continue;
        const char *guard = begin_of(writer, ins->first);
        put(writer, guard, (size_t)(begin_of(writer, ins->opcode) - guard));
        print(writer, "mov.u32 ");
        put(writer, target->text, target->bytes);
        print(writer, "%.*s, %s; ", is_list ? 0 : 2, &".x.y.z.w"[2 * i],
              coordinates[(uint32_t)(grid_read - CT_PTX_VECTOR) + i]);
    }
    writer->copied = begin_of(writer, ins->end) + 1;
}

/* Passes the block and the grid to a function that reads them. */
static void write_call(struct writer *writer, const struct call *call)
{
    const uint32_t number = writer->call_number++;
    copy_to(writer, begin_of(writer, call->first));
    print(writer, ".param .align 4 .b8 __cotenant_a%u[24]; ", number);
    for (uint32_t i = 0; i < 6; i++)
        print(writer, "st.param.b32 [__cotenant_a%u+%u], %s; ", number, 4 * i, coordinates[i < 3 ? i : i + 1]);
    char name[sizeof FUNCTION_PREFIX + 12];
    snprintf(name, sizeof name, FUNCTION_PREFIX "%u", call->callee);
    replace(writer, call->name, name);
    if (call->has_list) {
        copy_to(writer, begin_of(writer, call->add));
        print(writer, "%s__cotenant_a%u", call->has_arguments ? ", " : "", number);
    } else {
        print(writer, ", (__cotenant_a%u)", number);
    }
}

/* Copies the body of the function, which was read last, without its braces. */
static void write_body(struct writer *writer, const struct function *function)
{
    struct ptx *ptx = writer->ptx;
    writer->copied = begin_of(writer, function->body) + 1;
    for (size_t i = 0; i < ptx->ins_count; i++) {
        const struct ins *ins = &ptx->ins[i];
        for (uint32_t c = 0; c < function->call_count; c++) {
            const struct call *call = &ptx->calls[function->first_call + c];
            if (call->first == ins->first && ptx->functions[call->callee].reads_grid)
                write_call(writer, call);
        }
        for (uint32_t at = ins->first; at < ins->end; at++) {
            const int grid_read = ptx->tokens[at].kind == TOKEN_WORD ? ct_ptx_grid_read(ptx, at) : -1;
            if (grid_read >= CT_PTX_VECTOR)
                write_vector_read(writer, ins, grid_read);
            else if (grid_read >= 0)
                replace(writer, at, coordinates[grid_read]);
        }
    }
    copy_to(writer, begin_of(writer, function->body_end));
}

/* Copies tokens and what is between them. */
static void copy_tokens(struct writer *writer, uint32_t from, uint32_t end)
{
    writer->copied = begin_of(writer, from);
    copy_to(writer, begin_of(writer, end));
}

/* Copies from the parameters to the body, with one more parameter. */
static void write_parameters(struct writer *writer, const struct function *function, unsigned bytes)
{
    if (function->list) {
        copy_tokens(writer, function->list, function->list_end);
        print(writer, "%s .param .align 4 .b8 __cotenant_p[%u]", function->parameter_count ? "," : "", bytes);
        copy_tokens(writer, function->list_end, function->body);
    } else {
        print(writer, "(.param .align 4 .b8 __cotenant_p[%u]) ", bytes);
        copy_tokens(writer, function->name + 1, function->body);
    }
    print(writer, "{\n.reg .b32 %%__cotenant_x, %%__cotenant_y, %%__cotenant_z, %%__cotenant_nx, %%__cotenant_ny, "
                  "%%__cotenant_nz, %%__cotenant_t;\n");
}

static void write_function(struct writer *writer, const struct function *function, uint32_t number)
{
    print(writer, "\n.func ");
    if (function->results) {
        copy_tokens(writer, function->results, function->results_end);
        print(writer, ") ");
    }
    print(writer, FUNCTION_PREFIX "%u ", number);
    write_parameters(writer, function, 24);
    for (unsigned i = 0; i < 6; i++)
        print(writer, "ld.param.b32 %s, [__cotenant_p+%u];\n", coordinates[i < 3 ? i : i + 1], 4 * i);
    write_body(writer, function);
    print(writer, "}\n");
}

/* Writes the division of one register by multiplying with the parameter at this offset and shifting by the next. */
static void write_division(struct writer *writer, const char *quotient, const char *dividend, unsigned offset)
{
    print(writer, "ld.param.b32 %s, [__cotenant_p+%u];\nmul.wide.u32 %%__cotenant_w, %s, %s;\n", quotient, offset,
          dividend, quotient);
    print(writer, "ld.param.b32 %s, [__cotenant_p+%u];\nshr.u64 %%__cotenant_w, %%__cotenant_w, %s;\n", quotient,
          offset + 4, quotient);
    print(writer, "cvt.u32.u64 %s, %%__cotenant_w;\n", quotient);
}

/* Computes the coordinates of the block that are read from the first block of the part and the grid. */
static void write_coordinates(struct writer *writer, unsigned reads)
{
    const unsigned x = 1u << 0, y = 1u << 1, z = 1u << 2;
    const int needs_width = (reads & (x | 1u << 4)) != 0, needs_height = (reads & (y | 1u << 5)) != 0;
    if (needs_width)
        print(writer, "ld.param.b32 %s, [__cotenant_p+4];\n", coordinates[4]);
    if (needs_height)
        print(writer, "ld.param.b32 %s, [__cotenant_p+8];\n", coordinates[5]);
    if (reads & 1u << 6)
        print(writer, "ld.param.b32 %s, [__cotenant_p+12];\n", coordinates[6]);
    if (!(reads & (x | y | z)))
        return;
    print(writer, ".reg .b64 %%__cotenant_w;\nmov.u32 %%__cotenant_t, %%ctaid.x;\n"
                  "ld.param.b32 %%__cotenant_x, [__cotenant_p];\n"
                  "add.u32 %%__cotenant_t, %%__cotenant_t, %%__cotenant_x;\n");
    write_division(writer, coordinates[1], "%__cotenant_t", 16);
    if (reads & x)
        print(writer, "mul.lo.u32 %%__cotenant_z, %%__cotenant_y, %%__cotenant_nx;\n"
                      "sub.u32 %%__cotenant_x, %%__cotenant_t, %%__cotenant_z;\n");
    if (!(reads & (y | z)))
        return;
    write_division(writer, coordinates[2], coordinates[1], 24);
    if (reads & y)
        print(writer, "mul.lo.u32 %%__cotenant_t, %%__cotenant_z, %%__cotenant_ny;\n"
                      "sub.u32 %%__cotenant_y, %%__cotenant_y, %%__cotenant_t;\n");
}

static void write_kernel(struct writer *writer, const struct function *function, const char *name)
{
    print(writer, "\n.visible .entry %s", name);
    write_parameters(writer, function, sizeof(struct ct_ptx_part));
    if (function->reads_grid)
        write_coordinates(writer, function->reads_grid);
    write_body(writer, function);
    print(writer, "}\n");
}

/* ---- the module --------------------------------------------------------------------------------------------------- */

/* The name depends on the text, because texts can be linked with each other. */
static void name_variant(char *name, size_t capacity, const struct ptx *ptx, uint32_t number)
{
    snprintf(name, capacity, CT_PTX_PREFIX "%08x_%u", ptx->text_hash, number);
}

static int list_kernels(const struct ptx *ptx, struct ct_ptx_module *module)
{
    size_t count = 0, eligible = 0;
    for (size_t i = 0; i < ptx->function_count; i++)
        count += ptx->functions[i].is_entry && ptx->functions[i].body;
    module->kernels = calloc(count + 1, sizeof *module->kernels);
    for (size_t i = 0; i < ptx->function_count && module->kernels; i++) {
        const struct function *function = &ptx->functions[i];
        const struct token *name = &ptx->tokens[function->name];
        if (!function->is_entry || !function->body)
            continue;
        struct ct_ptx_kernel *kernel = &module->kernels[module->count];
        *kernel = (struct ct_ptx_kernel){.name = ct_ptx_copy(name->text, name->bytes), .reason = function->reason,
                                         .parameter_count = function->parameter_count,
                                         .parameter_bytes = function->parameter_bytes};
        if (!kernel->name)
            return -1;
        if (!kernel->reason) {
            name_variant(kernel->variant, sizeof kernel->variant, ptx, (uint32_t)i);
            eligible++;
        }
        module->count++;
    }
    return module->kernels ? eligible != 0 : -1;
}

/* Returns which functions are needed: those that eligible kernels call and that read the grid. */
static unsigned char *needed_functions(const struct ptx *ptx)
{
    unsigned char *is_needed = calloc(ptx->function_count + 1, 1);
    for (size_t i = ptx->order_count; i > 0 && is_needed; i--) { /* callers before callees */
        const uint32_t number = ptx->order[i - 1];
        const struct function *function = &ptx->functions[number];
        is_needed[number] |= function->is_entry && !function->reason;
        for (uint32_t c = 0; c < function->call_count && is_needed[number]; c++) {
            const uint32_t callee = ptx->calls[function->first_call + c].callee;
            is_needed[callee] |= ptx->functions[callee].reads_grid != 0;
        }
    }
    return is_needed;
}

int ct_ptx_write(struct ptx *ptx, const char *text, size_t bytes, struct ct_ptx_module *module)
{
    struct writer writer = {.ptx = ptx};
    const int listed = list_kernels(ptx, module);
    if (listed <= 0)
        return listed == 0;
    unsigned char *is_needed = needed_functions(ptx);
    if (!is_needed)
        return 0;
    put(&writer, text, bytes);
    for (size_t i = 0; i < ptx->order_count && !ptx->is_lost; i++) {
        const uint32_t number = ptx->order[i];
        struct function *function = &ptx->functions[number];
        if (!is_needed[number])
            continue;
        ct_ptx_read_body(ptx, function); /* again, because only one function's instructions are kept */
        if (function->is_entry) {
            char name[sizeof module->kernels->variant];
            name_variant(name, sizeof name, ptx, number);
            write_kernel(&writer, function, name);
        } else {
            write_function(&writer, function, number);
        }
    }
    free(is_needed);
    put(&writer, "", 1);
    if (writer.is_lost || ptx->is_lost) {
        free(writer.text);
        return 0;
    }
    module->text = writer.text;
    module->bytes = writer.bytes - 1;
    return 1;
}

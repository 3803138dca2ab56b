/* Linking: resolution of names between texts, reasons of functions that call others, and addresses of variables. */
#include "softgpu/ptx/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int find_definition(const struct sg_ptx *program, const char *name)
{
    int found = NONE;
    for (size_t i = 0; i < program->function_count; i++) {
        const struct ptx_function *one = &program->functions[i];
        if (one->is_defined && one->is_visible && strcmp(one->name, name) == 0 && (found == NONE || !one->is_weak))
            found = (int)i;
    }
    return found;
}

static void link_functions(struct sg_ptx *program)
{
    for (size_t i = 0; i < program->function_count; i++) {
        struct ptx_function *one = &program->functions[i];
        one->link = one->is_defined ? (int)i : find_definition(program, one->name);
        if (one->is_defined && one->is_weak && !one->is_entry && find_definition(program, one->name) != NONE)
            one->link = find_definition(program, one->name);
    }
}

static void refuse(struct sg_ptx *program, struct ptx_function *function, const char *format, const char *name)
{
    char text[SG_PTX_REASON_BYTES];
    if (function->reason)
        return;
    snprintf(text, sizeof text, format, name);
    function->reason = ptx_copy_text(program, text, strlen(text));
}

/* A function that calls one that cannot be executed cannot be executed either. */
static void propagate(struct sg_ptx *program)
{
    for (int is_changed = 1; is_changed;) {
        is_changed = 0;
        for (size_t i = 0; i < program->function_count; i++) {
            struct ptx_function *one = &program->functions[i];
            for (size_t c = 0; c < one->callee_count && !one->reason; c++) {
                const struct ptx_function *callee = &program->functions[one->callees[c]];
                if (callee->link == NONE)
                    refuse(program, one, "calls the undefined function %.100s", callee->name);
                else if (program->functions[callee->link].reason)
                    refuse(program, one, "%.140s", program->functions[callee->link].reason);
                is_changed |= one->reason != NULL;
            }
        }
    }
}

static int find_variable(const struct sg_ptx *program, const char *name)
{
    int found = NONE;
    for (size_t i = 0; i < program->variable_count; i++) {
        const struct ptx_variable *one = &program->variables[i];
        if (!one->is_extern && one->is_visible && strcmp(one->name, name) == 0 && (found == NONE || !one->is_weak))
            found = (int)i;
    }
    return found;
}

/* `link` becomes the variable whose memory is used. An extern shared array is the dynamic memory of the launch. */
static void link_variables(struct sg_ptx *program)
{
    program->placed = ptx_keep(program, program->variable_count * sizeof *program->placed);
    for (size_t i = 0; i < program->variable_count && program->placed; i++) {
        struct ptx_variable *one = &program->variables[i];
        if (one->space == SPACE_SHARED)
            continue;
        one->link = one->is_extern || one->is_weak ? find_variable(program, one->name) : (int)i;
        if (one->link == (int)i) {
            one->placed = (int)program->placed_count;
            program->placed[program->placed_count++] = (int)i;
        }
    }
}

static int relocation_variable(const struct sg_ptx *program, int unit, const char *name)
{
    for (size_t i = 0; i < program->variable_count; i++)
        if (program->variables[i].unit == unit && program->variables[i].space != SPACE_SHARED &&
            strcmp(program->variables[i].name, name) == 0)
            return program->variables[i].link;
    return NONE;
}

static int relocation_function(const struct sg_ptx *program, int unit, const char *name)
{
    for (size_t i = 0; i < program->function_count; i++)
        if (program->functions[i].unit == unit && strcmp(program->functions[i].name, name) == 0)
            return program->functions[i].link;
    return NONE;
}

static void link_relocations(struct sg_ptx *program)
{
    for (size_t i = 0; i < program->variable_count; i++) {
        struct ptx_variable *variable = &program->variables[i];
        for (size_t r = 0; r < variable->relocation_count; r++) {
            struct ptx_relocation *one = &variable->relocations[r];
            one->variable = relocation_variable(program, variable->unit, one->name);
            if (one->variable == NONE)
                one->function = relocation_function(program, variable->unit, one->name);
            program->relocations = 1;
        }
    }
}

/* A function that uses an undefined variable cannot be executed. */
static void check_addresses(struct sg_ptx *program)
{
    for (size_t f = 0; f < program->function_count; f++) {
        struct ptx_function *function = &program->functions[f];
        for (size_t i = 0; i < function->count; i++) {
            const struct ptx_ins *ins = &function->code[i];
            for (int k = 0; k < 6; k++) {
                if (ins->o[k] >> SLOT_SHIFT != BASE_ADDRESSES)
                    continue;
                for (size_t a = 0; a < program->address_count; a++) {
                    const struct ptx_address *address = &program->addresses[a];
                    const struct ptx_variable *variable = &program->variables[address->variable];
                    if (address->slot == ins->o[k] && variable->space != SPACE_SHARED && variable->link == NONE)
                        refuse(program, function, "uses the undefined variable %.100s", variable->name);
                }
            }
        }
    }
}

struct sg_ptx *sg_ptx_compile(const char *const *texts, const size_t *bytes, size_t count)
{
    struct sg_ptx *program = calloc(1, sizeof *program);
    if (!program)
        return NULL;
    program->references = 1;
    for (size_t i = 0; i < count; i++) {
        if (ptx_parse(program, (int)i, texts[i], bytes[i]) == 0)
            continue;
        /* What follows the error is unknown, so nothing of this text is executed. */
        for (size_t f = 0; f < program->function_count; f++)
            if (program->functions[f].unit == (int)i)
                refuse(program, &program->functions[f], "its text contains a syntax error%s", "");
    }
    link_functions(program);
    link_variables(program);
    link_relocations(program);
    check_addresses(program);
    propagate(program);
    if (program->is_lost) {
        sg_ptx_release(program);
        return NULL;
    }
    return program;
}

struct sg_ptx *sg_ptx_hold(struct sg_ptx *program)
{
    if (program)
        __atomic_add_fetch(&program->references, 1, __ATOMIC_RELAXED);
    return program;
}

void sg_ptx_release(struct sg_ptx *program)
{
    if (!program || __atomic_sub_fetch(&program->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    for (size_t i = 0; i < program->function_count; i++) {
        free(program->functions[i].code);
        free(program->functions[i].callees);
        free(program->functions[i].specials);
    }
    for (size_t i = 0; i < program->block_count; i++)
        free(program->blocks[i]);
    free(program->blocks);
    free(program->functions);
    free(program->variables);
    free(program->addresses);
    free(program->constants);
    free(program);
}

int sg_ptx_entry(const struct sg_ptx *program, const char *name)
{
    for (size_t i = 0; i < program->function_count; i++)
        if (program->functions[i].is_entry && strcmp(program->functions[i].name, name) == 0)
            return (int)i;
    return NONE;
}

const char *sg_ptx_reason(const struct sg_ptx *program, int entry)
{
    return program->functions[entry].is_defined ? program->functions[entry].reason : "it has no body";
}

size_t sg_ptx_entry_count(const struct sg_ptx *program)
{
    size_t count = 0;
    for (size_t i = 0; i < program->function_count; i++)
        count += program->functions[i].is_entry != 0;
    return count;
}

const char *sg_ptx_entry_name(const struct sg_ptx *program, size_t index, int *entry)
{
    for (size_t i = 0; i < program->function_count; i++) {
        if (!program->functions[i].is_entry || index--)
            continue;
        *entry = (int)i;
        return program->functions[i].name;
    }
    return NULL;
}

uint32_t sg_ptx_param_bytes(const struct sg_ptx *program, int entry)
{
    return program->functions[entry].param_bytes;
}

void sg_ptx_cluster(const struct sg_ptx *program, int entry, uint32_t cluster[3])
{
    for (int k = 0; k < 3; k++)
        cluster[k] = program->functions[entry].cluster[k] ? program->functions[entry].cluster[k] : 1;
}

size_t sg_ptx_variable_count(const struct sg_ptx *program)
{
    return program->placed_count;
}

struct sg_ptx_variable sg_ptx_variable(const struct sg_ptx *program, size_t index)
{
    const struct ptx_variable *one = &program->variables[program->placed[index]];
    return (struct sg_ptx_variable){one->name, one->bytes, one->initial, one->is_visible, one->space == SPACE_CONST};
}

int sg_ptx_has_relocations(const struct sg_ptx *program)
{
    return program->relocations;
}

void sg_ptx_relocate(const struct sg_ptx *program, const uint64_t *addresses)
{
    for (size_t i = 0; i < program->placed_count; i++) {
        const struct ptx_variable *variable = &program->variables[program->placed[i]];
        for (size_t r = 0; r < variable->relocation_count; r++) {
            const struct ptx_relocation *one = &variable->relocations[r];
            uint64_t value = one->addend;
            if (one->variable != NONE)
                value += addresses[program->variables[one->variable].placed];
            else if (one->function != NONE)
                value += WINDOW_FUNCTION | (uint64_t)one->function;
            else
                value = 0; /* an undefined name: an access to address 0 is a fault */
            memcpy((void *)(uintptr_t)(addresses[i] + one->offset), &value, one->bytes);
        }
    }
}

/* Rewriting of PTX, so that a kernel can be launched in parts of its grid. Pure: text in, text out.
 *
 * For every eligible kernel a variant is appended to the text. It has one more parameter, struct ct_ptx_part, and its
 * blocks are those of a range of the kernel's grid: every read of %ctaid and %nctaid, also in functions that the kernel
 * calls, gives the values of the whole grid. The original text is not changed, so kernels and variants share all
 * variables of the module. What is not understood is not eligible. */
#ifndef COTENANT_HOOK_SLICE_PTX_H
#define COTENANT_HOOK_SLICE_PTX_H

#include <stddef.h>
#include <stdint.h>

/* Why a kernel cannot be launched in parts; ct_ptx_reason() has the text of each. */
enum ct_ptx_reason {
    CT_PTX_ELIGIBLE = 0,
    CT_PTX_NOT_UNDERSTOOD,
    CT_PTX_TOO_LARGE,
    CT_PTX_DEBUG,
    CT_PTX_INSTRUCTION,
    CT_PTX_REGISTER,
    CT_PTX_GRID_READ,
    CT_PTX_GRID_IDENTITY,
    CT_PTX_CLUSTER,
    CT_PTX_ORDER,
    CT_PTX_WAITS,
    CT_PTX_INDIRECT_CALL,
    CT_PTX_UNKNOWN_FUNCTION,
    CT_PTX_LAUNCHES,
    CT_PTX_RECURSION,
    CT_PTX_PARAMETERS,
    CT_PTX_REASONS,
};
const char *ct_ptx_reason(enum ct_ptx_reason reason);

/* The names of variants begin with this; no other name may. */
#define CT_PTX_PREFIX "__cotenant_part_"

enum { CT_PTX_PARAMETER_BYTES_MAX = 4096 };

struct ct_ptx_kernel {
    char *name;
    enum ct_ptx_reason reason;
    uint32_t parameter_count, parameter_bytes; /* of the original kernel */
    char variant[32];                          /* name of the variant; empty: there is none */
};

struct ct_ptx_module {
    char *text; /* the text with variants, zero-terminated; NULL: no kernel is eligible */
    size_t bytes;
    struct ct_ptx_kernel *kernels;
    size_t count;
};

/* Reads a text. Returns 0 if there is no memory for it; then, and otherwise by ct_ptx_free(), everything is freed. */
int ct_ptx_rewrite(const char *text, size_t bytes, struct ct_ptx_module *module);
void ct_ptx_free(struct ct_ptx_module *module);
/* Returns a zero-terminated copy of a name; NULL: no memory. */
char *ct_ptx_copy(const char *name, size_t bytes);

/* The last parameter of a variant. Blocks are numbered with x changing fastest. */
struct ct_ptx_part {
    uint32_t first;                            /* the first block of the part */
    uint32_t grid[3];                          /* of the whole launch */
    uint32_t multiplier_x, shift_x;            /* division by the width: multiply and shift */
    uint32_t multiplier_y, shift_y;            /* and by the height */
};

/* Grids of more blocks cannot be numbered. */
#define CT_PTX_BLOCKS_MAX UINT32_C(0x7fffffff)

/* Returns the parameter for a part of a grid of at most CT_PTX_BLOCKS_MAX blocks. */
struct ct_ptx_part ct_ptx_part(const uint32_t grid[3], uint32_t first);

#endif

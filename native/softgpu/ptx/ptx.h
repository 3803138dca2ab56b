/* Execution of PTX: a parser, a linker and an executor that computes the result of a launch. Time is not modelled here. */
#ifndef COTENANT_SOFTGPU_PTX_PTX_H
#define COTENANT_SOFTGPU_PTX_PTX_H

#include <stddef.h>
#include <stdint.h>

struct sg_ptx; /* a linked program; immutable except for its reference count */

/* Compile and link the texts, which need not be terminated by zero. A function that cannot be executed gets a reason;
 * the others remain usable. NULL: out of memory. The caller owns one reference. */
struct sg_ptx *sg_ptx_compile(const char *const *texts, const size_t *bytes, size_t count);
struct sg_ptx *sg_ptx_hold(struct sg_ptx *program);
void sg_ptx_release(struct sg_ptx *program);

/* Return the entry of this name; -1: none. */
int sg_ptx_entry(const struct sg_ptx *program, const char *name);
/* Return why the entry cannot be executed; NULL: it can. */
const char *sg_ptx_reason(const struct sg_ptx *program, int entry);
size_t sg_ptx_entry_count(const struct sg_ptx *program);
const char *sg_ptx_entry_name(const struct sg_ptx *program, size_t index, int *entry);
/* The number of bytes that the parameters of the entry take. */
uint32_t sg_ptx_param_bytes(const struct sg_ptx *program, int entry);

/* The cluster of blocks that the entry requires: ones if it requires none. */
void sg_ptx_cluster(const struct sg_ptx *program, int entry, uint32_t cluster[3]);

/* A variable in global or constant memory. The caller allocates its memory. */
struct sg_ptx_variable {
    const char *name;
    uint64_t bytes;
    const unsigned char *initial; /* NULL: zeros */
    int is_visible;               /* can be found by name from outside its text */
    int is_const;
};
size_t sg_ptx_variable_count(const struct sg_ptx *program);
struct sg_ptx_variable sg_ptx_variable(const struct sg_ptx *program, size_t index);
/* Whether initial values contain addresses of variables. */
int sg_ptx_has_relocations(const struct sg_ptx *program);
/* Write these addresses into the memory of the variables. */
void sg_ptx_relocate(const struct sg_ptx *program, const uint64_t *addresses);

/* Answer whether the device may access [address, address + bytes), and return the whole range around it that it may
 * access in the same manner. */
typedef int (*sg_ptx_range)(void *data, uint64_t address, uint64_t bytes, int is_write, uint64_t *start, uint64_t *end);

enum sg_ptx_fault {
    SG_PTX_DONE,
    SG_PTX_ILLEGAL_ADDRESS,
    SG_PTX_MISALIGNED_ADDRESS,
    SG_PTX_TIMEOUT, /* a warp exceeded its number of instructions, or no warp can continue */
    SG_PTX_TRAP,
    SG_PTX_ASSERT,
    SG_PTX_OUT_OF_MEMORY,
};

struct sg_ptx_launch {
    const struct sg_ptx *program;
    int entry;
    uint32_t grid[3], block[3];
    uint32_t dynamic_bytes; /* shared memory */
    const unsigned char *params;
    uint32_t param_bytes;
    const uint64_t *addresses; /* of the variables */
    uint32_t sm_count;
    uint64_t resident_blocks; /* blocks that make progress at the same time */
    uint64_t warp_limit;      /* instructions of one warp; 0: the default */
    uint64_t grid_number;
    uint64_t heap_bytes; /* for malloc in kernels */
    uint32_t cluster[3]; /* blocks that share barriers and memory; zeros: as the kernel says */
    int is_cooperative;  /* its blocks may wait for each other, with the workspace that %envreg1 and %envreg2 name */
    sg_ptx_range range;
    void *data;
};

enum { SG_PTX_REASON_BYTES = 160 };

/* Execute all blocks of the launch. The text of printf goes to standard output. */
enum sg_ptx_fault sg_ptx_run(const struct sg_ptx_launch *launch);

/* Allow kernels to access memory that they allocated with malloc in an earlier launch, until the process ends. */
int sg_ptx_heap_range(uint64_t address, uint64_t bytes, uint64_t *start, uint64_t *end);

#endif

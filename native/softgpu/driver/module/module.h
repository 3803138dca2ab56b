/* Images, modules and functions. */
#ifndef COTENANT_SOFTGPU_DRIVER_MODULE_MODULE_H
#define COTENANT_SOFTGPU_DRIVER_MODULE_MODULE_H

/* ---- Images ------------------------------------------------------------------------------------------------------ */

enum sg_builtin { SG_BUILTIN_NONE, SG_BUILTIN_VECADD, SG_BUILTIN_SAXPY, SG_BUILTIN_GEMM, SG_BUILTIN_REDUCE,
                  SG_BUILTIN_FILL, SG_BUILTINS };

/* Properties of a kernel from its image. */
struct sg_kernel {
    char name[SG_NAME_BYTES];
    enum sg_builtin builtin;
    uint32_t param_count;
    uint32_t param_bytes[SG_MAX_PARAMS], param_offset[SG_MAX_PARAMS];
    uint64_t duration_ns; /* when it runs alone, independent of the grid; 0: determined by the blocks */
    int duration_param;   /* index of the parameter that holds the duration; -1: none */
    int duration_data;    /* index of the parameter that points to the duration in device memory; -1: none */
    int spin_counter;     /* index of the parameter that points to a counter of 32 bits; -1: it does not spin */
    int spin_value;       /* index of the parameter with the value of the counter for which it spins */
    uint64_t spin_limit_ns; /* after which spinning ends as a timeout */
    uint64_t block_ns;    /* per block */
    double thread_ns;     /* additionally per thread of a block */
    double bytes_per_block, bytes_per_thread;
    double bandwidth; /* instead: part of the device's bandwidth that a block on every SM uses; 0: none */
    uint32_t registers, shared_bytes, max_threads, blocks_per_sm, local_bytes, const_bytes;
    double jitter; /* standard deviation over mean */
    int ptx_version, binary_version;
    int entry; /* in the program of its image; -1: it is not executed */
};

struct sg_variable {
    char name[SG_NAME_BYTES];
    uint64_t bytes;
    unsigned char *initial; /* NULL: zeros */
};

struct sg_image {
    struct sg_kernel *kernels;
    size_t count, capacity;
    struct sg_variable *variables;
    size_t variable_count;
    uint64_t code_bytes; /* of the uncompressed input */
    char **texts;        /* PTX; several in a linked image */
    size_t text_count;
    int is_machine_code;
    struct sg_ptx *program; /* compiled when the image is bound; NULL: it has no PTX */
    size_t executable, refused; /* kernels whose results are computed, and that cannot be */
    char *report;               /* why kernels cannot be executed; NULL: all can */
};

/* Read an image of any format. `bytes` 0: the size is unknown and determined from the format. */
CUresult sg_image_read(const void *data, size_t bytes, struct sg_image *image);
void sg_image_free(struct sg_image *image);
CUresult sg_image_text(const char *text, size_t bytes, struct sg_image *image);
CUresult sg_image_ptx(const char *text, size_t bytes, struct sg_image *image);
CUresult sg_image_elf(const unsigned char *data, size_t bytes, struct sg_image *image);
CUresult sg_image_fatbin(const unsigned char *data, size_t bytes, struct sg_image *image);
/* Write a text image with a terminating zero. NULL: out of memory, or a name that a text image cannot hold. The caller
 * frees it. */
char *sg_image_write(const struct sg_image *image, size_t *bytes);
/* NULL: too many kernels, invalid name or out of memory. */
struct sg_kernel *sg_image_add(struct sg_image *image, const char *name, size_t length);
/* 0, or -1: invalid or out of memory. The initial bytes are copied; NULL: zeros. */
int sg_image_variable(struct sg_image *image, const char *name, size_t length, uint64_t bytes, const void *initial);
int sg_variables_copy(struct sg_image *image, const struct sg_image *source);
void sg_variables_free(struct sg_image *image);
/* 0, or -1: too many or too large. */
int sg_kernel_param(struct sg_kernel *kernel, uint32_t bytes, uint32_t alignment);
void sg_kernel_default(struct sg_kernel *kernel); /* the documented cost model of code that this device cannot run */

/* ---- Code: kernels of PTX are executed when their completion is observed ------------------------------------------ */

int sg_image_add_text(struct sg_image *image, const char *text, size_t bytes); /* 0, or -1: out of memory */
CUresult sg_image_compile(struct sg_image *image);
void sg_image_free_code(struct sg_image *image);
struct sg_code_shape {
    const unsigned *grid, *block;
    unsigned shared_bytes;
    uint64_t resident_blocks;
    const struct sg_launch_options *options;
};
enum { SG_CLUSTER_BLOCKS = 8, SG_CLUSTER_BLOCKS_ALLOWED = 16 }; /* at most in a cluster; if the program allows it */
struct sg_launch_options {
    int is_cooperative;
    uint32_t cluster[3]; /* of blocks; zeros: as the kernel says */
};
/* Copy what a launch of an executable kernel needs. May wait, so the function may be invalid on return. */
CUresult sg_code_prepare(CUcontext context, struct CUfunc_st *function, const struct sg_code_shape *shape,
                         const void **values, struct sg_code_launch **made);
CUresult sg_code_run(const struct sg_code_launch *code);
void sg_code_drop(struct sg_code_launch *code);
/* Allocate all variables of a module's program in this context, and set module->addresses. */
CUresult sg_variables_place(CUcontext context, struct CUmod_st *module);

CUresult sg_builtin_run(const struct sg_effect *effect);
/* Report a failed kernel. The server decides how this and other processes are affected. */
void sg_kernel_fault(struct sg_connection *connection, CUresult fault);
int sg_builtin_find(const char *name, size_t length);
const char *sg_builtin_name(enum sg_builtin builtin);
void sg_builtin_shape(struct sg_kernel *kernel); /* set its parameters */

/* The memory of a variable or of code in one context. */
struct sg_placement {
    size_t variable; /* SG_CODE: the code */
    uint64_t context_id, address, memory_id;
};

/* A module or a library, which has no context. Functions and kernels are represented by the same struct as well. */
struct CUmod_st {
    struct sg_object object;
    struct CUctx_st *context; /* NULL: a library */
    uint64_t context_id;
    struct sg_image image;
    struct CUfunc_st **functions;    /* one per kernel of the image, created on request */
    struct sg_placement *placements; /* created on request */
    size_t placement_count;
    uint64_t code_context_id; /* the last context in which its code was found loaded */
    uint64_t *addresses;      /* of the program's variables in the context `placed_in`; NULL: not placed */
    uint64_t placed_in;
};
#define SG_CODE SIZE_MAX

/* The configuration of launches that take no arguments. */
struct sg_legacy_launch {
    unsigned block[3];
    uint32_t shared_bytes, param_bytes;
    unsigned char params[4096]; /* the limit when these calls were current */
};

struct CUfunc_st {
    struct sg_object object;
    struct CUmod_st *module;
    struct sg_kernel *kernel;
    uint32_t dynamic_bytes; /* maximum dynamic shared memory of a launch */
    int carveout, cluster_allowed;
    uint64_t launches;
    struct { /* occupancy of its latest launch; most launches have the same shape */
        const struct sg_device *device;
        uint32_t threads, shared_bytes, resident_blocks;
    } fit;
    struct sg_legacy_launch *legacy; /* NULL until it is configured */
};

/* Whether a launch or stream attribute is accepted, possibly without effect; NOT_SUPPORTED or INVALID_VALUE
 * otherwise. */
CUresult sg_attribute_support(int attribute);
/* Read a whole file and add a terminating zero. NULL: not readable. The caller frees it. */
char *sg_file_read(const char *path, size_t *bytes);
void sg_module_end(struct CUmod_st *module);
CUresult sg_launch_check(const struct sg_device *device, const struct CUfunc_st *function, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes);
/* Return the addresses of the parameter values, from either `params` or `extra`. */
CUresult sg_launch_params(const struct sg_kernel *kernel, void **params, void **extra, const void **values);
void sg_variables_end(struct CUmod_st *module);
/* Allocate the memory of the module's code in this context if code is counted and not loaded there. May wait, so the
 * module may be unloaded on return, which is INVALID_HANDLE. */
CUresult sg_code_load(CUcontext context, struct CUmod_st *module);
CUresult sg_function_launch(CUcontext context, struct CUfunc_st *function, const unsigned grid[3],
                            const unsigned block[3], unsigned shared_bytes, CUstream stream, void **params,
                            void **extra, const struct sg_launch_options *options);
/* Make room for a kernel that spins, before it is submitted. */
CUresult sg_spin_reserve(void);
/* Follow the kernel that was submitted last to the stream until it ends. */
void sg_spin_add(CUstream stream, const struct sg_kernel *kernel, const void **values, uint64_t duration_ns);
/* Read the counters of all kernels that spin, and end those that have met. Return a device on which one still spins,
 * or NULL. */
struct sg_device *sg_spins_follow(void);
uint32_t sg_function_occupancy(const struct sg_device *device, const struct CUfunc_st *function, uint32_t threads,
                               size_t shared_bytes);

#endif

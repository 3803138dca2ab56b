/* Inside libsoftgpu.so: images, modules and functions. Included by face.h. */
#ifndef COTENANT_SOFTGPU_CODE_H
#define COTENANT_SOFTGPU_CODE_H

/* ---- code ------------------------------------------------------------------------------------------------------ */

enum sg_builtin { SG_BUILTIN_NONE, SG_BUILTIN_VECADD, SG_BUILTIN_SAXPY, SG_BUILTIN_GEMM, SG_BUILTIN_REDUCE,
                  SG_BUILTIN_FILL, SG_BUILTINS };

/* What an image says about one kernel. */
struct sg_kernel {
    char name[SG_NAME_BYTES];
    enum sg_builtin builtin;
    uint32_t param_count;
    uint32_t param_bytes[SG_MAX_PARAMS], param_offset[SG_MAX_PARAMS];
    uint64_t duration_ns;      /* alone on the device, whatever the grid; 0: by block */
    int duration_param;        /* a parameter holds the duration: its index; -1: none */
    uint64_t block_ns;         /* each block */
    double thread_ns;          /* and for each thread of a block */
    double bytes_per_block, bytes_per_thread;
    uint32_t registers, shared_bytes, max_threads, blocks_per_sm, local_bytes, const_bytes;
    double jitter; /* standard deviation over mean */
    int ptx_version, binary_version;
};

struct sg_variable {
    char name[SG_NAME_BYTES];
    uint64_t bytes;
    unsigned char *initial; /* NULL: zeros */
};

struct sg_image {
    struct sg_kernel *kernels;
    size_t count, room;
    struct sg_variable *variables;
    size_t variable_count;
    uint64_t code_bytes; /* of what was read, unpacked */
};

/* Reads any kind of image. CUDA_SUCCESS, or the driver's code; `bytes` 0: unknown, ends where the format says. */
CUresult sg_image_read(const void *data, size_t bytes, struct sg_image *image);
void sg_image_free(struct sg_image *image);
CUresult sg_image_text(const char *text, size_t bytes, struct sg_image *image);
CUresult sg_image_ptx(const char *text, size_t bytes, struct sg_image *image);
CUresult sg_image_elf(const unsigned char *data, size_t bytes, struct sg_image *image);
CUresult sg_image_fatbin(const unsigned char *data, size_t bytes, struct sg_image *image);
/* As a text image, a zero behind it; NULL: no memory, or a name that a text image cannot hold. The caller frees it. */
char *sg_image_write(const struct sg_image *image, size_t *bytes);
struct sg_kernel *sg_image_add(struct sg_image *image, const char *name, size_t length); /* NULL: no room */
/* 0, or -1: not to be had. The initial bytes are copied; NULL: zeros. */
int sg_image_variable(struct sg_image *image, const char *name, size_t length, uint64_t bytes, const void *initial);
int sg_variables_copy(struct sg_image *image, const struct sg_image *source);
void sg_variables_free(struct sg_image *image);
int sg_kernel_param(struct sg_kernel *kernel, uint32_t bytes, uint32_t alignment);       /* 0, or -1: too many */
void sg_kernel_default(struct sg_kernel *kernel); /* the stated model of code we cannot run */

CUresult sg_builtin_run(const struct sg_effect *effect);
/* A kernel did wrong: the device's server decides what follows, for this process and for others. */
void sg_kernel_fault(struct sg_link *link, CUresult fault);
int sg_builtin_find(const char *name, size_t length);
const char *sg_builtin_name(enum sg_builtin builtin);
void sg_builtin_shape(struct sg_kernel *kernel); /* its parameters */

/* A variable's memory in one context, or the code's. */
struct sg_placed {
    size_t variable; /* SG_CODE: none */
    uint64_t context_id, address, memory_id;
};

/* Modules and libraries are one thing here, and so are functions and kernels: a library's kernel has no context. */
struct CUmod_st {
    struct sg_object object;
    struct CUctx_st *context; /* NULL: a library */
    uint64_t context_id;
    struct sg_image image;
    struct CUfunc_st **functions; /* made when asked for; one per kernel of the image */
    struct sg_placed *placed;     /* its variables, as asked for */
    size_t placed_count;
    uint64_t code_context_id; /* the last context in which its code was found to be placed */
};
#define SG_CODE SIZE_MAX

/* What launches that take no arguments of their own will use. */
struct sg_old {
    unsigned block[3];
    uint32_t shared_bytes, param_bytes;
    unsigned char params[4096]; /* as many as a kernel of that time could have */
};

struct CUfunc_st {
    struct sg_object object;
    struct CUmod_st *module;
    struct sg_kernel *kernel;
    uint32_t dynamic_bytes; /* how much shared memory a launch may add */
    int carveout, cluster_allowed;
    uint64_t launches;
    struct { /* of its latest launch: most are of the same shape */
        const struct sg_device *device;
        uint32_t threads, shared_bytes, at_once;
    } fit;
    struct sg_old *old; /* NULL until something of it is set */
};

/* An attribute of launches and streams: taken, if only as advice; refused as unsupported; or none at all. */
CUresult sg_attribute_known(int attribute);
/* The whole file with a zero behind it; NULL: not to be had. The caller frees it. */
char *sg_file_read(const char *path, size_t *bytes);
void sg_module_end(struct CUmod_st *module);
CUresult sg_launch_check(const struct sg_device *device, const struct CUfunc_st *function, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes);
/* Where each parameter's value lies, in whichever way they were given. */
CUresult sg_launch_params(const struct sg_kernel *kernel, void **params, void **extra, const void **values);
void sg_variables_end(struct CUmod_st *module);
/* The code takes its memory in this context, where code takes any and this does not have it yet. May wait: afterwards
 * the module may be gone, which is INVALID_HANDLE. */
CUresult sg_code_place(CUcontext context, struct CUmod_st *module);
CUresult sg_function_launch(CUcontext context, struct CUfunc_st *function, const unsigned grid[3],
                            const unsigned block[3], unsigned shared_bytes, CUstream stream, void **params,
                            void **extra, int is_cooperative);
uint32_t sg_function_occupancy(const struct sg_device *device, const struct CUfunc_st *function, uint32_t threads,
                               size_t shared_bytes);

#endif

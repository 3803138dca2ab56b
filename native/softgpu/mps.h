/* What the control daemon told this process when it became an MPS client. */
#ifndef COTENANT_SOFTGPU_MPS_H
#define COTENANT_SOFTGPU_MPS_H

struct sg_mps_gpu {
    int ordinal; /* among the soft GPUs of the directory */
    unsigned group;
};

struct sg_mps {
    int is_client;
    int socket; /* kept for life: the daemon lists who is connected */
    int is_per_context; /* contexts may have percentages of their own */
    int count;
    struct sg_mps_gpu gpus[SG_MAX_DEVICES];
};

extern struct sg_mps sg_mps;

/* Asks the daemon, if there is one. SUCCESS whether or not this process is a client now; otherwise a refusal. */
CUresult sg_mps_join(void);
void sg_mps_part(void); /* closes the line */
/* The cap to ask for: of a context that wants so many SMs (0: all), with its percentage if it has its own. */
uint32_t sg_mps_cap(const struct sg_device *device, uint32_t wanted);
/* SMs that a context's kernels can have. */
static inline uint32_t sg_context_sms(const struct CUctx_st *context)
{
    return context->sm_cap ? context->sm_cap : context->device->config.sm_count;
}

#endif

/* The MPS state of this process. */
#ifndef COTENANT_SOFTGPU_DRIVER_CONTEXT_MPS_H
#define COTENANT_SOFTGPU_DRIVER_CONTEXT_MPS_H

struct sg_mps_gpu {
    int ordinal; /* number of the device in the directory */
    unsigned group;
};

struct sg_mps {
    int is_client;
    int socket; /* stays open until exit: the daemon lists connected clients */
    int is_per_context; /* contexts may have different percentages */
    int count;
    struct sg_mps_gpu gpus[SG_MAX_DEVICES];
};

extern struct sg_mps sg_mps;

/* Join the daemon if there is one. Succeeds if there is none; otherwise the error is a refusal. */
CUresult sg_mps_join(void);
void sg_mps_disconnect(void); /* close the connection */
/* Return the SM cap of a context that requests `wanted` SMs (0: all), reduced by its percentage if contexts have their
 * own. */
uint32_t sg_mps_cap(const struct sg_device *device, uint32_t wanted);
/* Return the number of SMs that kernels of the context can use. */
static inline uint32_t sg_context_sms(const struct CUctx_st *context)
{
    return context->sm_cap ? context->sm_cap : context->device->config.sm_count;
}

#endif

/* The root page of a process, and the device on which a call acts. */
#define _GNU_SOURCE
#include "hook/entry/page.h"

#include "hook/entry/route.h"

#include <sys/mman.h>

_Atomic(struct ct_page *) ct_page;
static _Thread_local int chosen_device = CT_ANY_DEVICE;

struct ct_page *ct_page_open(void)
{
    struct ct_page *page = load_acquire(&ct_page), *other = NULL;
    if (page)
        return page;
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (madvise(page, 4096, MADV_WIPEONFORK) < 0 || !atomic_compare_exchange_strong(&ct_page, &other, page)) {
        munmap(page, 4096);
        return other;
    }
    return page;
}

/* A device beyond those of the tenant is one that the program must not use: what it does there counts on the first one. */
uint32_t ct_device_number(const struct ct_page *page)
{
    CUdevice device = chosen_device;
    if (device == CT_ANY_DEVICE && CT_NEXT(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return 0; /* the thread has no context yet */
    return device >= 0 && (uint32_t)device < load_relaxed(&page->device_count) && device < CT_DEVICES ? (uint32_t)device
                                                                                                     : 0;
}

int ct_device_enter(int64_t device)
{
    const int outer = chosen_device;
    if (device >= 0 && device < CT_DEVICES && ct_has_several_devices(load_acquire(&ct_page)))
        chosen_device = (int)device;
    return outer;
}

void ct_device_leave(const int *outer)
{
    if (CT_UNLIKELY(chosen_device != *outer))
        chosen_device = *outer;
}

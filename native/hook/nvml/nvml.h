/* The functions of NVML that the hook replaces. */
#ifndef COTENANT_HOOK_NVML_NVML_H
#define COTENANT_HOOK_NVML_NVML_H

/* Returns the function that a program gets for this name, where `address` is NVML's own. */
void *ct_nvml_substitute(const char *name, void *address);

#endif

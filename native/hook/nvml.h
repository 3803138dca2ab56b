/* Which names of NVML does the hook stand in for? */
#ifndef COTENANT_HOOK_NVML_H
#define COTENANT_HOOK_NVML_H

/* What a program that asks for this name of NVML gets, where NVML's own address is this. */
void *ct_nvml_instead(const char *name, void *address);

#endif

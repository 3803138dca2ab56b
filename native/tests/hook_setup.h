/* Sets up the hook within a test: a driver that does nothing, and a directory for records. */
#ifndef COTENANT_TESTS_HOOK_SETUP_H
#define COTENANT_TESTS_HOOK_SETUP_H

#include "expect.h"
#include "hook/entry/session.h"

#include <dirent.h>
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **params, void **extra);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuCtxSynchronize(void);
CUresult cuEventQuery(CUevent event);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamDestroy_v2(CUstream stream);

static char test_records[64];

/* The hook's dlsym is not linked into tests, because sanitizers look up symbols before any other code may run. */
ct_dlsym_type ct_real_dlsym(void)
{
    return dlsym;
}

static inline void test_hook_open(const char *measure, const char *sample)
{
    strcpy(test_records, "/tmp/hook-test-XXXXXX");
    EXPECT(mkdtemp(test_records) != NULL);
    setenv("COTENANT_RECORD", test_records, 1);
    setenv("COTENANT_MEASURE", measure, 1);
    setenv("COTENANT_SAMPLE", sample, 1);
    EXPECT(dlopen(IDLE_DRIVER, RTLD_NOW | RTLD_LOCAL) != NULL);
}

/* Removes the records; returns how many there were. */
static inline int test_hook_close(void)
{
    char path[512];
    int count = 0;
    DIR *directory = opendir(test_records);
    EXPECT(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", test_records, entry->d_name);
            unlink(path);
            count++;
        }
    closedir(directory);
    rmdir(test_records);
    return count;
}

static inline CUresult test_launch(uintptr_t function, unsigned grid, CUstream stream)
{
    return cuLaunchKernel((CUfunction)function, grid, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

#endif

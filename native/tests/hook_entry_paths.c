/* A program that obtains the driver's functions in one of several ways, uses them, and prints whose functions it
 * got. */
#define _GNU_SOURCE
#include "expect.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*call_init)(unsigned);
typedef int (*call_context)(void **, unsigned, int);
typedef int (*call_load)(void **, const void *);
typedef int (*call_function)(void **, void *, const char *);
typedef int (*call_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                           void **,
                           void **);
typedef int (*call_wait)(void);
typedef int (*call_end)(void *);

static const char IMAGE[] = "softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n";

static const char *owner_of(void *address)
{
    Dl_info info;
    EXPECT(address && dladdr(address, &info) && info.dli_fname);
    const char *slash = strrchr(info.dli_fname, '/');
    const char *name = slash ? slash + 1 : info.dli_fname;
    if (strncmp(name, "libcotenant", 11) == 0)
        return "hook";
    return strncmp(name, "libcuda", 7) == 0 || strncmp(name, "libsoftgpu", 10) == 0 ? "driver" : name;
}

/* Launches three kernels through this handle. */
static void launch_through(void *handle, const char *path)
{
    void *context, *module, *function;
    unsigned long long nanoseconds = 1000;
    void *parameters[] = {&nanoseconds};
    call_launch launch = (call_launch)dlsym(handle, "cuLaunchKernel");
    call_init init = (call_init)dlsym(handle, "cuInit");
    void *version = dlsym(handle, "cuDriverGetVersion"); /* which the hook does not replace */
    EXPECT(init && launch && version);
    EXPECT_EQ(init(0), 0);
    EXPECT_EQ(((call_context)dlsym(handle, "cuCtxCreate_v2"))(&context, 0, 0), 0);
    EXPECT_EQ(((call_load)dlsym(handle, "cuModuleLoadData"))(&module, IMAGE), 0);
    EXPECT_EQ(((call_function)dlsym(handle, "cuModuleGetFunction"))(&function, module, "spin"), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL), 0);
    EXPECT_EQ(((call_wait)dlsym(handle, "cuCtxSynchronize"))(), 0);
    EXPECT_EQ(((call_end)dlsym(handle, "cuCtxDestroy_v2"))(context), 0);
    printf("%s: cuLaunchKernel is the %s's, cuDriverGetVersion the %s's\n", path, owner_of((void *)launch),
           owner_of(version));
    fflush(stdout);
}

static void *open_library(const char *name, int flags)
{
    void *handle = dlopen(name, flags);
    if (!handle)
        fprintf(stderr, "%s\n", dlerror());
    EXPECT(handle != NULL);
    return handle;
}

static void *launch_in_thread(void *handle)
{
    launch_through(handle, "thread");
    return NULL;
}

static void launch_in_threads(void)
{
    pthread_t threads[4];
    void *handle = open_library("libcuda.so.1", RTLD_NOW);
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, launch_in_thread, handle), 0);
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
}

/* A child has neither its parent's context nor its parent's record. */
static void launch_in_children(char *self)
{
    int status;
    void *handle = open_library("libcuda.so.1", RTLD_NOW);
    (void)dlsym(handle, "cuLaunchKernel");
    pid_t child = fork();
    if (child == 0) {
        launch_through(handle, "fork");
        execl(self, self, "open", "libcuda.so.1", (char *)NULL);
        _exit(1);
    }
    launch_through(handle, "parent");
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
}

int main(int argc, char **argv)
{
    EXPECT(argc >= 2);
    const char *path = argv[1], *name = argc > 2 ? argv[2] : "libcuda.so.1";
    if (strcmp(path, "open") == 0)
        launch_through(open_library(name, RTLD_NOW | RTLD_LOCAL), path);
    else if (strcmp(path, "lazy") == 0)
        launch_through(open_library(name, RTLD_LAZY | RTLD_GLOBAL), path);
    else if (strcmp(path, "deep") == 0)
        launch_through(open_library(name, RTLD_NOW | RTLD_DEEPBIND), path);
    else if (strcmp(path, "default") == 0 && open_library(name, RTLD_NOW | RTLD_GLOBAL))
        launch_through(RTLD_DEFAULT, path);
    else if (strcmp(path, "next") == 0 && open_library(name, RTLD_NOW | RTLD_GLOBAL))
        launch_through(RTLD_NEXT, path);
    else if (strcmp(path, "space") == 0)
        launch_through(dlmopen(LM_ID_NEWLM, name, RTLD_NOW), path);
    else if (strcmp(path, "again") == 0) {
        EXPECT_EQ(dlclose(open_library(name, RTLD_NOW)), 0);
        launch_through(open_library(name, RTLD_NOW), path);
        EXPECT_EQ(dlclose(open_library(name, RTLD_NOW)), 0);
    } else if (strcmp(path, "threads") == 0)
        launch_in_threads();
    else if (strcmp(path, "children") == 0)
        launch_in_children(argv[0]);
    else if (strcmp(path, "nothing") == 0)
        EXPECT(dlsym(RTLD_DEFAULT, "cuDriverGetVersion") == NULL);
    else
        EXPECT(!"a known path");
    return 0;
}

/* Finds the driver once, by exact symbol names, and maps its addresses to hooks. */
#define _GNU_SOURCE
#include "hook/entry/route.h"

#include <dlfcn.h>
#include <string.h>

const char *const ct_names[CT_CALL_COUNT] = {
#define CT_EACH_HOOK(kind, symbol, ...) [CT_##symbol] = #symbol,
#define CALLED(symbol, ...) [CT_##symbol] = #symbol,
#include "hook/entry/hooked.def"
#undef CALLED
#undef CT_EACH_HOOK
};

/* Twice the number of possible keys: each hook is found by the driver's address and by that of the next interposer. */
enum { ADDRESS_BUCKETS = 2048 };
_Static_assert(ADDRESS_BUCKETS >= 4 * CT_HOOKED_COUNT, "the table of addresses stays half empty");

struct address_entry {
    uintptr_t address;
    int call;
};

static struct address_entry addresses[ADDRESS_BUCKETS]; /* written before `state` is BOUND, then only read */
static enum { UNBOUND, BINDING, BOUND } const first_state = UNBOUND;
static _Atomic int state = first_state;

/* Stands in for a symbol that an older driver lacks; a program that looks the symbol up first never calls it. */
static CUresult return_not_supported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static unsigned hash_of(uintptr_t address)
{
    return (unsigned)((uint64_t)address * UINT64_C(0x9e3779b97f4a7c15) >> 53);
}

static void add_address(uintptr_t address, int call)
{
    unsigned at = hash_of(address) % ADDRESS_BUCKETS;
    if (!address)
        return;
    while (addresses[at].address && addresses[at].address != address)
        at = (at + 1) % ADDRESS_BUCKETS;
    if (!addresses[at].address) /* two symbols with one address are one function: either hook is correct */
        addresses[at] = (struct address_entry){address, call};
}

/* The shim directory has the driver under another name. Otherwise the driver is the library loaded under the usual
 * name, from any path, because the linker compares sonames. It stays loaded, because programs keep its addresses. */
static void *open_driver(int may_load)
{
    const int flags = RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE;
    void *driver = dlopen("libcuda-real.so.1", flags | RTLD_NOLOAD);
    if (!driver)
        driver = dlopen("libcuda.so.1", flags | RTLD_NOLOAD);
    if (!driver && may_load)
        driver = dlopen("libcuda.so.1", flags);
    return driver;
}

/* Returns the address, or NULL if it is the hook's own function. */
static void *unless_hook(void *address, int call)
{
    return call < CT_HOOKED_COUNT && address == ct_hooks[call] ? NULL : address;
}

/* Returns whether the hook's functions are found first by the program, because it was preloaded or linked. Then a
 * library loaded after the hook may interpose on the driver as well, and is called next. Otherwise RTLD_NEXT must not
 * be used. */
static int is_interposed(ct_dlsym_type find)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    void *first = program ? find(program, "cuLaunchKernel") : NULL;
    if (program)
        dlclose(program);
    return first == ct_hooks[CT_cuLaunchKernel];
}

int ct_bind(int may_load)
{
    void *driver[CT_CALL_COUNT], *next[CT_CALL_COUNT];
    if (load_acquire(&state) == BOUND)
        return 1;
    /* No lock is held here: the linker has its own, and may run a constructor that calls the hook. */
    ct_dlsym_type find = ct_real_dlsym();
    void *library = find ? open_driver(may_load) : NULL;
    if (!library)
        return 0;
    int interposed = is_interposed(find);
    for (int i = 0; i < CT_CALL_COUNT; i++) {
        driver[i] = unless_hook(find(library, ct_names[i]), i);
        next[i] = interposed && i < CT_HOOKED_COUNT ? unless_hook(find(RTLD_NEXT, ct_names[i]), i) : NULL;
        if (!next[i])
            next[i] = driver[i];
    }
    dlerror(); /* a missing symbol is not an error of the program */
    int expected = UNBOUND;
    if (atomic_compare_exchange_strong(&state, &expected, BINDING)) {
        for (int i = 0; i < CT_CALL_COUNT; i++) {
            if (i < CT_HOOKED_COUNT) {
                add_address((uintptr_t)driver[i], i);
                add_address((uintptr_t)next[i], i);
            }
            void *target = next[i] ? next[i] : (void *)return_not_supported;
            store_relaxed(&ct_next[i], target);
        }
        store_release(&state, BOUND);
    }
    while (load_acquire(&state) != BOUND)
        ; /* the other thread is about to finish a few stores */
    return 1;
}

void *ct_substitute(void *address, int *is_known)
{
    *is_known = 1;
    for (unsigned at = hash_of((uintptr_t)address) % ADDRESS_BUCKETS; addresses[at].address;
         at = (at + 1) % ADDRESS_BUCKETS)
        if (addresses[at].address == (uintptr_t)address)
            return ct_hooks[addresses[at].call];
    for (int i = 0; i < CT_HOOKED_COUNT; i++)
        if (ct_hooks[i] == address)
            return address;
    *is_known = 0;
    return address;
}

int ct_is_hooked_symbol(const char *name)
{
    for (int i = 0; i < CT_HOOKED_COUNT; i++)
        if (strcmp(ct_names[i], name) == 0)
            return 1;
    return 0;
}

/* A symbol is a base name, optionally a version, and optionally the suffix of the per-thread default stream. */
static int is_suffix(const char *suffix)
{
    if (suffix[0] == '_' && suffix[1] == 'v' && suffix[2] >= '1' && suffix[2] <= '9')
        for (suffix += 3; *suffix >= '0' && *suffix <= '9';)
            suffix++;
    return !*suffix || strcmp(suffix, "_ptsz") == 0 || strcmp(suffix, "_ptds") == 0;
}

int ct_is_hooked_base(const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < CT_HOOKED_COUNT; i++)
        if (strncmp(ct_names[i], name, length) == 0 && is_suffix(ct_names[i] + length))
            return 1;
    return 0;
}

/* Which driver do calls go to, and which of its addresses are whose? Found once, by exact symbols. */
#define _GNU_SOURCE
#include "hook/route.h"

#include <dlfcn.h>
#include <string.h>

const char *const ct_names[CT_CALL_COUNT] = {
#define CT_EACH_HOOK(what, symbol, ...) [CT_##symbol] = #symbol,
#define ASKED(symbol, ...) [CT_##symbol] = #symbol,
#include "hook/hooked.def"
#undef ASKED
#undef CT_EACH_HOOK
};

/* Twice as many places as there can be keys: each hook is known by the driver's address and by its next one's. */
enum { PLACES = 2048 };
_Static_assert(PLACES >= 4 * CT_HOOKED_COUNT, "the table of addresses stays half empty");

struct place {
    uintptr_t address;
    int call;
};

static struct place places[PLACES]; /* written before `state` says so, then only read */
static enum { UNBOUND, BINDING, BOUND } const first_state = UNBOUND;
static _Atomic int state = first_state;

/* A driver older than our list lacks some of it; a program that asks it first never gets here. */
static CUresult not_in_this_driver(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static unsigned place_of(uintptr_t address)
{
    return (unsigned)((uint64_t)address * UINT64_C(0x9e3779b97f4a7c15) >> 53);
}

static void note(uintptr_t address, int call)
{
    unsigned at = place_of(address) % PLACES;
    if (!address)
        return;
    while (places[at].address && places[at].address != address)
        at = (at + 1) % PLACES;
    if (!places[at].address) /* two symbols at one address are one function: either hook is right */
        places[at] = (struct place){address, call};
}

/* The shim directory has the driver under a name of its own; otherwise it is whatever is loaded under the usual one,
 * be it from another path: the linker compares sonames. We keep it loaded, for programs keep our addresses of it. */
static void *open_driver(int may_load)
{
    const int here = RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE;
    void *driver = dlopen("libcuda-real.so.1", here | RTLD_NOLOAD);
    if (!driver)
        driver = dlopen("libcuda.so.1", here | RTLD_NOLOAD);
    if (!driver && may_load)
        driver = dlopen("libcuda.so.1", here);
    return driver;
}

static void *not_ours(void *address, int call)
{
    return call < CT_HOOKED_COUNT && address == ct_hooks[call] ? NULL : address;
}

/* When our functions are the program's own, by preload or by linking, somebody loaded after us may stand between us
 * and the driver. Then that one comes next. Otherwise there is no order to keep, and RTLD_NEXT has no meaning. */
static int is_in_line(ct_dlsym_type find)
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
    if (atomic_load_explicit(&state, memory_order_acquire) == BOUND)
        return 1;
    /* No lock is held here: the linker has its own, and a constructor that it runs may call us. */
    ct_dlsym_type find = ct_real_dlsym();
    void *library = find ? open_driver(may_load) : NULL;
    if (!library)
        return 0;
    int in_line = is_in_line(find);
    for (int i = 0; i < CT_CALL_COUNT; i++) {
        driver[i] = not_ours(find(library, ct_names[i]), i);
        next[i] = in_line && i < CT_HOOKED_COUNT ? not_ours(find(RTLD_NEXT, ct_names[i]), i) : NULL;
        if (!next[i])
            next[i] = driver[i];
    }
    dlerror(); /* what we did not find is no error of the program's */
    int expected = UNBOUND;
    if (atomic_compare_exchange_strong(&state, &expected, BINDING)) {
        for (int i = 0; i < CT_CALL_COUNT; i++) {
            if (i < CT_HOOKED_COUNT) {
                note((uintptr_t)driver[i], i);
                note((uintptr_t)next[i], i);
            }
            void *goal = next[i] ? next[i] : (void *)not_in_this_driver;
            atomic_store_explicit(&ct_next[i], goal, memory_order_relaxed);
        }
        atomic_store_explicit(&state, BOUND, memory_order_release);
    }
    while (atomic_load_explicit(&state, memory_order_acquire) != BOUND)
        ; /* the other thread is between two memory writes */
    return 1;
}

void *ct_substitute(void *address, int *is_known)
{
    *is_known = 1;
    for (unsigned at = place_of((uintptr_t)address) % PLACES; places[at].address; at = (at + 1) % PLACES)
        if (places[at].address == (uintptr_t)address)
            return ct_hooks[places[at].call];
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

/* A symbol is its base, then perhaps a version, then perhaps a twin's mark. */
static int is_suffix(const char *rest)
{
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '1' && rest[2] <= '9')
        for (rest += 3; *rest >= '0' && *rest <= '9';)
            rest++;
    return !*rest || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

int ct_is_hooked_base(const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < CT_HOOKED_COUNT; i++)
        if (strncmp(ct_names[i], name, length) == 0 && is_suffix(ct_names[i] + length))
            return 1;
    return 0;
}

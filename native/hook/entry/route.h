/* The next function of every call, and the hook that replaces each address of the driver. */
#ifndef COTENANT_HOOK_ENTRY_ROUTE_H
#define COTENANT_HOOK_ENTRY_ROUTE_H

#include "atomics.h"
#include "hook/entry/driver.h"

#define CT_EXPORT __attribute__((visibility("default")))
#define CT_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Expands every line of hooked.def to CT_EACH_HOOK(kind, symbol, types...); CALLED is left to the includer. */
#define ONE(kind, ...) CT_EACH_HOOK(kind, __VA_ARGS__)
#define TWO(kind, symbol, suffix, ...)                                                                                 \
    CT_EACH_HOOK(kind, symbol, __VA_ARGS__) CT_EACH_HOOK(kind, symbol##suffix, __VA_ARGS__)
#define ENGINE(symbol, suffix, engine, bytes, stream, ...)                                                             \
    CT_EACH_HOOK(ENGINE, symbol, __VA_ARGS__) CT_EACH_HOOK(ENGINE, symbol##suffix, __VA_ARGS__)

enum ct_call {
#define CT_EACH_HOOK(kind, symbol, ...) CT_##symbol,
#define CALLED(symbol, ...)
#include "hook/entry/hooked.def"
#undef CALLED
    CT_HOOKED_COUNT,
    CT_BEFORE_CALLED = CT_HOOKED_COUNT - 1,
#undef CT_EACH_HOOK
#define CT_EACH_HOOK(kind, symbol, ...)
#define CALLED(symbol, ...) CT_##symbol,
#include "hook/entry/hooked.def"
#undef CALLED
#undef CT_EACH_HOOK
    CT_CALL_COUNT,
};

#define CT_EACH_HOOK(kind, symbol, ...) typedef CUresult (*ct_type_##symbol)(__VA_ARGS__);
#define CALLED(symbol, ...) typedef CUresult (*ct_type_##symbol)(__VA_ARGS__);
#include "hook/entry/hooked.def"
#undef CALLED
#undef CT_EACH_HOOK

/* The function that a call is passed on to: the driver's, or that of another interposer. Initially each entry is a
 * function that finds the driver and repeats the call, so that later calls need no check. */
extern _Atomic(void *) ct_next[CT_CALL_COUNT];
#define CT_NEXT(symbol) ((ct_type_##symbol)load_relaxed(&ct_next[CT_##symbol]))

extern void *const ct_hooks[CT_HOOKED_COUNT]; /* the hook's function for each symbol */
extern const char *const ct_names[CT_CALL_COUNT];

/* Finds the driver once; returns 0 if there is none. `may_load`: the driver may be loaded for that. */
int ct_bind(int may_load);

/* Returns the hook for this address of the driver, or the address itself; `*is_known` is set accordingly. */
void *ct_substitute(void *address, int *is_known);

/* Return whether this is the name of a hooked symbol, or the base name that cuGetProcAddress uses. */
int ct_is_hooked_symbol(const char *name);
int ct_is_hooked_base(const char *name);

/* The C library's dlsym, or that of the next interposer. */
typedef void *(*ct_dlsym_type)(void *handle, const char *name);
ct_dlsym_type ct_real_dlsym(void);

#endif

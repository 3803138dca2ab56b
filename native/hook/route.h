/* Where every call goes next, and which hook stands in for which of the driver's addresses. */
#ifndef COTENANT_HOOK_ROUTE_H
#define COTENANT_HOOK_ROUTE_H

#include "hook/driver.h"

#include <stdatomic.h>

#define CT_EXPORT __attribute__((visibility("default")))
#define CT_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Every line of hooked.def as one macro per symbol: CT_EACH_HOOK(what, symbol, types...), and ASKED as it is. */
#define ONE(what, ...) CT_EACH_HOOK(what, __VA_ARGS__)
#define TWO(what, symbol, twin, ...)                                                                                   \
    CT_EACH_HOOK(what, symbol, __VA_ARGS__) CT_EACH_HOOK(what, symbol##twin, __VA_ARGS__)
#define ENGINE(symbol, twin, engine, bytes, stream, ...)                                                               \
    CT_EACH_HOOK(ENGINE, symbol, __VA_ARGS__) CT_EACH_HOOK(ENGINE, symbol##twin, __VA_ARGS__)

enum ct_call {
#define CT_EACH_HOOK(what, symbol, ...) CT_##symbol,
#define ASKED(symbol, ...)
#include "hook/hooked.def"
#undef ASKED
    CT_HOOKED_COUNT,
    CT_BEFORE_ASKED = CT_HOOKED_COUNT - 1,
#undef CT_EACH_HOOK
#define CT_EACH_HOOK(what, symbol, ...)
#define ASKED(symbol, ...) CT_##symbol,
#include "hook/hooked.def"
#undef ASKED
#undef CT_EACH_HOOK
    CT_CALL_COUNT,
};

#define CT_EACH_HOOK(what, symbol, ...) typedef CUresult (*ct_type_##symbol)(__VA_ARGS__);
#define ASKED(symbol, ...) typedef CUresult (*ct_type_##symbol)(__VA_ARGS__);
#include "hook/hooked.def"
#undef ASKED
#undef CT_EACH_HOOK

/* Whom a call goes to next: the driver, or whoever stands between us and it. Before the first call each entry is a
 * function that finds the driver and calls again, so that a call pays for no question. */
extern _Atomic(void *) ct_next[CT_CALL_COUNT];
#define CT_NEXT(symbol) ((ct_type_##symbol)atomic_load_explicit(&ct_next[CT_##symbol], memory_order_relaxed))

extern void *const ct_hooks[CT_HOOKED_COUNT];   /* our function for each symbol */
extern const char *const ct_names[CT_CALL_COUNT];

/* Finds the driver, once; 0 if there is none. `may_load` says whether it may be loaded for that. */
int ct_bind(int may_load);

/* The hook that stands in for this address of the driver, or the address itself. `*is_known` tells which. */
void *ct_substitute(void *address, int *is_known);

/* Whether this is the name of a hooked symbol, or its base as cuGetProcAddress knows it. */
int ct_is_hooked_symbol(const char *name);
int ct_is_hooked_base(const char *name);

/* The C library's dlsym, or that of the next one who stands in for it. */
typedef void *(*ct_dlsym_type)(void *handle, const char *name);
ct_dlsym_type ct_real_dlsym(void);

#endif

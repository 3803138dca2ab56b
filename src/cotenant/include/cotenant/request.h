/* Reports the latencies of a program's requests to cotenant, which uses them to meet the tenant's SLO. C99 and C++; link with
 * -ldl where dlopen is not in the C library.
 *
 *     cotenant_request request = cotenant_request_begin();   // or cotenant_request_begin_at(arrived_ns)
 *     ...                                                    // from any thread; requests may overlap
 *     cotenant_request_end(&request);
 *
 * The functions call the hook that `cotenant run` loads before the CUDA driver, and do nothing if there is none: outside of a
 * tenant a call reads one variable. Instants are nanoseconds of CLOCK_MONOTONIC. See docs/how-to/report-requests.md. */
#ifndef COTENANT_REQUEST_H
#define COTENANT_REQUEST_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct cotenant_request {
    uint64_t place, began_ns; /* used by the hook; began_ns 0: not reported, or ended */
} cotenant_request;

typedef struct cotenant_request_hook {
    uint64_t (*begin)(uint64_t arrived_ns, uint64_t *began_ns);
    void (*end)(uint64_t place, uint64_t began_ns);
    void (*took)(uint64_t latency_ns);
} cotenant_request_hook;

/* ISO C has no cast from an object pointer to a function pointer; POSIX guarantees the same representation. */
static inline int cotenant_request_find_in(void *library, cotenant_request_hook *hook)
{
    if (!library)
        return 0;
    *(void **)(&hook->begin) = dlsym(library, "cotenant_hook_request_begin");
    *(void **)(&hook->end) = dlsym(library, "cotenant_hook_request_end");
    *(void **)(&hook->took) = dlsym(library, "cotenant_hook_request_took");
    return hook->begin && hook->end && hook->took;
}

/* Finds the hook once; concurrent calls find the same one. */
static inline const cotenant_request_hook *cotenant_request_find(void)
{
    static cotenant_request_hook known;
    static int state; /* 0: not searched yet; 1: there is none; 2: found */
    int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (now == 0) {
        cotenant_request_hook found = {NULL, NULL, NULL};
        const char *record = getenv("COTENANT_RECORD");
        now = 1;
        if (record && *record &&
            (cotenant_request_find_in(dlopen(NULL, RTLD_LAZY), &found) ||
             cotenant_request_find_in(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL), &found))) {
            __atomic_store_n(&known.begin, found.begin, __ATOMIC_RELAXED);
            __atomic_store_n(&known.end, found.end, __ATOMIC_RELAXED);
            __atomic_store_n(&known.took, found.took, __ATOMIC_RELAXED);
            now = 2;
        }
        __atomic_store_n(&state, now, __ATOMIC_RELEASE);
    }
    return now == 2 ? &known : NULL;
}

/* Returns whether requests are recorded. */
static inline int cotenant_request_is_heard(void)
{
    return cotenant_request_find() != NULL;
}

/* Begins a request that arrived at this instant, for example when a proxy accepted it; 0: now. */
static inline cotenant_request cotenant_request_begin_at(uint64_t arrived_ns)
{
    const cotenant_request_hook *hook = cotenant_request_find();
    cotenant_request request = {0, 0};
    if (hook)
        request.place = hook->begin(arrived_ns, &request.began_ns);
    return request;
}

static inline cotenant_request cotenant_request_begin(void)
{
    return cotenant_request_begin_at(0);
}

/* Ends a request now. A second call has no effect. */
static inline void cotenant_request_end(cotenant_request *request)
{
    const cotenant_request_hook *hook = cotenant_request_find();
    if (hook && request->began_ns)
        hook->end(request->place, request->began_ns);
    request->began_ns = 0;
}

/* Reports a request that has ended, with a latency measured by the caller. */
static inline void cotenant_request_took(uint64_t latency_ns)
{
    const cotenant_request_hook *hook = cotenant_request_find();
    if (hook)
        hook->took(latency_ns);
}

#endif

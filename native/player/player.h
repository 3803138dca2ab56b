/* Plays a sequence of kernels through libcuda, at the instants at which a host would launch them. */
#ifndef COTENANT_PLAYER_PLAYER_H
#define COTENANT_PLAYER_PLAYER_H

#include <stddef.h>
#include <stdint.h>

enum pl_work { PL_KERNEL, PL_HTOD, PL_DTOH, PL_DTOD, PL_MEMSET };

/* One line of a launch script: a kernel or a copy, and the interval to the host's next launch. */
struct pl_step {
    uint64_t amount; /* nanoseconds of a kernel, bytes of a copy */
    uint64_t interval_ns;
    uint32_t blocks, threads;
    uint32_t function; /* index of the script's names */
    uint32_t stream;   /* index of the script's streams */
    enum pl_work work;
};

struct pl_script {
    struct pl_step *steps;
    char **names; /* of functions, without duplicates */
    long *streams;
    size_t count, name_count, stream_count;
    uint64_t max_bytes; /* largest size of a copy */
};

/* Reads a script of `length` bytes. Returns 0, or the number of the first invalid line; -1 if out of memory. */
long pl_script_read(struct pl_script *script, const char *text, size_t length);
void pl_script_free(struct pl_script *script);

typedef int (*pl_copy)(uint64_t, uint64_t, size_t, void *);

/* The driver's functions that are called while playing. */
struct pl_driver {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    int (*synchronize)(void *);
    int (*graph_launch)(void *, void *);
    pl_copy htod, dtoh, dtod;
    int (*memset8)(uint64_t, unsigned char, size_t, void *);
};

/* A context with the script's functions and streams, and buffers for copies. */
struct pl_context {
    struct pl_driver driver;
    void **functions, **streams;
    void *graph; /* the whole request as one graph, or NULL */
    uint64_t device, other, host;
};

/* Creates the context; returns a message on failure, otherwise NULL. `error` receives the driver's result, or 0 if the
 * driver was not the cause. */
const char *pl_context_open(struct pl_context *context, const struct pl_script *script, const char *image, int priority,
                            int graph,
                          int *error);
void pl_context_free(struct pl_context *context);
int pl_launch(const struct pl_context *context, const struct pl_step *step, void *stream);

enum pl_arrival { PL_BACK_TO_BACK, PL_PERIODIC, PL_POISSON, PL_INSTANTS };

struct pl_plan {
    enum pl_arrival arrival;
    uint64_t period_ns; /* interval between arrivals; the mean for Poisson */
    uint64_t seed;
    uint64_t requests; /* 0: until the time limit or a signal */
    uint64_t limit_ns; /* no request begins after this; 0: no limit */
    int reports_requests; /* whether requests are reported to cotenant, with their arrival */
    const uint64_t *instants_ns; /* of PL_INSTANTS: arrival times from the start, one for each request */
};

/* One request: its arrival, its first launch, and its completion. */
struct pl_request {
    uint64_t due_ns, begin_ns, end_ns;
};

struct pl_result {
    struct pl_request *requests;
    size_t count, capacity;
    uint64_t launches;
    int failed; /* the driver's result */
    int no_memory;
};

/* Plays until the plan or pl_stop() ends it. A request that was interrupted is waited for, and not counted. */
void pl_play(const struct pl_context *context, const struct pl_script *script, const struct pl_plan *plan,
             struct pl_result *result);
void pl_result_free(struct pl_result *result);

/* Plays `count` steps from `first` as one request that arrived at `due_ns`; returns the driver's result on failure. */
int pl_play_part(const struct pl_context *context, const struct pl_script *script, size_t first, size_t count,
                 struct pl_request *request);

/* Stops all playing for the rest of the process's life. Async-signal-safe. */
void pl_stop(void);

/* Returns the time to the next arrival of a Poisson process, and advances `state`. */
uint64_t pl_exponential(uint64_t *state, uint64_t mean_ns);

#endif

/* How is a stream of kernels played through libcuda, at the instants a host would launch them? */
#ifndef COTENANT_PLAYER_H
#define COTENANT_PLAYER_H

#include <stddef.h>
#include <stdint.h>

enum pl_work { PL_KERNEL, PL_HTOD, PL_DTOH, PL_DTOD, PL_MEMSET };

/* One line of a launch script: a kernel or a copy, and the time from its launch to the host's next one. */
struct pl_step {
    uint64_t amount; /* of a kernel its nanoseconds, of a copy its bytes */
    uint64_t interval_ns;
    uint32_t blocks, threads;
    uint32_t function; /* place among the script's names */
    uint32_t stream;   /* place among the script's streams */
    enum pl_work work;
};

struct pl_script {
    struct pl_step *steps;
    char **names; /* of functions, each once */
    long *streams;
    size_t count, name_count, stream_count;
    uint64_t most_bytes; /* of one copy */
};

/* Reads a script of `length` bytes. Returns 0, or the number of the line that is none; -1 without memory. */
long pl_script_read(struct pl_script *script, const char *text, size_t length);
void pl_script_free(struct pl_script *script);

typedef int (*pl_copy)(uint64_t, uint64_t, size_t, void *);

/* The driver as this process finds it; shapes and numbers are the driver API's. */
struct pl_driver {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*synchronize)(void *);
    int (*graph_launch)(void *, void *);
    pl_copy htod, dtoh, dtod;
    int (*memset8)(uint64_t, unsigned char, size_t, void *);
};

/* A context with the script's functions and streams, and memory to copy from and to. */
struct pl_stage {
    struct pl_driver driver;
    void **functions, **streams;
    void *graph; /* the whole request as one, or NULL */
    uint64_t device, other, host;
};

/* Makes it; returns what is wrong, or NULL. `failed` is the driver's number for it, 0 if it was not the driver. */
const char *pl_stage_open(struct pl_stage *stage, const struct pl_script *script, const char *image, int priority, int graph,
                          int *failed);
void pl_stage_free(struct pl_stage *stage);
int pl_launch(const struct pl_stage *stage, const struct pl_step *step, void *stream);

enum pl_arrival { PL_BACK_TO_BACK, PL_PERIODIC, PL_POISSON, PL_INSTANTS };

struct pl_plan {
    enum pl_arrival arrival;
    uint64_t period_ns; /* periodic: from one arrival to the next; Poisson: in the mean */
    uint64_t seed;
    uint64_t requests; /* 0: until time or a signal ends it */
    uint64_t limit_ns; /* no request begins later than this; 0: none */
    int tells; /* each request is told to cotenant, from when it was due */
    const uint64_t *instants_ns; /* of PL_INSTANTS: when requests are due, from the beginning on; as many as there are requests */
};

/* One request: when it was due, when its first launch began, when all of it was complete. */
struct pl_request {
    uint64_t due_ns, begin_ns, end_ns;
};

struct pl_result {
    struct pl_request *requests;
    size_t count, room;
    uint64_t launches;
    int failed; /* the driver's number */
    int no_memory;
};

/* Plays until the plan or pl_stop() ends it. A request that was stopped half way is waited for, and not counted. */
void pl_play(const struct pl_stage *stage, const struct pl_script *script, const struct pl_plan *plan, struct pl_result *result);
void pl_result_free(struct pl_result *result);

/* Plays `count` steps from `first` on as one request that was due at `due_ns`; returns the driver's number if it failed. */
int pl_play_part(const struct pl_stage *stage, const struct pl_script *script, size_t first, size_t count, struct pl_request *request);

/* From a signal's handler: no launch begins after it, in this life. */
void pl_stop(void);

/* The time to the next arrival in a Poisson process; `state` moves on. */
uint64_t pl_exponential(uint64_t *state, uint64_t mean_ns);

#endif

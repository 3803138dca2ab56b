/* The thread that runs host functions and callbacks. It is created at first use and sleeps until a function can run. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <signal.h>

/* BATCH is the server's limit of host functions per client, so no more than that can be ready. */
enum { BATCH = 256, RETRY_NS = 200000, POLL_MIN_NS = 20000, POLL_MAX_NS = 1000000 };

static pthread_cond_t wake_condition = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t wake_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned wake_count;
static int started;

void sg_callbacks_wake(void)
{
    pthread_mutex_lock(&wake_lock);
    wake_count++;
    pthread_cond_signal(&wake_condition);
    pthread_mutex_unlock(&wake_lock);
    /* The thread may be sleeping until a later function can run. */
    for (int i = 0; i < sg_device_count; i++)
        sg_wake(&sg_devices[i].connection);
}

/* A wait at the head of its stream ends when its word changes. That cannot be predicted, so the word is polled. */
static int is_waiting_for_word(const struct sg_effect *effect)
{
    const struct sg_word *word = &effect->host.word;
    if (!word->bytes || word->is_write || sg_word_holds(effect->host.device, word))
        return 0;
    if (!effect->host.is_at_head)
        sg_effects_set_at_head(effect->order);
    return 1;
}

/* Return 1 and the function that can run first, with its instant, or 0 if none is predictable. *polled is a device on
 * which a stream waits for a word or a kernel spins. The driver's lock is held. */
static int next_host_function(struct sg_effect *chosen, uint64_t *at_ns, uint64_t *bulletin, struct sg_device **polled)
{
    static struct sg_effect waiting[BATCH]; /* used only by this thread */
    if (sg_word_count())
        sg_effects_apply_writes();
    size_t found = sg_effects_waiting(waiting, BATCH);
    *at_ns = CT_DEVICE_NEVER;
    *polled = sg_spins_follow();
    for (size_t i = 0; i < found; i++) {
        if (waiting[i].host.is_at_head && sg_connection_status(&waiting[i].host.device->connection) == CUDA_SUCCESS &&
            is_waiting_for_word(&waiting[i])) {
            *polled = waiting[i].host.device;
            continue;
        }
        struct sg_query query = {.device = waiting[i].host.device, .target = SG_TARGET_HOST,
                                 .number = waiting[i].host.number, .slot = waiting[i].slot};
        CUresult result = sg_project(&query);
        if (sg_connection_status(&waiting[i].host.device->connection) != CUDA_SUCCESS) {
            *chosen = waiting[i]; /* run it with that status, because the program may wait for its callback */
            *at_ns = CT_DEVICE_DONE;
            return 1;
        }
        if (result != CUDA_SUCCESS || query.at_ns >= *at_ns)
            continue;
        if (query.done && is_waiting_for_word(&waiting[i])) {
            *polled = waiting[i].host.device;
            continue;
        }
        *chosen = waiting[i];
        *at_ns = query.done ? CT_DEVICE_DONE : query.at_ns;
        *bulletin = query.count;
    }
    return *at_ns != CT_DEVICE_NEVER;
}

static void call(const struct sg_effect *effect, CUresult status)
{
    sg_unlock();
    sg_in_callback(1);
    if (effect->host.callback)
        effect->host.callback(effect->host.handle, status, effect->host.data);
    else if (status == CUDA_SUCCESS) /* host functions are not called after an error */
        effect->host.function(effect->host.data);
    sg_in_callback(0);
    sg_relock();
}

/* The lock is held and released while the function runs. */
static void run(const struct sg_effect *effect)
{
    struct sg_device *device = effect->host.device;
    struct sg_request request = {.kind = SG_HOST_DONE, .a = effect->host.number};
    struct sg_reply reply;
    CUresult status = sg_connection_status(&device->connection);
    if (status == CUDA_SUCCESS)
        sg_effects_apply(effect->order);
    if (effect->host.word.is_write && status == CUDA_SUCCESS)
        sg_word_write(device, &effect->host.word);
    else if (!effect->host.word.bytes)
        call(effect, status);
    sg_effects_host_ran(effect->order);
    while (sg_call(&device->connection, &request, &reply) == 0 && reply.result == CT_DEVICE_NOT_READY) {
        /* A late submission delayed the function in the model. It has run already, so wait for the model. */
        sg_unlock();
        sg_sleep_until(&device->connection, atomic_load(&device->connection.ring->wake), sg_clock_ns() + RETRY_NS, 0);
        sg_relock();
    }
    sg_wake(&device->connection);
}

static void *serve(void *nothing)
{
    unsigned seen_count = 0;
    uint64_t pause_ns = POLL_MIN_NS; /* interval at which awaited words are polled */
    (void)nothing;
    sg_relock();
    for (;;) {
        struct sg_effect effect;
        struct sg_device *polled;
        uint64_t at_ns, bulletin = 0;
        pthread_mutex_lock(&wake_lock);
        seen_count = wake_count;
        pthread_mutex_unlock(&wake_lock);
        int found = next_host_function(&effect, &at_ns, &bulletin, &polled);
        uint64_t poll_ns = polled ? sg_clock_ns() + pause_ns : CT_DEVICE_NEVER;
        if (polled && (!found || at_ns > poll_ns)) {
            uint32_t wake = atomic_load(&polled->connection.ring->wake);
            sg_unlock();
            sg_sleep_until(&polled->connection, wake, poll_ns, 0);
            sg_relock();
            pause_ns = pause_ns < POLL_MAX_NS / 2 ? pause_ns * 2 : POLL_MAX_NS;
            continue;
        }
        pause_ns = POLL_MIN_NS;
        if (!found) {
            sg_unlock();
            pthread_mutex_lock(&wake_lock);
            while (wake_count == seen_count)
                pthread_cond_wait(&wake_condition, &wake_lock);
            pthread_mutex_unlock(&wake_lock);
            sg_relock();
            continue;
        }
        struct sg_connection *connection = &effect.host.device->connection;
        if (at_ns != CT_DEVICE_DONE) {
            uint32_t wake = atomic_load(&connection->ring->wake);
            sg_unlock();
            sg_sleep_until(connection, wake, at_ns, 0);
            sg_relock();
            if (sg_clock_ns() < at_ns || atomic_load(&connection->bulletin->submissions) != bulletin ||
                is_waiting_for_word(&effect))
                continue; /* another function may be first, or it now waits for its word */
        }
        run(&effect);
    }
    return NULL;
}

CUresult sg_callbacks_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    if (started)
        return CUDA_SUCCESS;
    sigfillset(&all); /* signals of the program are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_detach(thread);
    started = 1;
    return CUDA_SUCCESS;
}

CUresult sg_host_submit(CUstream stream, CUstream handle, CUhostFn function, CUstreamCallback callback, void *data)
{
    static uint64_t numbers;
    CUresult result = sg_callbacks_start();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_slot slot = {.kind = SG_SLOT_HOST, .value = ++numbers};
    struct sg_effect effect = {
        .kind = SG_EFFECT_HOST,
        .host = {function, callback, handle, data, slot.value, stream->context->device},
    };
    result = sg_submit(stream, &slot);
    if (result == CUDA_SUCCESS)
        result = sg_effect_add(stream, &effect);
    sg_callbacks_wake();
    return result;
}

static void no_op(void *data)
{
    (void)data;
}

CUresult sg_host_barrier(CUstream stream)
{
    return sg_host_submit(stream, stream, no_op, NULL, NULL);
}

static CUresult add(CUstream handle, CUhostFn function, CUstreamCallback callback, void *data)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!function && !callback)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        return sg_leave(function ? sg_capture_host(stream, function, data) : sg_capture_refuse(stream));
    return sg_leave(sg_host_submit(stream, handle, function, callback, data));
}

API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    return add(stream, function, NULL, data);
}

API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
    return add(sg_per_thread_stream(stream), function, NULL, data);
}

API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : add(stream, NULL, callback, data);
}

API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : add(sg_per_thread_stream(stream), NULL, callback, data);
}

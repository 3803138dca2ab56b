/* The process's one thread for host functions and callbacks: made at first use, asleep while none has its turn. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <signal.h>

/* The server knows no more host functions of a client at once, so no more than this can have their turn. */
enum { BATCH = 256, LATER_NS = 200000, SOON_NS = 20000, SELDOM_NS = 1000000 };

static pthread_cond_t poked = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t poke_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned pokes;
static int started;

void sg_callbacks_poke(void)
{
    pthread_mutex_lock(&poke_lock);
    pokes++;
    pthread_cond_signal(&poked);
    pthread_mutex_unlock(&poke_lock);
    /* The thread may be asleep until the turn of another function, which can be long after this one's. */
    for (int i = 0; i < sg_device_count; i++)
        sg_wake(&sg_devices[i].link);
}

/* A wait whose turn has come ends when its word does: nothing foresees that, the word must be looked at. */
static int is_missing(const struct sg_effect *effect)
{
    const struct sg_word *word = &effect->host.word;
    if (!word->bytes || word->is_write || sg_word_holds(effect->host.device, word))
        return 0;
    if (!effect->host.has_turn)
        sg_effects_has_turn(effect->order);
    return 1;
}

/* Under the face's lock: the function whose turn comes first, and when; 0 if none is foreseeable. `polled` is a device
 * on which something waits for a word. */
static int next_turn(struct sg_effect *chosen, uint64_t *at_ns, uint64_t *bulletin, struct sg_device **polled)
{
    static struct sg_effect waiting[BATCH]; /* this thread's alone */
    if (sg_word_count())
        sg_effects_notice();
    size_t found = sg_effects_waiting(waiting, BATCH);
    *at_ns = CT_DEVICE_NEVER;
    *polled = NULL;
    for (size_t i = 0; i < found; i++) {
        if (waiting[i].host.has_turn && sg_trouble(&waiting[i].host.device->link) == CUDA_SUCCESS &&
            is_missing(&waiting[i])) {
            *polled = waiting[i].host.device;
            continue;
        }
        struct sg_question question = {.device = waiting[i].host.device, .target = SG_TARGET_HOST,
                                       .number = waiting[i].host.number, .slot = waiting[i].slot};
        CUresult result = sg_foresee(&question);
        if (sg_trouble(&waiting[i].host.device->link) != CUDA_SUCCESS) {
            *chosen = waiting[i]; /* run it with that status: a program may wait for its callback */
            *at_ns = CT_DEVICE_DONE;
            return 1;
        }
        if (result != CUDA_SUCCESS || question.at_ns >= *at_ns)
            continue;
        if (question.done && is_missing(&waiting[i])) {
            *polled = waiting[i].host.device;
            continue;
        }
        *chosen = waiting[i];
        *at_ns = question.done ? CT_DEVICE_DONE : question.at_ns;
        *bulletin = question.count;
    }
    return *at_ns != CT_DEVICE_NEVER;
}

static void call(const struct sg_effect *effect, CUresult trouble)
{
    sg_unlock();
    sg_in_callback(1);
    if (effect->host.callback)
        effect->host.callback(effect->host.handle, trouble, effect->host.data);
    else if (trouble == CUDA_SUCCESS) /* a host function is not called after an error */
        effect->host.function(effect->host.data);
    sg_in_callback(0);
    sg_relock();
}

/* Under the lock; gives it up while the function runs. */
static void run(const struct sg_effect *effect)
{
    struct sg_device *device = effect->host.device;
    struct sg_request request = {.kind = SG_HOST_DONE, .a = effect->host.number};
    struct sg_reply reply;
    CUresult trouble = sg_trouble(&device->link);
    if (trouble == CUDA_SUCCESS)
        sg_effects_apply(effect->order);
    if (effect->host.word.is_write && trouble == CUDA_SUCCESS)
        sg_word_write(device, &effect->host.word);
    else if (!effect->host.word.bytes)
        call(effect, trouble);
    sg_effects_host_ran(effect->order);
    while (sg_ask(&device->link, &request, &reply) == 0 && reply.result == CT_DEVICE_NOT_READY) {
        /* Its turn was moved by a submission that arrived late; the function has run, the model catches up. */
        sg_unlock();
        sg_sleep_until(&device->link, atomic_load(&device->link.ring->wake), sg_clock_ns() + LATER_NS, 0);
        sg_relock();
    }
    sg_wake(&device->link);
}

static void *serve(void *nothing)
{
    unsigned seen = 0;
    uint64_t pause_ns = SOON_NS; /* between two looks at the words that streams wait for */
    (void)nothing;
    sg_relock();
    for (;;) {
        struct sg_effect effect;
        struct sg_device *polled;
        uint64_t at_ns, bulletin = 0;
        pthread_mutex_lock(&poke_lock);
        seen = pokes;
        pthread_mutex_unlock(&poke_lock);
        int found = next_turn(&effect, &at_ns, &bulletin, &polled);
        uint64_t look_ns = polled ? sg_clock_ns() + pause_ns : CT_DEVICE_NEVER;
        if (polled && (!found || at_ns > look_ns)) {
            uint32_t wake = atomic_load(&polled->link.ring->wake);
            sg_unlock();
            sg_sleep_until(&polled->link, wake, look_ns, 0);
            sg_relock();
            pause_ns = pause_ns < SELDOM_NS / 2 ? pause_ns * 2 : SELDOM_NS;
            continue;
        }
        pause_ns = SOON_NS;
        if (!found) {
            sg_unlock();
            pthread_mutex_lock(&poke_lock);
            while (pokes == seen)
                pthread_cond_wait(&poked, &poke_lock);
            pthread_mutex_unlock(&poke_lock);
            sg_relock();
            continue;
        }
        struct sg_link *link = &effect.host.device->link;
        if (at_ns != CT_DEVICE_DONE) {
            uint32_t wake = atomic_load(&link->ring->wake);
            sg_unlock();
            sg_sleep_until(link, wake, at_ns, 0);
            sg_relock();
            if (sg_clock_ns() < at_ns || atomic_load(&link->bulletin->submissions) != bulletin || is_missing(&effect))
                continue; /* another may be first by now, or its turn has come and its word has not */
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
    sigfillset(&all); /* the program's signals belong to the program's threads */
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
    sg_callbacks_poke();
    return result;
}

static void nothing_more(void *data)
{
    (void)data;
}

CUresult sg_host_barrier(CUstream stream)
{
    return sg_host_submit(stream, stream, nothing_more, NULL, NULL);
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
    return add(sg_twin(stream), function, NULL, data);
}

API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : add(stream, NULL, callback, data);
}

API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : add(sg_twin(stream), NULL, callback, data);
}

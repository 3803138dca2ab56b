/* What the face says of events without asking: never more than the model, and enough while the server is silent. */
#include "softgpu/face.h"
#include "softgpu_server.h"

CUresult cuInit(unsigned int);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);
CUresult cuEventCreate(CUevent *, unsigned int);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **);

enum { STREAMS = 3, EVENTS = 6, STEPS = 24000 /* more slots than outcomes are kept of */ };

static CUfunction spin;
static CUstream streams[STREAMS];
static CUevent events[EVENTS];
static int where[EVENTS]; /* the stream of the latest record; -1: none yet */
static struct test_server server;

static uint32_t dice(uint32_t sides)
{
    static uint64_t state = 20240607;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % sides;
}

static void launch(CUstream stream, uint64_t length_ns, unsigned blocks)
{
    void *params[] = {&length_ns};
    EXPECT_EQ(cuLaunchKernel(spin, blocks, 1, 1, 256, 1, 1, 0, stream, params, NULL), CUDA_SUCCESS);
}

static void make_event(int index)
{
    EXPECT_EQ(cuEventCreate(&events[index], CU_EVENT_DEFAULT), CUDA_SUCCESS);
    where[index] = -1;
}

/* The model's own word about the latest record. */
static int model_says(CUevent event, uint64_t *at_ns)
{
    struct sg_request request = {.kind = SG_EVENT_TIMES, .a = event->model, .b = event->model, .c = event->slot};
    struct sg_reply reply;
    EXPECT_EQ(sg_ask(&event->context->device->link, &request, &reply), 0);
    *at_ns = reply.a;
    return reply.result;
}

static void expect_complete(CUevent event)
{
    uint64_t at_ns;
    float none_ms;
    EXPECT_EQ(model_says(event, &at_ns), CT_DEVICE_OK);
    EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&none_ms, event, event), CUDA_SUCCESS);
    EXPECT_EQ(event->instant.at_ns, at_ns);
}

/* Whatever was seen before, the next word about an event is no later than the model's and no sooner. */
static void ask_about(int index, int *said_complete)
{
    float none_ms;
    uint64_t at_ns;
    CUevent event = events[index];
    if (where[index] < 0) {
        EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
        return;
    }
    int was_complete = dice(4) == 0 && model_says(event, &at_ns) == CT_DEVICE_OK;
    CUresult said = dice(2) ? cuEventQuery(event) : cuEventElapsedTime(&none_ms, event, event);
    EXPECT(said == CUDA_SUCCESS || said == CUDA_ERROR_NOT_READY);
    EXPECT(!was_complete || said == CUDA_SUCCESS);
    if (said == CUDA_SUCCESS) {
        ++*said_complete;
        expect_complete(event);
    }
}

static void expect_stream_complete(int stream)
{
    for (int i = 0; i < EVENTS; i++)
        if (where[i] == stream)
            expect_complete(events[i]);
}

/* Launches, records over pending records, waits across streams, events that end and whose places are used again. */
static void never_more_than_the_model(void)
{
    int said_complete = 0;
    for (int step = 0; step < STEPS; step++) {
        int stream = (int)dice(STREAMS), event = (int)dice(EVENTS);
        switch (dice(12)) {
        case 0:
        case 1:
            launch(streams[stream], 1000 + dice(20000), 1 + dice(2000)); /* more than fit at once: streams compete */
            break;
        case 2:
        case 3:
            EXPECT_EQ(cuEventRecord(events[event], streams[stream]), CUDA_SUCCESS);
            where[event] = stream;
            break;
        case 4:
            EXPECT_EQ(cuStreamWaitEvent(streams[stream], events[event], 0), CUDA_SUCCESS);
            break;
        case 5:
            if (dice(4) == 0) {
                EXPECT_EQ(cuEventDestroy_v2(events[event]), CUDA_SUCCESS);
                make_event(event);
            }
            break;
        case 6:
            if (dice(4) == 0) {
                EXPECT_EQ(cuStreamSynchronize(streams[stream]), CUDA_SUCCESS);
                expect_stream_complete(stream);
            } else if (dice(4) == 0 && where[event] >= 0) {
                EXPECT_EQ(cuEventSynchronize(events[event]), CUDA_SUCCESS);
                expect_complete(events[event]);
            }
            break;
        case 7:
            if (cuStreamQuery(streams[stream]) == CUDA_SUCCESS)
                expect_stream_complete(stream);
            break;
        default:
            ask_about(event, &said_complete);
        }
    }
    EXPECT(said_complete > STEPS / 20 && sg_devices[0].link.tail > 2 * SG_OUTCOMES);
}

/* What is submitted to another stream delays what is not yet under way: the instant foreseen before is no end. */
static void what_comes_between_counts(void)
{
    CUresult said;
    for (int i = 0; i < STREAMS; i++)
        EXPECT_EQ(cuStreamSynchronize(streams[i]), CUDA_SUCCESS);
    launch(streams[1], 100000000, 640); /* all that fit at once */
    launch(streams[1], 1000000, 640);
    EXPECT_EQ(cuEventRecord(events[0], streams[1]), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(events[0]), CUDA_ERROR_NOT_READY);
    uint64_t foreseen_ns = events[0]->foreseen.at_ns;
    launch(streams[2], 10000000, 640); /* its turn is first */
    do
        said = cuEventQuery(events[0]);
    while (said == CUDA_ERROR_NOT_READY);
    EXPECT_EQ(said, CUDA_SUCCESS);
    expect_complete(events[0]);
    EXPECT(events[0]->instant.at_ns > foreseen_ns);
}

static void stop_the_server(void)
{
    int status;
    EXPECT_EQ(kill(server.pid, SIGSTOP), 0);
    EXPECT_EQ(waitpid(server.pid, &status, WUNTRACED), server.pid);
}

/* A question of anybody moves the model, and then nobody has to ask what it has come to: the server stands still. */
static void what_anybody_learnt_all_know(void)
{
    struct test_line other = test_line_open(server.path);
    struct sg_request request = {.kind = SG_MEMORY_INFO};
    struct sg_reply reply;
    uint64_t at_ns;
    float first_ms, second_ms;
    for (int i = 0; i < STREAMS; i++)
        EXPECT_EQ(cuStreamSynchronize(streams[i]), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(events[0], streams[0]), CUDA_SUCCESS);
    launch(streams[0], 300000, 1);
    EXPECT_EQ(cuEventRecord(events[1], streams[0]), CUDA_SUCCESS);
    launch(streams[0], 200000, 1);
    EXPECT_EQ(cuEventRecord(events[2], streams[0]), CUDA_SUCCESS);
    launch(streams[1], 1000, 1); /* breaks the run of submissions to one stream */
    usleep(20000); /* nothing else runs, so that by the model's time it is all over long before */
    EXPECT(send(other.socket, &request, sizeof request, 0) == (ssize_t)sizeof request);
    EXPECT(recv(other.socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    stop_the_server();
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(cuEventQuery(events[i]), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&first_ms, events[0], events[1]), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&second_ms, events[1], events[2]), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
    EXPECT_EQ(kill(server.pid, SIGCONT), 0);
    EXPECT(first_ms >= 0.3f && second_ms >= 0.199999f);
    EXPECT_EQ(model_says(events[1], &at_ns), CT_DEVICE_OK);
    EXPECT_EQ(events[1]->instant.at_ns, at_ns);
    munmap(other.ring, sizeof *other.ring);
    close(other.socket);
}

/* One question about one record tells when all that are under way will be: the rest needs no server either. */
static void one_question_tells_of_all(void)
{
    uint64_t at_ns;
    float ms;
    for (int i = 0; i < EVENTS; i++) {
        launch(streams[0], 100000, 1);
        EXPECT_EQ(cuEventRecord(events[i], streams[0]), CUDA_SUCCESS);
    }
    CUresult said = cuEventQuery(events[0]);
    EXPECT(said == CUDA_SUCCESS || said == CUDA_ERROR_NOT_READY);
    stop_the_server();
    launch(streams[0], 1000, 1); /* behind them all in their own stream: nothing changes for them */
    for (int i = EVENTS - 1; i >= 0; i--) {
        do
            said = cuEventQuery(events[i]);
        while (said == CUDA_ERROR_NOT_READY);
        EXPECT_EQ(said, CUDA_SUCCESS);
    }
    for (int i = 1; i < EVENTS; i++)
        EXPECT_EQ(cuEventElapsedTime(&ms, events[i - 1], events[i]), CUDA_SUCCESS);
    EXPECT_EQ(kill(server.pid, SIGCONT), 0);
    for (int i = 0; i < EVENTS; i++) {
        EXPECT_EQ(model_says(events[i], &at_ns), CT_DEVICE_OK);
        EXPECT_EQ(events[i]->instant.at_ns, at_ns);
    }
}

int main(void)
{
    CUcontext context;
    CUmodule module;
    test_server_start(&server, "v100");
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoadData(&module, "softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    for (int i = 0; i < STREAMS; i++)
        EXPECT_EQ(cuStreamCreate(&streams[i], i ? 0 : 1), CUDA_SUCCESS);
    for (int i = 0; i < EVENTS; i++)
        make_event(i);
    never_more_than_the_model();
    what_comes_between_counts();
    what_anybody_learnt_all_know();
    one_question_tells_of_all();
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    test_server_stop(&server);
    return 0;
}

/* Tests of event status without requests: it never contradicts the model, and it is available while the server is
 * stopped. */
#include "softgpu/driver/internal.h"
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

enum { STREAMS = 3, EVENTS = 6, STEPS = 24000 /* more slots than the outcomes that are kept */ };

static CUfunction spin;
static CUstream streams[STREAMS];
static CUevent events[EVENTS];
static int recorded_in[EVENTS]; /* stream of the latest record; -1: none */
static struct test_server server;

static uint32_t rng(uint32_t sides)
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
    recorded_in[index] = -1;
}

/* Queries the model about the latest record. */
static int query_model(CUevent event, uint64_t *at_ns)
{
    struct sg_request request = {.kind = SG_EVENT_TIMES, .a = event->model, .b = event->model, .c = event->slot};
    struct sg_reply reply;
    EXPECT_EQ(sg_call(&event->context->device->connection, &request, &reply), 0);
    *at_ns = reply.a;
    return reply.result;
}

static void expect_complete(CUevent event)
{
    uint64_t at_ns;
    float elapsed_ms;
    EXPECT_EQ(query_model(event, &at_ns), CT_DEVICE_OK);
    EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&elapsed_ms, event, event), CUDA_SUCCESS);
    EXPECT_EQ(event->instant.at_ns, at_ns);
}

/* The reported status of an event matches the model. */
static void check_event(int index, int *complete_count)
{
    float elapsed_ms;
    uint64_t at_ns;
    CUevent event = events[index];
    if (recorded_in[index] < 0) {
        EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
        return;
    }
    int was_complete = rng(4) == 0 && query_model(event, &at_ns) == CT_DEVICE_OK;
    CUresult result = rng(2) ? cuEventQuery(event) : cuEventElapsedTime(&elapsed_ms, event, event);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    EXPECT(!was_complete || result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS) {
        ++*complete_count;
        expect_complete(event);
    }
}

static void expect_stream_complete(int stream)
{
    for (int i = 0; i < EVENTS; i++)
        if (recorded_in[i] == stream)
            expect_complete(events[i]);
}

/* Launches, repeated records, waits across streams, and reused events. */
static void driver_never_contradicts_the_model(void)
{
    int complete_count = 0;
    for (int step = 0; step < STEPS; step++) {
        int stream = (int)rng(STREAMS), event = (int)rng(EVENTS);
        switch (rng(12)) {
        case 0:
        case 1:
            /* More than fit at a time, so that streams compete. */
            launch(streams[stream], 1000 + rng(20000), 1 + rng(2000));
            break;
        case 2:
        case 3:
            EXPECT_EQ(cuEventRecord(events[event], streams[stream]), CUDA_SUCCESS);
            recorded_in[event] = stream;
            break;
        case 4:
            EXPECT_EQ(cuStreamWaitEvent(streams[stream], events[event], 0), CUDA_SUCCESS);
            break;
        case 5:
            if (rng(4) == 0) {
                EXPECT_EQ(cuEventDestroy_v2(events[event]), CUDA_SUCCESS);
                make_event(event);
            }
            break;
        case 6:
            if (rng(4) == 0) {
                EXPECT_EQ(cuStreamSynchronize(streams[stream]), CUDA_SUCCESS);
                expect_stream_complete(stream);
            } else if (rng(4) == 0 && recorded_in[event] >= 0) {
                EXPECT_EQ(cuEventSynchronize(events[event]), CUDA_SUCCESS);
                expect_complete(events[event]);
            }
            break;
        case 7:
            if (cuStreamQuery(streams[stream]) == CUDA_SUCCESS)
                expect_stream_complete(stream);
            break;
        default:
            check_event(event, &complete_count);
        }
    }
    EXPECT(complete_count > STEPS / 20 && sg_devices[0].connection.tail > 2 * SG_OUTCOMES);
}

/* A submission to another stream delays work that has not started, so the earlier prediction is not the end. */
static void later_submissions_delay_events(void)
{
    CUresult result;
    for (int i = 0; i < STREAMS; i++)
        EXPECT_EQ(cuStreamSynchronize(streams[i]), CUDA_SUCCESS);
    launch(streams[1], 100000000, 640); /* as many as fit at a time */
    launch(streams[1], 1000000, 640);
    EXPECT_EQ(cuEventRecord(events[0], streams[1]), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(events[0]), CUDA_ERROR_NOT_READY);
    uint64_t predicted_ns = events[0]->prediction.at_ns;
    launch(streams[2], 10000000, 640); /* it runs first */
    do
        result = cuEventQuery(events[0]);
    while (result == CUDA_ERROR_NOT_READY);
    EXPECT_EQ(result, CUDA_SUCCESS);
    expect_complete(events[0]);
    EXPECT(events[0]->instant.at_ns > predicted_ns);
}

static void stop_the_server(void)
{
    int status;
    EXPECT_EQ(kill(server.pid, SIGSTOP), 0);
    EXPECT_EQ(waitpid(server.pid, &status, WUNTRACED), server.pid);
}

/* A request of any client advances the model; afterwards no client needs a request, even if the server is stopped. */
static void progress_is_visible_to_every_client(void)
{
    struct test_client other = test_client_open(server.path);
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
    launch(streams[1], 1000, 1); /* interrupts the run of submissions to one stream */
    usleep(20000); /* no other work runs, so that all of it is complete in the model by then */
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
    EXPECT_EQ(query_model(events[1], &at_ns), CT_DEVICE_OK);
    EXPECT_EQ(events[1]->instant.at_ns, at_ns);
    munmap(other.ring, sizeof *other.ring);
    close(other.socket);
}

/* One request for one record predicts the ends of all pending records, so the others need no server. */
static void one_query_predicts_all_records(void)
{
    uint64_t at_ns;
    float ms;
    for (int i = 0; i < EVENTS; i++) {
        launch(streams[0], 100000, 1);
        EXPECT_EQ(cuEventRecord(events[i], streams[0]), CUDA_SUCCESS);
    }
    CUresult result = cuEventQuery(events[0]);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    stop_the_server();
    launch(streams[0], 1000, 1); /* it follows them in their stream and does not affect them */
    for (int i = EVENTS - 1; i >= 0; i--) {
        do
            result = cuEventQuery(events[i]);
        while (result == CUDA_ERROR_NOT_READY);
        EXPECT_EQ(result, CUDA_SUCCESS);
    }
    for (int i = 1; i < EVENTS; i++)
        EXPECT_EQ(cuEventElapsedTime(&ms, events[i - 1], events[i]), CUDA_SUCCESS);
    EXPECT_EQ(kill(server.pid, SIGCONT), 0);
    for (int i = 0; i < EVENTS; i++) {
        EXPECT_EQ(query_model(events[i], &at_ns), CT_DEVICE_OK);
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
    driver_never_contradicts_the_model();
    later_submissions_delay_events();
    progress_is_visible_to_every_client();
    one_query_predicts_all_records();
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    test_server_stop(&server);
    return 0;
}

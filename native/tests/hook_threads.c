/* Threads launch, load, unload and wait concurrently: nothing is lost, and there are no data races. */
#include "hook_setup.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 3000 };

static _Atomic uint64_t launch_count;

static void *use_driver(void *argument)
{
    unsigned number = (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct ct_session *session = ct_session();
        EXPECT(session != NULL);
        uintptr_t function = 0x1000 + 16 * (i % 5 + number % 2);
        EXPECT_EQ(test_launch(function, 1 + i % 7, NULL), CUDA_SUCCESS);
        atomic_fetch_add(&launch_count, 1);
        if (i % 16 == number)
            EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        if (i % 100 == number)
            ct_function_note(session, function, 5, "renamed");
        if (i % 150 == number)
            ct_functions_forget(session, 5);
        if (i % 70 == number)
            ct_count_unknown_address("cuUnknown");
        EXPECT_EQ(cuMemFree_v2(1 + i), CUDA_SUCCESS);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    (void)argv;
    test_hook_open(argc > 1 ? "0" : "1", "3");
    for (uintptr_t i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, use_driver, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    const struct ct_record_header *header = ct_session()->record.header;
    EXPECT_EQ(header->calls + header->uncounted, launch_count);
    EXPECT_EQ(header->frees, THREADS * ROUNDS);
    EXPECT(header->timed > 0);
    EXPECT_EQ(test_hook_close(), 1);
    return 0;
}

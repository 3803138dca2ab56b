/* A program that reports its requests through the header alone: a given number, and one of 3 ms by its own clock. */
#include <cotenant/request.h>

#include <stdio.h>

int main(int count, char **arguments)
{
    const long requests = count > 1 ? atol(arguments[1]) : 0;
    cotenant_request outer = cotenant_request_begin();
    for (long i = 0; i < requests; i++) {
        cotenant_request inner = cotenant_request_begin_at(1); /* as old as the machine */
        cotenant_request_end(&inner);
        cotenant_request_end(&inner);
    }
    cotenant_request_end(&outer);
    cotenant_request_took(3000000);
    printf("%d\n", cotenant_request_is_heard());
    return 0;
}

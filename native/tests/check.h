/* How a C test says what it expects: CHECK stays in force in every build, where assert would vanish in some. */
#ifndef COTENANT_TESTS_CHECK_H
#define COTENANT_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition); \
            abort(); \
        } \
    } while (0)

#endif

/* Macros that turn a list of types into parameters named a, b, c ..., and into the same names as arguments. */
#ifndef COTENANT_HOOK_ENTRY_PARAMETERS_H
#define COTENANT_HOOK_ENTRY_PARAMETERS_H

#define CT_COUNT(...) CT_COUNT_(__VA_ARGS__, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)
#define CT_COUNT_(a, b, c, d, e, f, g, h, i, j, k, count, ...) count
#define CT_JOIN(one, other) CT_JOIN_(one, other)
#define CT_JOIN_(one, other) one##other

#define CT_PARAMETERS(...) CT_JOIN(CT_PARAMETERS_, CT_COUNT(__VA_ARGS__))(__VA_ARGS__)
#define CT_PARAMETERS_1(A) A a
#define CT_PARAMETERS_2(A, B) A a, B b
#define CT_PARAMETERS_3(A, B, C) A a, B b, C c
#define CT_PARAMETERS_4(A, B, C, D) A a, B b, C c, D d
#define CT_PARAMETERS_5(A, B, C, D, E) A a, B b, C c, D d, E e
#define CT_PARAMETERS_6(A, B, C, D, E, F) A a, B b, C c, D d, E e, F f
#define CT_PARAMETERS_7(A, B, C, D, E, F, G) A a, B b, C c, D d, E e, F f, G g
#define CT_PARAMETERS_8(A, B, C, D, E, F, G, H) A a, B b, C c, D d, E e, F f, G g, H h
#define CT_PARAMETERS_9(A, B, C, D, E, F, G, H, I) A a, B b, C c, D d, E e, F f, G g, H h, I i
#define CT_PARAMETERS_10(A, B, C, D, E, F, G, H, I, J) A a, B b, C c, D d, E e, F f, G g, H h, I i, J j
#define CT_PARAMETERS_11(A, B, C, D, E, F, G, H, I, J, K) A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k

#define CT_ARGUMENTS(...) CT_JOIN(CT_ARGUMENTS_, CT_COUNT(__VA_ARGS__))
#define CT_ARGUMENTS_1 a
#define CT_ARGUMENTS_2 a, b
#define CT_ARGUMENTS_3 a, b, c
#define CT_ARGUMENTS_4 a, b, c, d
#define CT_ARGUMENTS_5 a, b, c, d, e
#define CT_ARGUMENTS_6 a, b, c, d, e, f
#define CT_ARGUMENTS_7 a, b, c, d, e, f, g
#define CT_ARGUMENTS_8 a, b, c, d, e, f, g, h
#define CT_ARGUMENTS_9 a, b, c, d, e, f, g, h, i
#define CT_ARGUMENTS_10 a, b, c, d, e, f, g, h, i, j
#define CT_ARGUMENTS_11 a, b, c, d, e, f, g, h, i, j, k

#endif

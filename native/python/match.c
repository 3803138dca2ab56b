/* Python binding of the auction: arrays are passed as buffers, lots are returned as bytes. */
#include "python/module.h"

#include "match/auction.h"
#include "match/choose.h"

enum { SUPPLY, CAPACITY, WEIGHT, STARTS, ENDS_AT, PRICE, BUFFERS };

static int are_sizes_valid(const struct ma_problem *problem, const Py_buffer *views)
{
    Py_ssize_t sources = problem->sources, sinks = problem->sinks;
    if (sources < 0 || sinks < 0 || views[SUPPLY].len != sources * 4 || views[CAPACITY].len != sinks * 4 ||
        views[PRICE].len != sinks * 4)
        return 0;
    if (!views[STARTS].buf)
        return views[WEIGHT].len / 4 == sources * sinks && views[WEIGHT].len % 4 == 0;
    if (views[STARTS].len != (sources + 1) * 8 || views[ENDS_AT].len != views[WEIGHT].len || views[WEIGHT].len % 4)
        return 0;
    const int64_t *starts = views[STARTS].buf;
    const int32_t *ends_at = views[ENDS_AT].buf;
    int64_t edges = views[WEIGHT].len / 4;
    if (starts[0] != 0 || starts[sources] != edges)
        return 0;
    for (Py_ssize_t source = 0; source < sources; source++)
        if (starts[source] > starts[source + 1])
            return 0;
    for (int64_t edge = 0; edge < edges; edge++)
        if (ends_at[edge] < 0 || ends_at[edge] >= sinks)
            return 0;
    return 1;
}

static int has_no_negative(const Py_buffer *views)
{
    const int32_t *counts = views->buf;
    for (Py_ssize_t index = 0; index < views->len / 4; index++)
        if (counts[index] < 0)
            return 0;
    return 1;
}

static PyObject *run_auction(const struct ma_problem *problem, float step, long long max_bids, float *price)
{
    struct ma_result result;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = ma_auction(problem, step, max_bids, price, &result);
    Py_END_ALLOW_THREADS
    if (failed) {
        ma_free(&result);
        return PyErr_NoMemory();
    }
    PyObject *tuple = Py_BuildValue("y#Li", (const char *)result.lots,
                                    (Py_ssize_t)((size_t)result.count * sizeof *result.lots),
                                    (long long)result.bids, result.finished);
    ma_free(&result);
    return tuple;
}

static PyObject *match_auction(PyObject *module, PyObject *args)
{
    static const int writable[BUFFERS] = {[PRICE] = 1};
    PyObject *arguments[BUFFERS], *result = NULL;
    Py_buffer views[BUFFERS] = {{0}};
    struct ma_problem problem = {0};
    double step;
    long long max_bids;
    int buffer;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiOOOOOOdL:match_auction", &problem.sources, &problem.sinks, &arguments[SUPPLY],
                          &arguments[CAPACITY],
                          &arguments[WEIGHT], &arguments[STARTS], &arguments[ENDS_AT], &arguments[PRICE], &step,
                              &max_bids))
        return NULL;
    for (buffer = 0; buffer < BUFFERS; buffer++)
        if (arguments[buffer] != Py_None &&
            PyObject_GetBuffer(arguments[buffer], &views[buffer], writable[buffer] ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            goto out;
    problem.supply = views[SUPPLY].buf;
    problem.capacity = views[CAPACITY].buf;
    problem.weight = views[WEIGHT].buf;
    problem.starts = views[STARTS].buf;
    problem.ends_at = views[ENDS_AT].buf;
    if (!(step > 0) || !are_sizes_valid(&problem, views) || !has_no_negative(&views[SUPPLY]) ||
        !has_no_negative(&views[CAPACITY]))
        PyErr_SetString(PyExc_ValueError,
                        "sizes must agree, counts must not be negative, and the step must be above 0");
    else
        result = run_auction(&problem, (float)step, max_bids, views[PRICE].buf);
out:
    for (buffer = 0; buffer < BUFFERS; buffer++)
        PyBuffer_Release(&views[buffer]);
    return result;
}

enum { TABLE, PRICES, PLACES, BEST, ARRAYS };

struct search {
    int columns, limit;
    unsigned first;
    int every;
};

/* Half of the places are the best of all; the others are the best of a part that differs from row to row. */
static void best_places(const Py_buffer *views, struct search search, Py_ssize_t rows, float *blocks)
{
    const float *weight = views[TABLE].buf;
    int32_t *places = views[PLACES].buf, half = search.limit / 2;
    float *best = views[BEST].buf, ignored;
    for (Py_ssize_t row = 0; row < rows; row++, weight += search.columns, places += search.limit) {
        uint32_t hash = (search.first + (uint32_t)row) * 2654435761u >> 16;
        struct ma_part part = {search.every, (int32_t)(hash % (uint32_t)search.every)};
        for (int32_t index = 0; index < search.limit; index++)
            places[index] = -1;
        ma_best_places(weight, views[PRICES].buf, search.columns, search.limit - half, (struct ma_part){1, 0}, places,
                       &best[row], blocks);
        ma_best_places(weight, views[PRICES].buf, search.columns, half, part, places + search.limit - half, &ignored,
                       blocks);
    }
}

static PyObject *match_best_places(PyObject *module, PyObject *args)
{
    PyObject *arguments[ARRAYS], *result = NULL;
    Py_buffer views[ARRAYS] = {{0}};
    struct search search;
    int array;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiIiOOOO:match_best_places", &search.columns, &search.limit, &search.first,
                          &search.every,
                          &arguments[TABLE], &arguments[PRICES], &arguments[PLACES], &arguments[BEST]))
        return NULL;
    for (array = 0; array < ARRAYS; array++)
        if (PyObject_GetBuffer(arguments[array], &views[array], array < PLACES ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0)
            goto out;
    Py_ssize_t rows = views[BEST].len / 4, columns = search.columns;
    if (columns < 1 || search.limit < 2 || search.every < 1 || views[PRICES].len != columns * 4 ||
        views[TABLE].len != rows * columns * 4 ||
        views[PLACES].len != rows * search.limit * 4) {
        PyErr_SetString(PyExc_ValueError, "sizes must agree and be above 0");
        goto out;
    }
    float *blocks = PyMem_Malloc(2 * (size_t)ma_blocks(search.columns) * sizeof *blocks);
    if (!blocks) {
        PyErr_NoMemory();
        goto out;
    }
    Py_BEGIN_ALLOW_THREADS
    best_places(views, search, rows, blocks);
    Py_END_ALLOW_THREADS
    PyMem_Free(blocks);
    result = Py_NewRef(Py_None);
out:
    for (array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    return result;
}

static PyMethodDef methods[] = {
    {"match_auction", match_auction, METH_VARARGS,
     "match_auction(sources, sinks, supply, capacity, weight, starts, ends_at, price, step, max_bids) -> "
     "(lots, bids, finished)"},
    {"match_best_places", match_best_places, METH_VARARGS,
     "match_best_places(columns, limit, first, every, weight, price, places, best): find where weight minus price is "
     "highest in each row"},
    {NULL, NULL, 0, NULL},
};

int ct_add_match(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}

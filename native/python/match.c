/* Python binding of the auction: arrays are passed as buffers, lots are returned as bytes. */
#include "python/module.h"

#include "match/auction.h"
#include "match/choose.h"

enum { SUPPLY, CAPACITY, WEIGHT, STARTS, ENDS_AT, PRICE, BUFFERS };

static int sizes_fit(const struct ma_problem *problem, const Py_buffer *held)
{
    Py_ssize_t sources = problem->sources, sinks = problem->sinks;
    if (sources < 0 || sinks < 0 || held[SUPPLY].len != sources * 4 || held[CAPACITY].len != sinks * 4 ||
        held[PRICE].len != sinks * 4)
        return 0;
    if (!held[STARTS].buf)
        return held[WEIGHT].len / 4 == sources * sinks && held[WEIGHT].len % 4 == 0;
    if (held[STARTS].len != (sources + 1) * 8 || held[ENDS_AT].len != held[WEIGHT].len || held[WEIGHT].len % 4)
        return 0;
    const int64_t *starts = held[STARTS].buf;
    const int32_t *ends_at = held[ENDS_AT].buf;
    int64_t edges = held[WEIGHT].len / 4;
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

static int none_negative(const Py_buffer *held)
{
    const int32_t *counts = held->buf;
    for (Py_ssize_t place = 0; place < held->len / 4; place++)
        if (counts[place] < 0)
            return 0;
    return 1;
}

static PyObject *auction_of(const struct ma_problem *problem, float step, long long max_bids, float *price)
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
    PyObject *answer = Py_BuildValue("y#Li", (const char *)result.lots,
                                     (Py_ssize_t)((size_t)result.count * sizeof *result.lots),
                                     (long long)result.bids, result.finished);
    ma_free(&result);
    return answer;
}

static PyObject *match_auction(PyObject *module, PyObject *args)
{
    static const int writable[BUFFERS] = {[PRICE] = 1};
    PyObject *arguments[BUFFERS], *answer = NULL;
    Py_buffer held[BUFFERS] = {{0}};
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
            PyObject_GetBuffer(arguments[buffer], &held[buffer], writable[buffer] ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            goto out;
    problem.supply = held[SUPPLY].buf;
    problem.capacity = held[CAPACITY].buf;
    problem.weight = held[WEIGHT].buf;
    problem.starts = held[STARTS].buf;
    problem.ends_at = held[ENDS_AT].buf;
    if (!(step > 0) || !sizes_fit(&problem, held) || !none_negative(&held[SUPPLY]) || !none_negative(&held[CAPACITY]))
        PyErr_SetString(PyExc_ValueError, "sizes must agree, counts be none negative and the step be above 0");
    else
        answer = auction_of(&problem, (float)step, max_bids, held[PRICE].buf);
out:
    for (buffer = 0; buffer < BUFFERS; buffer++)
        PyBuffer_Release(&held[buffer]);
    return answer;
}

enum { TABLE, PRICES, PLACES, BEST, ARRAYS };

struct search {
    int columns, limit;
    unsigned first;
    int every;
};

/* Half of the places are the best of all; the others are the best of a part that differs from row to row. */
static void best_places(const Py_buffer *held, struct search search, Py_ssize_t rows, float *blocks)
{
    const float *weight = held[TABLE].buf;
    int32_t *places = held[PLACES].buf, half = search.limit / 2;
    float *best = held[BEST].buf, other;
    for (Py_ssize_t row = 0; row < rows; row++, weight += search.columns, places += search.limit) {
        uint32_t mixed = (search.first + (uint32_t)row) * 2654435761u >> 16;
        struct ma_part part = {search.every, (int32_t)(mixed % (uint32_t)search.every)};
        for (int32_t place = 0; place < search.limit; place++)
            places[place] = -1;
        ma_best_places(weight, held[PRICES].buf, search.columns, search.limit - half, (struct ma_part){1, 0}, places,
                       &best[row], blocks);
        ma_best_places(weight, held[PRICES].buf, search.columns, half, part, places + search.limit - half, &other,
                       blocks);
    }
}

static PyObject *match_best_places(PyObject *module, PyObject *args)
{
    PyObject *arguments[ARRAYS], *answer = NULL;
    Py_buffer held[ARRAYS] = {{0}};
    struct search search;
    int array;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiIiOOOO:match_best_places", &search.columns, &search.limit, &search.first,
                          &search.every,
                          &arguments[TABLE], &arguments[PRICES], &arguments[PLACES], &arguments[BEST]))
        return NULL;
    for (array = 0; array < ARRAYS; array++)
        if (PyObject_GetBuffer(arguments[array], &held[array], array < PLACES ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0)
            goto out;
    Py_ssize_t rows = held[BEST].len / 4, columns = search.columns;
    if (columns < 1 || search.limit < 2 || search.every < 1 || held[PRICES].len != columns * 4 ||
        held[TABLE].len != rows * columns * 4 ||
        held[PLACES].len != rows * search.limit * 4) {
        PyErr_SetString(PyExc_ValueError, "sizes must agree and be above 0");
        goto out;
    }
    float *blocks = PyMem_Malloc(2 * (size_t)ma_blocks(search.columns) * sizeof *blocks);
    if (!blocks) {
        PyErr_NoMemory();
        goto out;
    }
    Py_BEGIN_ALLOW_THREADS
    best_places(held, search, rows, blocks);
    Py_END_ALLOW_THREADS
    PyMem_Free(blocks);
    answer = Py_NewRef(Py_None);
out:
    for (array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&held[array]);
    return answer;
}

static PyMethodDef methods[] = {
    {"match_auction", match_auction, METH_VARARGS,
     "match_auction(sources, sinks, supply, capacity, worth, starts, ends_at, price, step, most_bids) -> (lots, bids, finished)"},
    {"match_best_places", match_best_places, METH_VARARGS,
     "match_best_places(columns, most, first, every, worth, price, places, best): where worth less price is highest in each row"},
    {NULL, NULL, 0, NULL},
};

int ct_add_match(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}

/* The auction for Python: arrays come as buffers, lots go back as bytes. */
#include "python/module.h"

#include "match/auction.h"
#include "match/choose.h"

enum { SUPPLY, CAPACITY, WORTH, STARTS, ENDS_AT, PRICE, BUFFERS };

static int sizes_fit(const struct ma_problem *problem, const Py_buffer *held)
{
    Py_ssize_t sources = problem->sources, sinks = problem->sinks;
    if (sources < 0 || sinks < 0 || held[SUPPLY].len != sources * 4 || held[CAPACITY].len != sinks * 4 || held[PRICE].len != sinks * 4)
        return 0;
    if (!held[STARTS].buf)
        return held[WORTH].len / 4 == sources * sinks && held[WORTH].len % 4 == 0;
    if (held[STARTS].len != (sources + 1) * 8 || held[ENDS_AT].len != held[WORTH].len || held[WORTH].len % 4)
        return 0;
    const int64_t *starts = held[STARTS].buf;
    const int32_t *ends_at = held[ENDS_AT].buf;
    int64_t edges = held[WORTH].len / 4;
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

static PyObject *auction_of(const struct ma_problem *problem, float step, long long most_bids, float *price)
{
    struct ma_result result;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = ma_auction(problem, step, most_bids, price, &result);
    Py_END_ALLOW_THREADS
    if (failed) {
        ma_free(&result);
        return PyErr_NoMemory();
    }
    PyObject *answer = Py_BuildValue("y#Li", (const char *)result.lots, (Py_ssize_t)((size_t)result.count * sizeof *result.lots),
                                     (long long)result.bids, result.finished);
    ma_free(&result);
    return answer;
}

static PyObject *match_auction(PyObject *module, PyObject *args)
{
    static const int writable[BUFFERS] = {[PRICE] = 1};
    PyObject *given[BUFFERS], *answer = NULL;
    Py_buffer held[BUFFERS] = {{0}};
    struct ma_problem problem = {0};
    double step;
    long long most_bids;
    int buffer;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiOOOOOOdL:match_auction", &problem.sources, &problem.sinks, &given[SUPPLY], &given[CAPACITY],
                          &given[WORTH], &given[STARTS], &given[ENDS_AT], &given[PRICE], &step, &most_bids))
        return NULL;
    for (buffer = 0; buffer < BUFFERS; buffer++)
        if (given[buffer] != Py_None &&
            PyObject_GetBuffer(given[buffer], &held[buffer], writable[buffer] ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            goto out;
    problem.supply = held[SUPPLY].buf;
    problem.capacity = held[CAPACITY].buf;
    problem.worth = held[WORTH].buf;
    problem.starts = held[STARTS].buf;
    problem.ends_at = held[ENDS_AT].buf;
    if (!(step > 0) || !sizes_fit(&problem, held) || !none_negative(&held[SUPPLY]) || !none_negative(&held[CAPACITY]))
        PyErr_SetString(PyExc_ValueError, "sizes must agree, counts be none negative and the step be above 0");
    else
        answer = auction_of(&problem, (float)step, most_bids, held[PRICE].buf);
out:
    for (buffer = 0; buffer < BUFFERS; buffer++)
        PyBuffer_Release(&held[buffer]);
    return answer;
}

enum { TABLE, PRICES, PLACES, BEST, ARRAYS };

struct looking {
    int columns, most;
    unsigned first;
    int every;
};

/* Half of the places are the best of all; the others the best of a part, which is another one from row to row. */
static void best_places(const Py_buffer *held, struct looking looking, Py_ssize_t rows, float *blocks)
{
    const float *worth = held[TABLE].buf;
    int32_t *places = held[PLACES].buf, half = looking.most / 2;
    float *best = held[BEST].buf, other;
    for (Py_ssize_t row = 0; row < rows; row++, worth += looking.columns, places += looking.most) {
        uint32_t mixed = (looking.first + (uint32_t)row) * 2654435761u >> 16;
        struct ma_part part = {looking.every, (int32_t)(mixed % (uint32_t)looking.every)};
        for (int32_t place = 0; place < looking.most; place++)
            places[place] = -1;
        ma_best_places(worth, held[PRICES].buf, looking.columns, looking.most - half, (struct ma_part){1, 0}, places, &best[row], blocks);
        ma_best_places(worth, held[PRICES].buf, looking.columns, half, part, places + looking.most - half, &other, blocks);
    }
}

static PyObject *match_best_places(PyObject *module, PyObject *args)
{
    PyObject *given[ARRAYS], *answer = NULL;
    Py_buffer held[ARRAYS] = {{0}};
    struct looking looking;
    int array;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiIiOOOO:match_best_places", &looking.columns, &looking.most, &looking.first, &looking.every,
                          &given[TABLE], &given[PRICES], &given[PLACES], &given[BEST]))
        return NULL;
    for (array = 0; array < ARRAYS; array++)
        if (PyObject_GetBuffer(given[array], &held[array], array < PLACES ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0)
            goto out;
    Py_ssize_t rows = held[BEST].len / 4, columns = looking.columns;
    if (columns < 1 || looking.most < 2 || looking.every < 1 || held[PRICES].len != columns * 4 || held[TABLE].len != rows * columns * 4 ||
        held[PLACES].len != rows * looking.most * 4) {
        PyErr_SetString(PyExc_ValueError, "sizes must agree and be above 0");
        goto out;
    }
    float *blocks = PyMem_Malloc(2 * (size_t)ma_blocks(looking.columns) * sizeof *blocks);
    if (!blocks) {
        PyErr_NoMemory();
        goto out;
    }
    Py_BEGIN_ALLOW_THREADS
    best_places(held, looking, rows, blocks);
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

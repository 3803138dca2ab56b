/* Python binding of the memory ledger: the node reads the ledger pages of processes, and writes the accounts of
 * tenants. */
#include "ledger/internal.h"
#include "python/module.h"

#define U(value) ((unsigned long long)(value))

/* Gets a view of a buffer that is large enough and aligned; returns -1 with an exception set. */
static int view_of(PyObject *object, int flags, size_t min_bytes, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    if ((size_t)view->len >= min_bytes && ((uintptr_t)view->buf) % sizeof(uint64_t) == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "the buffer must have %d bytes and be aligned to 8", (int)min_bytes);
    PyBuffer_Release(view);
    return -1;
}

static PyObject *build_line(const struct ct_ledger_line *line)
{
    return Py_BuildValue(
        "(KKKKKKKKKKKK)", U(load_seq_cst(&line->allocated_bytes)), U(load_seq_cst(&line->own_bytes)),
        U(load_seq_cst(&line->own_version)), U(load_seq_cst(&line->managed_bytes)), U(load_seq_cst(&line->begun)),
        U(load_seq_cst(&line->ended)), U(load_seq_cst(&line->denied)), U(load_seq_cst(&line->denied_bytes)),
        U(load_seq_cst(&line->wanted_bytes)), U(load_seq_cst(&line->fault)), U(load_seq_cst(&line->contexts)),
        U(load_seq_cst(&line->code_bytes)));
}

static PyObject *build_shares(const struct ct_ledger_page *page)
{
    PyObject *shares = PyList_New(0);
    for (uint32_t i = 0; shares && i < shares_used(page); i++) {
        const uint64_t role = load_seq_cst(&page->share[i].role);
        if (role < CT_LEDGER_EXPORT || role > CT_LEDGER_ORPHANED)
            continue;
        PyObject *share = Py_BuildValue("(KKK)", U(role), U(load_seq_cst(&page->share[i].key)),
                                        U(load_seq_cst(&page->share[i].bytes)));
        if (!share || PyList_Append(shares, share) < 0)
            Py_CLEAR(shares);
        Py_XDECREF(share);
    }
    return shares;
}

static PyObject *ledger_page_read(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, CT_PROCESS_BYTES, &view) < 0)
        return NULL;
    const struct ct_ledger_page *page = &((const struct ct_process_pages *)view.buf)->ledger;
    PyObject *fields = Py_BuildValue("(KNN)", U(load_seq_cst(&page->generation)), build_line(&page->line),
                                     build_shares(page));
    PyBuffer_Release(&view);
    return fields;
}

static struct ct_ledger_account *account_in(const Py_buffer *view)
{
    return (struct ct_ledger_account *)((unsigned char *)view->buf + CT_GRANT_ACCOUNT_OFFSET);
}

static PyObject *account_write(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long long context_bytes, unattached_bytes, reclaimable_bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "OKKK:account_write", &buffer, &context_bytes, &unattached_bytes, &reclaimable_bytes) ||
        view_of(buffer, PyBUF_WRITABLE, CT_GRANT_BYTES, &view) < 0)
        return NULL;
    ct_ledger_account_write(account_in(&view), context_bytes, unattached_bytes, reclaimable_bytes);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *measurement_write(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned int index, generation;
    long long excess_bytes;
    unsigned long long measured_version;
    (void)module;
    if (!PyArg_ParseTuple(args, "OIILK:measurement_write", &buffer, &index, &generation, &excess_bytes,
                          &measured_version) ||
        view_of(buffer, PyBUF_WRITABLE, CT_GRANT_BYTES, &view) < 0)
        return NULL;
    ct_ledger_measurement_write(account_in(&view), index, generation, excess_bytes, measured_version);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *measurements_of(const struct ct_ledger_account *account)
{
    PyObject *list = PyList_New(0);
    for (unsigned index = 0; list && index < CT_PROCESSES; index++) {
        const struct ct_ledger_measurement *measurement = &account->measurement[index];
        if (!load_seq_cst(&measurement->generation))
            continue;
        PyObject *item = Py_BuildValue("(IKLK)", index, U(load_seq_cst(&measurement->generation)),
                                       (long long)load_seq_cst(&measurement->excess_bytes),
                                       U(load_seq_cst(&measurement->measured_version)));
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *account_read(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, CT_GRANT_BYTES, &view) < 0)
        return NULL;
    const struct ct_ledger_account *account = account_in(&view);
    PyObject *fields = Py_BuildValue("(KKKN)", U(load_seq_cst(&account->context_bytes)),
                                     U(load_seq_cst(&account->unattached_bytes)),
                                     U(load_seq_cst(&account->reclaimable_bytes)), measurements_of(account));
    PyBuffer_Release(&view);
    return fields;
}

static PyMethodDef methods[] = {
    {"ledger_page_read", ledger_page_read, METH_O,
     "ledger_page_read(pages): return the generation, the line and the shares (role, key, bytes) of a process's pages"},
    {"account_write", account_write, METH_VARARGS,
     "account_write(grant, context_bytes, unattached_bytes, reclaimable_bytes): replace the words of an account"},
    {"measurement_write", measurement_write, METH_VARARGS,
     "measurement_write(grant, index, generation, excess_bytes, measured_version): replace a process's measurement"},
    {"account_read", account_read, METH_O,
     "account_read(grant): return the words of an account, and the measurements (index, generation, excess_bytes, "
     "measured_version)"},
    {NULL, NULL, 0, NULL},
};

int ct_add_ledger(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}

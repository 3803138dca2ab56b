/* Python binding of a device's memory ledger: the node creates it, reads its lines, and clears those of dead
 * processes. */
#include "ledger/internal.h"
#include "python/module.h"

#define U(value) ((unsigned long long)(value))

/* Gets a view of a whole ledger file; returns -1 with an exception set. */
static int view_of(PyObject *object, int flags, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    if ((size_t)view->len >= CT_LEDGER_HEADER_BYTES && ((uintptr_t)view->buf) % sizeof(uint64_t) == 0 &&
        ct_ledger_check(view->buf, (size_t)view->len) == 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "the buffer is not a ledger");
    PyBuffer_Release(view);
    return -1;
}

/* Returns one account, or NULL with an exception set and the view released. */
static struct ct_ledger_account *account_in(Py_buffer *view, unsigned long slot)
{
    if (slot < accounts_of(view->buf, (size_t)view->len))
        return (void *)((unsigned char *)view->buf + ct_ledger_offset((uint32_t)slot));
    PyErr_Format(PyExc_ValueError, "the ledger has no account %lu", slot);
    PyBuffer_Release(view);
    return NULL;
}

static PyObject *ledger_init(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long long slots;
    (void)module;
    if (!PyArg_ParseTuple(args, "OK:ledger_init", &buffer, &slots) ||
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0)
        return NULL;
    int failed = (size_t)view.len < CT_LEDGER_HEADER_BYTES || ((uintptr_t)view.buf) % sizeof(uint64_t) ||
                 ct_ledger_init(view.buf, (size_t)view.len, slots) < 0;
    PyBuffer_Release(&view);
    if (failed) {
        PyErr_Format(PyExc_ValueError, "a ledger of %llu accounts needs more bytes, aligned to 8", slots);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *ledger_grant(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long slot;
    unsigned long long generation;
    (void)module;
    if (!PyArg_ParseTuple(args, "OkK:ledger_grant", &buffer, &slot, &generation) ||
        view_of(buffer, PyBUF_WRITABLE, &view) < 0)
        return NULL;
    struct ct_ledger_account *account = account_in(&view, slot);
    if (!account)
        return NULL;
    ct_ledger_grant(account, generation);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *build_line(uint64_t slot, uint64_t generation, const struct ct_ledger_line *line, unsigned index,
                            uint64_t owner)
{
    return Py_BuildValue("(KKIKKKKKKKKKKKLKKKK)", U(slot), U(generation), index, U(owner),
                         U(load_seq_cst(&line->allocated_bytes)),
                         U(load_seq_cst(&line->own_bytes)), U(load_seq_cst(&line->own_version)),
                             U(load_seq_cst(&line->managed_bytes)),
                         U(load_seq_cst(&line->begun)), U(load_seq_cst(&line->ended)), U(load_seq_cst(&line->denied)),
                         U(load_seq_cst(&line->denied_bytes)), U(load_seq_cst(&line->wanted_bytes)),
                             U(load_seq_cst(&line->fault)),
                         (long long)load_seq_cst(&line->excess_bytes), U(load_seq_cst(&line->measured_version)),
                         U(ct_ledger_line_bytes(line)), U(load_seq_cst(&line->contexts)),
                             U(load_seq_cst(&line->code_bytes)));
}

static int append_lines(PyObject *lines, const struct ct_ledger_account *account, uint64_t slot)
{
    for (unsigned i = 0; i < used_count(&account->lines_used, CT_LEDGER_LINES); i++) {
        uint64_t owner = load_seq_cst(&account->line[i].owner);
        if (!owner)
            continue;
        PyObject *line = build_line(slot, load_seq_cst(&account->generation), &account->line[i], i, owner);
        int failed = !line || PyList_Append(lines, line) < 0;
        Py_XDECREF(line);
        if (failed)
            return -1;
    }
    return 0;
}

/* Returns every line in use. Each number is read separately; together they are not a consistent snapshot. */
static PyObject *ledger_lines(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, &view) < 0)
        return NULL;
    PyObject *lines = PyList_New(0);
    for (uint64_t slot = 0; lines && slot < accounts_of(view.buf, (size_t)view.len); slot++)
        if (append_lines(lines, account_of(view.buf, slot), slot) < 0)
            Py_CLEAR(lines);
    PyBuffer_Release(&view);
    return lines;
}

/* Returns the generation of an account, and what its tenant holds. */
static PyObject *ledger_account(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long slot;
    (void)module;
    if (!PyArg_ParseTuple(args, "Ok:ledger_account", &buffer, &slot) || view_of(buffer, PyBUF_SIMPLE, &view) < 0)
        return NULL;
    const struct ct_ledger_account *account = account_in(&view, slot);
    if (!account)
        return NULL;
    PyObject *fields = Py_BuildValue("(KKKK)", U(load_seq_cst(&account->generation)),
                                     U(ct_ledger_held(view.buf, (size_t)view.len, account)),
                                       U(load_seq_cst(&account->denied)),
                                   U(load_seq_cst(&account->denied_bytes)));
    PyBuffer_Release(&view);
    return fields;
}

static PyObject *ledger_clear(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long slot, line;
    unsigned long long owner;
    (void)module;
    if (!PyArg_ParseTuple(args, "OkkK:ledger_clear", &buffer, &slot, &line, &owner) ||
        view_of(buffer, PyBUF_WRITABLE, &view) < 0)
        return NULL;
    ct_ledger_clear(view.buf, (size_t)view.len, (uint32_t)slot, (uint32_t)line, owner);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *ledger_measured(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long slot, line;
    unsigned long long owner, begun, ended, held;
    (void)module;
    if (!PyArg_ParseTuple(args, "OkkKKKK:ledger_measured", &buffer, &slot, &line, &owner, &begun, &ended, &held) ||
        view_of(buffer, PyBUF_WRITABLE, &view) < 0)
        return NULL;
    if (!account_in(&view, slot))
        return NULL;
    int is_recorded = line < CT_LEDGER_LINES && ct_ledger_measured(view.buf, (size_t)view.len, (uint32_t)slot,
                                                                   (uint32_t)line,
                                                                   owner, begun, ended, held);
    PyBuffer_Release(&view);
    return PyBool_FromLong(is_recorded);
}

static PyObject *ledger_sweep(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long slot;
    (void)module;
    if (!PyArg_ParseTuple(args, "Ok:ledger_sweep", &buffer, &slot) || view_of(buffer, PyBUF_WRITABLE, &view) < 0)
        return NULL;
    ct_ledger_sweep(view.buf, (size_t)view.len, (uint32_t)slot);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* Returns the number of accounts, and the measured memory of a context. */
static PyObject *ledger_read(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, &view) < 0)
        return NULL;
    const struct ct_ledger_header *header = view.buf;
    PyObject *fields = Py_BuildValue("(KK)", U(accounts_of(header, (size_t)view.len)),
                                     U(load_seq_cst(&header->context_bytes)));
    PyBuffer_Release(&view);
    return fields;
}

static PyObject *ledger_learn(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long long context_bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "OK:ledger_learn", &buffer, &context_bytes) ||
        view_of(buffer, PyBUF_WRITABLE, &view) < 0)
        return NULL;
    struct ct_ledger_header *header = view.buf;
    store_seq_cst(&header->context_bytes, context_bytes);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *ledger_identity(PyObject *module, PyObject *args)
{
    unsigned long long pid, namespace_inode, start;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKK:ledger_identity", &pid, &namespace_inode, &start))
        return NULL;
    return PyLong_FromUnsignedLongLong(ct_ledger_identity(pid, namespace_inode, start));
}

static PyMethodDef methods[] = {
    {"ledger_init", ledger_init, METH_VARARGS,
     "ledger_init(file, slots): initialize a ledger; an existing one keeps its contents"},
    {"ledger_grant", ledger_grant, METH_VARARGS,
        "ledger_grant(file, slot, generation): give an empty account to a tenant"},
    {"ledger_lines", ledger_lines, METH_O, "ledger_lines(file): return every line in use"},
    {"ledger_account", ledger_account, METH_VARARGS,
     "ledger_account(file, slot): return the generation, the bytes held, and the denied allocations and their bytes"},
    {"ledger_clear", ledger_clear, METH_VARARGS,
        "ledger_clear(file, slot, line, owner): free the line of a dead process"},
    {"ledger_measured", ledger_measured, METH_VARARGS,
     "ledger_measured(file, slot, line, owner, begun, ended, held): record what the device reports; return whether it "
     "was recorded"},
    {"ledger_sweep", ledger_sweep, METH_VARARGS, "ledger_sweep(file, slot): free orphaned memory that no process has open"},
    {"ledger_read", ledger_read, METH_O,
        "ledger_read(file): return the number of accounts and the memory of a context"},
    {"ledger_learn", ledger_learn, METH_VARARGS, "ledger_learn(file, bytes): record the memory of a context"},
    {"ledger_identity", ledger_identity, METH_VARARGS,
        "ledger_identity(pid, namespace, start): return the word that identifies a process"},
    {NULL, NULL, 0, NULL},
};

int ct_add_ledger(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "LEDGER_HEADER_BYTES", CT_LEDGER_HEADER_BYTES) < 0 ||
        PyModule_AddIntConstant(module, "LEDGER_ACCOUNT_BYTES", CT_LEDGER_ACCOUNT_BYTES) < 0)
        return -1;
    return PyModule_AddFunctions(module, methods);
}

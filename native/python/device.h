/* Declarations shared by the files that bind the device model: the Python object of a device, and conversions. */
#ifndef COTENANT_PYTHON_DEVICE_H
#define COTENANT_PYTHON_DEVICE_H

#include "device/device.h"
#include "python/module.h"

struct ct_py_device {
    PyObject_HEAD
    void *memory;
    struct ct_device *device;
};

extern PyMethodDef ct_py_device_methods[]; /* device_type.c */
PyObject *ct_py_device_run_script(PyObject *self, PyObject *args); /* device_script.c */

int ct_py_device_raise(int result);                 /* returns 0, or -1 with an exception set */
PyObject *ct_py_device_instant(uint64_t instant_ns); /* None for CT_DEVICE_NEVER */
PyObject *ct_py_device_counters(const struct ct_device_counters *counters);

#endif

/* The pages of a device in the memory of one test, and its processes. */
#ifndef COTENANT_TESTS_DEVICE_PAGES_H
#define COTENANT_TESTS_DEVICE_PAGES_H

#include "gate/gate.h"
#include "gate/process.h"

#include <stdlib.h>
#include <string.h>

struct device_pages {
    union {
        _Alignas(4096) struct ct_tenant_table table;
        unsigned char table_bytes[CT_TABLE_BYTES];
    };
    union {
        struct ct_arbitration_page arbitration;
        unsigned char arbitration_bytes[CT_GATE_PAGE_BYTES];
    };
    struct ct_process_pages process[CT_PROCESSES];
};

/* Returns the offset of a process's gate page. */
static inline size_t page_start(uint32_t index)
{
    return offsetof(struct device_pages, process) + (size_t)index * CT_PROCESS_BYTES;
}

static inline void open_process(struct ct_gate *gate, struct device_pages *device, uint32_t index, uint32_t generation)
{
    ct_gate_open(gate, &device->table, device->process, &device->process[index].gate, &device->arbitration, index,
                 generation);
}

#endif

/* Recognizes the results after which a process cannot use its device any more. */
#include "hook/memory/memory.h"

/* According to cuda.h the process must be restarted after these. They are the errors in node/policy/protect/errors.py
 * that end a tenant. */
static const int FATAL_RESULTS[] = {
    214, /* uncorrectable ECC error */
    220, /* uncorrectable NVLink error */
    226, /* contained */
    700, /* illegal address */
    702, /* launch timeout */
    710, /* assert */
    714, /* hardware stack error */
    715, /* illegal instruction */
    716, /* misaligned address */
    717, /* invalid address space */
    718, /* invalid program counter */
    719, /* launch failed */
    721, /* tensor memory leak */
    805, /* no connection to the MPS server */
    806, /* an MPS call failed */
    810, /* MPS client terminated */
    911, /* external device */
    999, /* unknown */
};

void ct_fault_record(CUresult result)
{
    for (size_t i = 0; i < sizeof FATAL_RESULTS / sizeof FATAL_RESULTS[0]; i++) {
        if (FATAL_RESULTS[i] != result)
            continue;
        struct ct_memory *memory = ct_memory();
        uint64_t none = 0;
        if (memory)
            atomic_compare_exchange_strong(&memory->ledger.page->line.fault, &none, (uint64_t)result);
    }
}

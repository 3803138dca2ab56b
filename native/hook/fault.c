/* Which results mean that a process has lost its device? */
#include "hook/memory.h"

/* By what cuda.h says of them: the process must be begun anew. Those of policy/protect/errors.py that end a tenant. */
static const int LOST[] = {
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

void ct_fault_failed(CUresult result)
{
    for (size_t i = 0; i < sizeof LOST / sizeof LOST[0]; i++) {
        if (LOST[i] != result)
            continue;
        struct ct_memory *memory = ct_memory();
        struct ct_ledger_line *line = memory ? atomic_load(&memory->ledger.line) : NULL;
        uint64_t none = 0;
        if (line)
            atomic_compare_exchange_strong(&line->fault, &none, (uint64_t)result);
    }
}

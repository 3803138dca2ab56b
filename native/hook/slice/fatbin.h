/* The PTX of a fat binary, which is what the driver would compile for a device. */
#ifndef COTENANT_HOOK_SLICE_FATBIN_H
#define COTENANT_HOOK_SLICE_FATBIN_H

#include <stddef.h>

/* Returns whether these first four bytes are those of a fat binary, or of a header that points to one. */
int ct_slice_is_fatbin(const void *image);
/* Returns the PTX for the newest architecture that a device of this compute capability (80 for 8.0) has, zero-terminated;
 * the caller frees it. NULL: there is none, there are several, it cannot be read, or the device has machine code for a
 * newer architecture in it, which may be faster. `bytes` 0: the binary states its size. */
char *ct_slice_fatbin_text(const void *image, size_t bytes, unsigned capability);

#endif

/* dlsym for programs that the hook was preloaded into: the driver's addresses are replaced, two of NVML's, nothing else.
 *
 * RTLD_NEXT and RTLD_DEFAULT mean "after, or as seen by, the caller", whom the C library knows by the return address.
 * So these two leave by a jump, with the caller's own return address on the stack; what they find is right as it is,
 * for our functions are symbols like everybody's. Nobody's dlopen and dlvsym are touched. */
#define _GNU_SOURCE
#include "hook/nvml.h"
#include "hook/route.h"
#include "hook/seen.h"

#include <dlfcn.h>

static _Atomic(void *) found_dlsym;

ct_dlsym_type ct_real_dlsym(void)
{
    void *found = atomic_load_explicit(&found_dlsym, memory_order_acquire);
    if (!found) {
        /* After us comes whoever else stands in for it, then the C library; behind the door that one comes before us. */
        void *const places[] = {RTLD_NEXT, dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD),
                                dlopen("libdl.so.2", RTLD_LAZY | RTLD_NOLOAD)};
        static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
        for (int i = 0; !found && i < 9; i++)
            if (places[i / 3])
                found = dlvsym(places[i / 3], "dlsym", versions[i % 3]);
        atomic_store_explicit(&found_dlsym, found, memory_order_release);
    }
    return (ct_dlsym_type)found;
}

/* Called from the assembly below. */
__attribute__((used, visibility("hidden"))) void *ct_dlsym_where(void)
{
    return (void *)ct_real_dlsym();
}

__attribute__((used, visibility("hidden"))) void *ct_dlsym_in(void *handle, const char *name)
{
    int is_known;
    void *address = ct_real_dlsym()(handle, name);
    if (address && name && name[0] == 'n')
        return ct_nvml_instead(name, address);
    if (!address || !name || name[0] != 'c' || name[1] != 'u' || !ct_is_hooked_symbol(name) || !ct_bind(0))
        return address;
    void *hook = ct_substitute(address, &is_known);
    if (!is_known)
        ct_seen_unknown(name);
    return hook;
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    endbr64\n"
        "    lea 1(%rdi), %rax\n" /* RTLD_NEXT is -1, RTLD_DEFAULT 0 */
        "    cmp $1, %rax\n"
        "    ja 1f\n"
        "    push %rdi\n"
        "    push %rsi\n"
        "    sub $8, %rsp\n"
        "    call ct_dlsym_where\n"
        "    add $8, %rsp\n"
        "    pop %rsi\n"
        "    pop %rdi\n"
        "    jmp *%rax\n"
        "1:  jmp ct_dlsym_in\n"
        ".size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        "    hint #34\n" /* bti c */
        "    add x9, x0, #1\n"
        "    cmp x9, #1\n"
        "    b.hi 1f\n"
        "    stp x0, x1, [sp, #-32]!\n"
        "    str x30, [sp, #16]\n"
        "    bl ct_dlsym_where\n"
        "    mov x9, x0\n"
        "    ldr x30, [sp, #16]\n"
        "    ldp x0, x1, [sp], #32\n"
        "    br x9\n"
        "1:  b ct_dlsym_in\n"
        ".size dlsym, . - dlsym\n");
#else
#error "the hook knows x86-64 and AArch64"
#endif

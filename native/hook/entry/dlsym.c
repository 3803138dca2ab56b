/* The replacement of dlsym for programs that the hook is preloaded into. It substitutes the hooked functions of the
 * driver and two functions of NVML, and nothing else.
 *
 * RTLD_NEXT and RTLD_DEFAULT are relative to the caller, which the C library identifies by the return address. For
 * these two the replacement therefore jumps to the C library's dlsym with the caller's return address on the stack;
 * their results need no substitution, because the hook's functions are ordinary symbols. dlopen and dlvsym are not
 * replaced. */
#define _GNU_SOURCE
#include "hook/nvml/nvml.h"
#include "hook/entry/route.h"
#include "hook/entry/session.h"

#include <dlfcn.h>

static _Atomic(void *) cached_dlsym;

ct_dlsym_type ct_real_dlsym(void)
{
    void *address = load_acquire(&cached_dlsym);
    if (!address) {
        /* The next interposer of dlsym, if there is one, then the C library; if the hook was loaded by the shim, the C
         * library precedes it in the search order. */
        void *const libraries[] = {RTLD_NEXT, dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD),
                                   dlopen("libdl.so.2", RTLD_LAZY | RTLD_NOLOAD)};
        static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
        for (int i = 0; !address && i < 9; i++)
            if (libraries[i / 3])
                address = dlvsym(libraries[i / 3], "dlsym", versions[i % 3]);
        store_release(&cached_dlsym, address);
    }
    return (ct_dlsym_type)address;
}

/* Called by the assembly below. */
__attribute__((used, visibility("hidden"))) void *ct_dlsym_address(void)
{
    return (void *)ct_real_dlsym();
}

__attribute__((used, visibility("hidden"))) void *ct_dlsym_in(void *handle, const char *name)
{
    int is_known;
    void *address = ct_real_dlsym()(handle, name);
    if (address && name && name[0] == 'n')
        return ct_nvml_substitute(name, address);
    if (!address || !name || name[0] != 'c' || name[1] != 'u' || !ct_is_hooked_symbol(name) || !ct_bind(0))
        return address;
    void *hook = ct_substitute(address, &is_known);
    if (!is_known)
        ct_count_unknown_address(name);
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
        "    call ct_dlsym_address\n"
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
        "    bl ct_dlsym_address\n"
        "    mov x9, x0\n"
        "    ldr x30, [sp, #16]\n"
        "    ldp x0, x1, [sp], #32\n"
        "    br x9\n"
        "1:  b ct_dlsym_in\n"
        ".size dlsym, . - dlsym\n");
#else
#error "the hook supports only x86-64 and AArch64"
#endif

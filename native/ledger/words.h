/* How are a ledger's words read and added up? */
#ifndef COTENANT_LEDGER_WORDS_H
#define COTENANT_LEDGER_WORDS_H

#include "ledger/ledger.h"

/* One order that all processes agree on: whoever adds and then sums sees everybody who did so before. */
#define LOAD(place) atomic_load_explicit(&(place), memory_order_seq_cst)
#define STORE(place, value) atomic_store_explicit(&(place), (value), memory_order_seq_cst)

#define LINE_IS(ledger, place) atomic_store_explicit(&(ledger)->line, (place), memory_order_release)

static inline struct ct_ledger_line *line_in(const struct ct_ledger *ledger)
{
    return atomic_load_explicit(&ledger->line, memory_order_acquire);
}

/* A sum that stays at the top: what somebody scribbled must not look small. */
static inline uint64_t plus(uint64_t one, uint64_t other)
{
    return one > UINT64_MAX - other ? UINT64_MAX : one + other;
}

/* How many of the lines, or shares, may be in use; the word is the tenant's own, and may be anything. */
static inline uint32_t used_of(const _Atomic uint64_t *used, uint32_t room)
{
    uint64_t said = LOAD(*used);
    return said < room ? (uint32_t)said : room;
}

static inline void raise_to(_Atomic uint64_t *word, uint64_t least)
{
    uint64_t seen = LOAD(*word);
    while (seen < least && !atomic_compare_exchange_weak(word, &seen, least))
        ;
}

/* Never below zero, whatever came of the word meanwhile. */
static inline void take_from(_Atomic uint64_t *word, uint64_t bytes)
{
    uint64_t seen = LOAD(*word);
    while (!atomic_compare_exchange_weak(word, &seen, seen > bytes ? seen - bytes : 0))
        ;
}

static inline uint64_t share_place(enum ct_ledger_role role, uint64_t line_and_one)
{
    return (uint64_t)role << 32 | line_and_one;
}

static inline enum ct_ledger_role share_role(uint64_t place)
{
    return (enum ct_ledger_role)(place >> 32 & 7);
}

/* Accounts that are really there. */
static inline uint64_t accounts_of(const struct ct_ledger_header *file, size_t bytes)
{
    uint64_t said = LOAD(file->slots), room = (bytes - CT_LEDGER_HEADER_BYTES) / CT_LEDGER_ACCOUNT_BYTES;
    return said < room ? said : room;
}

static inline const struct ct_ledger_account *account_of(const void *file, uint64_t slot)
{
    return (const void *)((const unsigned char *)file + ct_ledger_offset((uint32_t)slot));
}

/* What the account's tenant left that others have open. */
uint64_t ct_ledger_left_bytes(const struct ct_ledger_header *file, size_t bytes, const struct ct_ledger_account *account);
/* How large what one process exported under this key is; 0: nobody did. */
uint64_t ct_ledger_exported_bytes(const struct ct_ledger_header *file, size_t bytes, uint64_t key);
/* The shares of a line whose process, or program, is over: its exports that others have open become LEFT. */
void ct_ledger_shares_end(const struct ct_ledger_header *file, size_t bytes, struct ct_ledger_account *account,
                          uint64_t line_and_one);
/* The same by the process itself, which is another program now. */
void ct_ledger_shares_forget(struct ct_ledger *ledger);

#endif

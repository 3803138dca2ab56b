/* Functions that the files of the ledger share.
 *
 * All accesses to a ledger's words are sequentially consistent: a process that adds its bytes and then computes the sum
 * sees every process that did so before. */
#ifndef COTENANT_LEDGER_INTERNAL_H
#define COTENANT_LEDGER_INTERNAL_H

#include "arithmetic.h"
#include "atomics.h"
#include "ledger/ledger.h"

static inline struct ct_ledger_line *line_in(const struct ct_ledger *ledger)
{
    return load_acquire(&ledger->line);
}

/* Returns how many lines or shares may be in use. The tenant can write the word, so its value is limited. */
static inline uint32_t used_count(const _Atomic uint64_t *used, uint32_t capacity)
{
    uint64_t count = load_seq_cst(used);
    return count < capacity ? (uint32_t)count : capacity;
}

/* Raises a word to at least this value. */
static inline void raise_to(_Atomic uint64_t *word, uint64_t minimum)
{
    uint64_t value = load_seq_cst(word);
    while (value < minimum && !atomic_compare_exchange_weak(word, &value, minimum))
        ;
}

/* Subtracts without going below zero, whatever another process has stored meanwhile. */
static inline void subtract_saturating(_Atomic uint64_t *word, uint64_t bytes)
{
    uint64_t value = load_seq_cst(word);
    while (!atomic_compare_exchange_weak(word, &value, value > bytes ? value - bytes : 0))
        ;
}

/* Encodes and decodes ct_ledger_share.place. */
static inline uint64_t share_place(enum ct_ledger_role role, uint64_t line_number_plus_one)
{
    return (uint64_t)role << 32 | line_number_plus_one;
}

static inline enum ct_ledger_role share_role(uint64_t place)
{
    return (enum ct_ledger_role)(place >> 32 & 7);
}

/* Returns the number of accounts that are within the file. */
static inline uint64_t accounts_of(const struct ct_ledger_header *file, size_t bytes)
{
    uint64_t count = load_seq_cst(&file->slots), capacity = (bytes - CT_LEDGER_HEADER_BYTES) / CT_LEDGER_ACCOUNT_BYTES;
    return count < capacity ? count : capacity;
}

static inline const struct ct_ledger_account *account_of(const void *file, uint64_t slot)
{
    return (const void *)((const unsigned char *)file + ct_ledger_offset((uint32_t)slot));
}

/* Returns the size of memory that processes of the account's tenant exported and freed while others have it open. */
uint64_t ct_ledger_orphaned_bytes(const struct ct_ledger_header *file, size_t bytes,
                                  const struct ct_ledger_account *account);
/* Returns the size of what a process exported under this key; 0: none did. */
uint64_t ct_ledger_exported_bytes(const struct ct_ledger_header *file, size_t bytes, uint64_t key);
/* Ends the shares of a line whose process has ended: exports that others have open become orphaned. */
void ct_ledger_shares_end(const struct ct_ledger_header *file, size_t bytes, struct ct_ledger_account *account,
                          uint64_t line_number_plus_one);
/* The same for the process itself after exec, when it is another program. */
void ct_ledger_shares_clear(struct ct_ledger *ledger);

#endif

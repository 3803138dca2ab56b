/* Loops that may wait for another block. In parts, such a block may not have been launched yet.
 *
 * A loop reads what other blocks write by loads that are volatile, ordered or not kept in the first cache, by
 * asynchronous copies, by atomics, or, next to fences, by any load. If a branch within the loop depends on a value that was read within the same loop, the kernel is taken to wait.
 * Dependences are followed through registers, calls and memory, without regard to the order of the instructions. */
#include "hook/slice/internal.h"

#include <stdlib.h>
#include <string.h>

/* Larger functions with more loops are not examined. */
static const uint64_t WORK_MAX = 50 * 1000 * 1000;

/* Numbers of the words of a function. */
struct words {
    uint32_t *buckets; /* tokens */
    uint32_t *number_of; /* by token, from the first one of the body */
    size_t bucket_count;
    uint32_t first;
    unsigned char *is_tainted; /* by bucket */
    uint64_t work;
};

/* Returns the bytes of a name: an element of a vector register stands for the whole register. */
static uint32_t name_bytes(const struct token *token)
{
    const char *dot = *token->text == '%' ? memchr(token->text, '.', token->bytes) : NULL;
    return dot ? (uint32_t)(dot - token->text) : token->bytes;
}

static int is_same_name(const struct token *left, const struct token *right)
{
    return name_bytes(left) == name_bytes(right) && memcmp(left->text, right->text, name_bytes(left)) == 0;
}

static int number_words(const struct ptx *ptx, const struct function *function, struct words *words)
{
    const uint32_t count = function->body_end - function->body + 1;
    words->first = function->body;
    words->bucket_count = 16;
    while (words->bucket_count < 2 * (size_t)count)
        words->bucket_count *= 2;
    words->buckets = calloc(words->bucket_count, sizeof *words->buckets);
    words->number_of = calloc(count, sizeof *words->number_of);
    words->is_tainted = calloc(words->bucket_count, 1);
    if (!words->buckets || !words->number_of || !words->is_tainted)
        return 0;
    for (uint32_t at = function->body; at < function->body_end; at++) {
        if (ptx->tokens[at].kind != TOKEN_WORD)
            continue;
        size_t bucket = ct_ptx_hash(ptx->tokens[at].text, name_bytes(&ptx->tokens[at])) & (words->bucket_count - 1);
        while (words->buckets[bucket] && !is_same_name(&ptx->tokens[words->buckets[bucket]], &ptx->tokens[at]))
            bucket = (bucket + 1) & (words->bucket_count - 1);
        words->buckets[bucket] = at;
        words->number_of[at - words->first] = (uint32_t)bucket;
    }
    return 1;
}

static void free_words(struct words *words)
{
    free(words->buckets);
    free(words->number_of);
    free(words->is_tainted);
}

/* ---- instructions ------------------------------------------------------------------------------------------------- */

static int is_opcode(const struct ptx *ptx, const struct ins *ins, const char *name)
{
    const struct token *one = &ptx->tokens[ins->opcode];
    const size_t length = strlen(name);
    return one->bytes >= length && memcmp(one->text, name, length) == 0 &&
           (one->bytes == length || one->text[length] == '.');
}

static int is_private(const struct ptx *ptx, const struct ins *ins)
{
    return ct_ptx_suffix(ptx, ins->opcode, ".shared") || ct_ptx_suffix(ptx, ins->opcode, ".shared::cta") ||
           ct_ptx_suffix(ptx, ins->opcode, ".local") || ct_ptx_suffix(ptx, ins->opcode, ".param") ||
           ct_ptx_suffix(ptx, ins->opcode, ".const");
}

/* Returns whether the instruction reads what another block may write meanwhile. */
static int is_source(const struct ptx *ptx, const struct ins *ins, int has_fence)
{
    static const char *const ordered[] = {".volatile", ".relaxed", ".acquire", ".mmio", ".cv", ".cg", ".L1::no_allocate"};
    const int is_image = is_opcode(ptx, ins, "suld") || is_opcode(ptx, ins, "tex") || is_opcode(ptx, ins, "tld4");
    if (is_opcode(ptx, ins, "atom"))
        return !is_private(ptx, ins);
    if (is_opcode(ptx, ins, "cp")) /* it may bypass the first cache */
        return 1;
    if (!is_image && ((!is_opcode(ptx, ins, "ld") && !is_opcode(ptx, ins, "ldu")) || is_private(ptx, ins)))
        return 0;
    if (ct_ptx_suffix(ptx, ins->opcode, ".nc"))
        return has_fence;
    for (size_t i = 0; i < sizeof ordered / sizeof ordered[0]; i++)
        if (ct_ptx_suffix(ptx, ins->opcode, ordered[i]))
            return 1;
    return has_fence;
}

/* Returns the token behind the first operand, which is the destination of most instructions. */
static uint32_t first_operand_end(const struct ptx *ptx, const struct ins *ins)
{
    uint32_t at = ins->opcode + 1;
    while (at < ins->end && !ct_ptx_is(ptx, at, ","))
        at = ct_ptx_skip_group(ptx, at);
    return at < ins->end ? at : ins->end;
}

static int has_tainted(const struct words *words, const struct ptx *ptx, uint32_t from, uint32_t to)
{
    for (uint32_t at = from; at < to; at++)
        if (ptx->tokens[at].kind == TOKEN_WORD && words->is_tainted[words->number_of[at - words->first]])
            return 1;
    return 0;
}

/* Returns whether a word was not tainted before. */
static int taint(struct words *words, const struct ptx *ptx, uint32_t from, uint32_t to)
{
    int is_changed = 0;
    for (uint32_t at = from; at < to; at++)
        if (ptx->tokens[at].kind == TOKEN_WORD) {
            unsigned char *tainted = &words->is_tainted[words->number_of[at - words->first]];
            is_changed |= !*tainted;
            *tainted = 1;
        }
    return is_changed;
}

static const struct call *call_at(const struct ptx *ptx, const struct function *function, const struct ins *ins)
{
    for (uint32_t i = 0; i < function->call_count; i++)
        if (ptx->calls[function->first_call + i].first == ins->first)
            return &ptx->calls[function->first_call + i];
    return NULL;
}

/* ---- loops -------------------------------------------------------------------------------------------------------- */

#define NO_LOOP SIZE_MAX

struct loop {
    size_t begin, end; /* instructions */
    int has_fence, is_memory_tainted;
};

static int is_store(const struct ptx *ptx, const struct ins *ins)
{
    return is_opcode(ptx, ins, "st") || is_opcode(ptx, ins, "cp") || is_opcode(ptx, ins, "stmatrix") ||
           is_opcode(ptx, ins, "atom") || is_opcode(ptx, ins, "red") || is_opcode(ptx, ins, "mbarrier");
}

/* Parameters are written by calls, whose operands name them. */
static int reads_memory(const struct ptx *ptx, const struct ins *ins)
{
    return (is_opcode(ptx, ins, "ld") || is_opcode(ptx, ins, "ldu") || is_opcode(ptx, ins, "ldmatrix") ||
            is_opcode(ptx, ins, "atom") || is_opcode(ptx, ins, "mbarrier")) &&
           !ct_ptx_suffix(ptx, ins->opcode, ".const") && !ct_ptx_suffix(ptx, ins->opcode, ".param");
}

/* Taints what depends on the sources of the loop; returns whether something was added. */
static int spread(struct ptx *ptx, const struct function *function, struct words *words, struct loop *loop)
{
    int is_changed = 0;
    for (size_t i = loop->begin; i < loop->end; i++) {
        const struct ins *ins = &ptx->ins[i];
        const uint32_t destination_end = first_operand_end(ptx, ins);
        const struct call *call = is_opcode(ptx, ins, "call") ? call_at(ptx, function, ins) : NULL;
        int is_tainted = is_source(ptx, ins, loop->has_fence) ||
                         (loop->is_memory_tainted && reads_memory(ptx, ins)) ||
                         (ins->guard && has_tainted(words, ptx, ins->guard, ins->guard + 1)) ||
                         has_tainted(words, ptx, destination_end, ins->end) ||
                         (is_store(ptx, ins) && has_tainted(words, ptx, ins->opcode + 1, destination_end));
        is_tainted |= call && (ptx->functions[call->callee].has_source || loop->is_memory_tainted);
        if (!is_tainted)
            continue;
        is_changed |= taint(words, ptx, ins->opcode + 1, destination_end);
        if ((call || is_store(ptx, ins)) && !loop->is_memory_tainted)
            loop->is_memory_tainted = is_changed = 1;
    }
    words->work += loop->end - loop->begin;
    return is_changed;
}

static int waits_in(struct ptx *ptx, const struct function *function, struct words *words, struct loop loop)
{
    memset(words->is_tainted, 0, words->bucket_count);
    words->work += words->bucket_count / 8 + ptx->label_count;
    while (spread(ptx, function, words, &loop))
        if (words->work > WORK_MAX)
            return 1;
    for (size_t i = loop.begin; i < loop.end; i++) {
        const struct ins *ins = &ptx->ins[i];
        const int is_branch = is_opcode(ptx, ins, "bra") || is_opcode(ptx, ins, "brx") || is_opcode(ptx, ins, "ret") ||
                              is_opcode(ptx, ins, "exit") || is_opcode(ptx, ins, "trap");
        if (is_branch && ((ins->guard && has_tainted(words, ptx, ins->guard, ins->guard + 1)) ||
                          (is_opcode(ptx, ins, "brx") && has_tainted(words, ptx, ins->opcode + 1, ins->end))))
            return 1;
    }
    return 0;
}

/* Returns the first instruction behind the label that a branch goes back to; NO_LOOP if it does not go back. */
static size_t target_of(const struct ptx *ptx, size_t branch)
{
    const struct ins *ins = &ptx->ins[branch];
    size_t target = NO_LOOP;
    for (uint32_t at = ins->opcode + 1; at < ins->end; at++)
        for (size_t i = 0; i < ptx->label_count; i++)
            if (ct_ptx_same(ptx, ptx->labels[i].token, at) && ptx->labels[i].line <= ins->line) {
                size_t first = 0;
                while (first < branch && ptx->ins[first].line < ptx->labels[i].line)
                    first++;
                target = first < target ? first : target;
            }
    return target;
}

/* Returns whether the loop contains a barrier, behind which a load sees what other threads have written. */
static int has_barrier(const struct ptx *ptx, const struct function *function, const struct loop *loop)
{
    for (size_t i = loop->begin; i < loop->end; i++) {
        const struct ins *ins = &ptx->ins[i];
        const struct call *call = is_opcode(ptx, ins, "call") ? call_at(ptx, function, ins) : NULL;
        if (is_opcode(ptx, ins, "bar") || is_opcode(ptx, ins, "barrier") ||
            (call && ptx->functions[call->callee].has_barrier))
            return 1;
    }
    return 0;
}

/* Adds what the functions that it calls may do. */
static void inherit(struct ptx *ptx, struct function *function)
{
    for (size_t i = 0; i < ptx->ins_count; i++) {
        const struct ins *ins = &ptx->ins[i];
        function->has_barrier |= is_opcode(ptx, ins, "bar") || is_opcode(ptx, ins, "barrier");
        function->has_source |= is_source(ptx, ins, 1);
    }
    for (uint32_t i = 0; i < function->call_count; i++) {
        const struct function *callee = &ptx->functions[ptx->calls[function->first_call + i].callee];
        function->has_barrier |= callee->has_barrier;
        function->has_source |= callee->has_source;
        function->has_fence |= callee->has_fence;
    }
}

int ct_ptx_may_wait(struct ptx *ptx, struct function *function)
{
    struct words words = {0};
    inherit(ptx, function);
    if (!function->has_source)
        return 0;
    int may_wait = !number_words(ptx, function, &words);
    for (size_t i = 0; i < ptx->ins_count && !may_wait; i++) {
        const struct ins *ins = &ptx->ins[i];
        struct loop loop = {.end = i + 1, .has_fence = function->has_fence};
        if (is_opcode(ptx, ins, "brx")) /* it may go back to any of its labels */
            loop.end = ptx->ins_count;
        else if (is_opcode(ptx, ins, "bra"))
            loop.begin = target_of(ptx, i);
        else
            continue;
        if (loop.begin == NO_LOOP)
            continue;
        loop.has_fence |= has_barrier(ptx, function, &loop);
        may_wait = waits_in(ptx, function, &words, loop);
    }
    free_words(&words);
    return may_wait;
}

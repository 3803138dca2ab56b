/* Tokens, functions and instructions of a PTX text, shared by the files that read and rewrite it. */
#ifndef COTENANT_HOOK_SLICE_INTERNAL_H
#define COTENANT_HOOK_SLICE_INTERNAL_H

#include "hook/slice/ptx.h"

enum token_kind { TOKEN_END, TOKEN_WORD, TOKEN_NUMBER, TOKEN_STRING, TOKEN_OTHER };

struct token {
    const char *text;
    uint32_t bytes;
    uint32_t kind;
};

struct ins {
    uint32_t first, opcode, end; /* tokens: the guard or the opcode; the opcode; the semicolon */
    uint32_t guard;              /* token of the guard's register; 0: none */
    uint32_t line;               /* number of the instruction or label before it, in the order of the text */
};

struct label {
    uint32_t token, line;
};

struct function {
    uint32_t name;              /* tokens */
    uint32_t results, results_end; /* the list in parentheses before the name, 0: none */
    uint32_t list, list_end;    /* the opening and closing parenthesis of the parameters; 0: none */
    uint32_t body, body_end;    /* the braces; 0: only declared */
    int is_entry;
    unsigned reads_grid; /* bits of the coordinates that it reads, see ct_ptx_grid_read(); all if a function does */
    int has_source, has_fence, has_barrier; /* also of the functions that it calls, see wait.c */
    enum ct_ptx_reason reason;
    uint32_t parameter_count, parameter_bytes;
    uint32_t first_call, call_count;
    int is_read, is_ordered;    /* its calls are known; it is in the order */
};

/* A direct call. */
struct call {
    uint32_t callee;   /* function */
    uint32_t name;     /* tokens: the callee; the end of its arguments, where another one is added */
    uint32_t add;
    uint32_t first;    /* first token of the statement */
    int has_list, has_arguments;
};

struct ptx {
    struct token *tokens;
    size_t token_count, token_capacity;
    struct function *functions;
    size_t function_count, function_capacity;
    struct call *calls;
    size_t call_count, call_capacity;
    uint32_t *order; /* functions, callees before callers */
    size_t order_count;
    /* of the function that is being read */
    struct ins *ins;
    size_t ins_count, ins_capacity;
    struct label *labels;
    size_t label_count, label_capacity;
    uint32_t *ranges; /* tokens of registers that are declared as ranges, such as %r<9> */
    size_t range_count, range_capacity;
    uint32_t *registers; /* tokens of the other ones, hashed by name; 0: none */
    size_t register_count, bucket_count;
    uint32_t text_hash;
    int has_debug, is_lost; /* is_lost: there is not enough memory */
};

/* Appends a zeroed element to an array, and returns it; NULL: no memory. */
void *ct_ptx_add(struct ptx *ptx, void *array, size_t *count, size_t *capacity, size_t element_bytes);

/* ---- token.c ------------------------------------------------------------------------------------------------------ */

/* Splits the text; returns 0 if there is no memory for it. The last token is of kind TOKEN_END. */
int ct_ptx_split(struct ptx *ptx, const char *text, size_t bytes);
int ct_ptx_is(const struct ptx *ptx, uint32_t token, const char *text);
int ct_ptx_begins(const struct ptx *ptx, uint32_t token, const char *text);
int ct_ptx_same(const struct ptx *ptx, uint32_t left, uint32_t right);
uint32_t ct_ptx_hash(const char *text, uint32_t bytes);
/* Returns whether the word contains the text. */
int ct_ptx_has(const struct ptx *ptx, uint32_t token, const char *text);
/* Returns whether one of the suffixes of the opcode, which begin with a dot, is this one. */
int ct_ptx_suffix(const struct ptx *ptx, uint32_t token, const char *suffix);
uint64_t ct_ptx_number(const struct ptx *ptx, uint32_t token, int *is_valid);

/* ---- parse.c ------------------------------------------------------------------------------------------------------ */

/* Finds all functions of the text. Returns 0 if it is not understood. */
int ct_ptx_parse(struct ptx *ptx);
/* Returns the function of this name; -1: none. */
int ct_ptx_function(const struct ptx *ptx, uint32_t name);
/* Returns the token behind the one that closes this parenthesis, bracket or brace. */
uint32_t ct_ptx_skip_group(const struct ptx *ptx, uint32_t token);

/* ---- body.c ------------------------------------------------------------------------------------------------------- */

/* Reads the instructions of a function, and the first time also its calls. */
enum ct_ptx_reason ct_ptx_read_body(struct ptx *ptx, struct function *function);
/* Returns the coordinate of a word that reads %ctaid (0 to 3) or %nctaid (4 to 7); 8 or 12: the whole vector; -1: none. */
int ct_ptx_grid_read(const struct ptx *ptx, uint32_t token);
enum { CT_PTX_VECTOR = 8, CT_PTX_WHOLE_GRID = 0xff };

/* ---- wait.c ------------------------------------------------------------------------------------------------------- */

/* Returns whether a loop of the function, which was read last, may wait for another block. The functions that it calls must
 * have been examined before. */
int ct_ptx_may_wait(struct ptx *ptx, struct function *function);

/* ---- write.c ------------------------------------------------------------------------------------------------------ */

/* Writes the text with variants of all eligible kernels. */
int ct_ptx_write(struct ptx *ptx, const char *text, size_t bytes, struct ct_ptx_module *module);

#endif

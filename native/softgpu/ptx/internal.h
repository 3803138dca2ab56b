/* The compact form of PTX that is executed, and the functions shared by the files of this folder. */
#ifndef COTENANT_SOFTGPU_PTX_INTERNAL_H
#define COTENANT_SOFTGPU_PTX_INTERNAL_H

#include "softgpu/ptx/ptx.h"

#include <stdint.h>

enum { WARP = 32, NONE = -1 };
#define NO_SLOT UINT32_MAX

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

enum token_kind { TOKEN_END, TOKEN_WORD, TOKEN_NUMBER, TOKEN_STRING, TOKEN_OTHER };

struct token {
    enum token_kind kind;
    const char *text;
    size_t bytes;
};

struct lexer {
    const char *at, *end;
    struct token token; /* the current one */
};

void ptx_next(struct lexer *lexer);
int ptx_is(const struct lexer *lexer, const char *text);     /* whether the current token is this text */
int ptx_accept(struct lexer *lexer, const char *text);       /* go on if it is */
int ptx_token_is(const struct token *token, const char *text);

/* ---- Types ------------------------------------------------------------------------------------------------------- */

enum type_class { CLASS_BITS, CLASS_UNSIGNED, CLASS_SIGNED, CLASS_FLOAT, CLASS_BF16, CLASS_PREDICATE };

struct type {
    const char *name; /* NULL: no type */
    enum type_class class;
    uint32_t bytes;
    int is_pair; /* two elements, such as f16x2 */
};

const struct type *ptx_type(const char *text, size_t bytes); /* of text without its dot; NULL: no type */

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

/* An operand is a slot: the upper two bits select the base, the others are an offset in bytes. A slot of a register
 * with up to 32 bits holds 32 words, one per thread of the warp; one with 64 bits 32 double words; a predicate is one
 * word with a bit per thread. */
enum { BASE_REGISTERS, BASE_CONSTANTS, BASE_ADDRESSES, BASES };
#define SLOT_SHIFT 30
#define SLOT_OFFSET ((UINT32_C(1) << SLOT_SHIFT) - 1)

enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_CONST, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM, SPACE_AREA };

/* Generic addresses of memory that is not global. User addresses of Linux are below 2^57. */
#define WINDOW_SHARED UINT64_C(0x1000000000000000)
#define WINDOW_LOCAL UINT64_C(0x2000000000000000)
#define WINDOW_PARAM UINT64_C(0x3000000000000000)
#define WINDOW_FUNCTION UINT64_C(0x4000000000000000)
#define WINDOW_MASK UINT64_C(0xf000000000000000)

enum ins_kind {
    INS_PLAIN,  /* a handler that cannot fail */
    INS_MEMORY, /* a handler that may set a fault */
    INS_BRANCH,
    INS_BRANCH_INDEX,
    INS_CALL,
    INS_RETURN,
    INS_EXIT,
    INS_BARRIER,
    INS_WARP,      /* a handler that needs all threads of its member mask */
    INS_WARP_WAIT, /* bar.warp.sync */
    INS_CLUSTER,   /* barrier.cluster */
    INS_TRAP,
    INS_NOTHING,
};

struct ptx_warp;
struct ptx_ins;
typedef void (*ptx_handler)(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);

struct ptx_call {
    int function;         /* index, or NONE: o[0] holds its address */
    uint32_t *arguments;  /* slots, or offsets in the caller's area */
    uint32_t *results;
    uint8_t *is_area;     /* per argument, then per result: an offset in the area */
    uint32_t *bytes;      /* per argument, then per result */
    uint32_t argument_count, result_count;
    int system; /* enum system_call; 0: a function */
};

struct ptx_ins {
    ptx_handler run;
    int64_t immediate;
    uint32_t o[6];
    uint32_t guard; /* slot of a predicate; NO_SLOT: none */
    uint32_t target;
    uint16_t line_hint;
    uint8_t kind;
    uint8_t is_negated;
    uint8_t space, bytes, count, op; /* of memory accesses */
    uint8_t source, result, round, flags;
    union {
        const uint32_t *list;
        const struct ptx_call *call;
    };
};

enum { FLAG_FTZ = 1, FLAG_SAT = 2, FLAG_SIGNED = 4, FLAG_WIDE = 8, FLAG_RELU = 16, FLAG_BF16 = 32, FLAG_NEGATED = 64,
       FLAG_FINITE = 128 };
enum { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP, ROUND_AWAY };
enum system_call { SYSTEM_NONE, SYSTEM_PRINTF, SYSTEM_MALLOC, SYSTEM_FREE, SYSTEM_ASSERT, SYSTEM_GRID_HANDLE,
                   SYSTEM_GRID_SYNC };

enum special {
    SPECIAL_NONE,
    SPECIAL_TID_X, SPECIAL_TID_Y, SPECIAL_TID_Z,
    SPECIAL_NTID_X, SPECIAL_NTID_Y, SPECIAL_NTID_Z,
    SPECIAL_CTAID_X, SPECIAL_CTAID_Y, SPECIAL_CTAID_Z,
    SPECIAL_NCTAID_X, SPECIAL_NCTAID_Y, SPECIAL_NCTAID_Z,
    SPECIAL_LANEID, SPECIAL_WARPID, SPECIAL_NWARPID, SPECIAL_SMID, SPECIAL_NSMID, SPECIAL_GRIDID,
    SPECIAL_MASK_EQ, SPECIAL_MASK_LE, SPECIAL_MASK_LT, SPECIAL_MASK_GE, SPECIAL_MASK_GT,
    SPECIAL_TOTAL_SHARED, SPECIAL_DYNAMIC_SHARED, SPECIAL_ZERO, SPECIAL_WORKSPACE_LO, SPECIAL_WORKSPACE_HI,
    SPECIAL_CLUSTER_X, SPECIAL_CLUSTER_Y, SPECIAL_CLUSTER_Z, SPECIAL_CLUSTERS_X, SPECIAL_CLUSTERS_Y, SPECIAL_CLUSTERS_Z,
    SPECIAL_IN_CLUSTER_X, SPECIAL_IN_CLUSTER_Y, SPECIAL_IN_CLUSTER_Z, SPECIAL_CLUSTER_SIZE_X, SPECIAL_CLUSTER_SIZE_Y,
    SPECIAL_CLUSTER_SIZE_Z, SPECIAL_CLUSTER_RANK, SPECIAL_CLUSTER_BLOCKS, SPECIAL_IS_CLUSTER,
    SPECIAL_CLOCK, SPECIAL_CLOCK_HI, SPECIAL_CLOCK64, SPECIAL_TIMER, SPECIAL_TIMER_LO, SPECIAL_TIMER_HI,
};

struct special_use {
    enum special special;
    uint32_t slot;
    int is_wide;
};

struct ptx_param {
    char *name;
    uint32_t offset, bytes; /* in the parameters of the launch, or in the area of the function */
    uint32_t slot;          /* NO_SLOT, or the register that holds it */
    int is_wide, is_predicate;
};

struct ptx_function {
    char *name;
    int unit;
    int is_entry, is_defined, is_visible, is_weak;
    int link; /* of a declaration: the definition it refers to; NONE: unresolved */
    char *reason;
    struct ptx_ins *code;
    size_t count, capacity;
    uint32_t register_bytes, local_bytes, area_bytes, shared_bytes;
    struct ptx_param *params, *results;
    uint32_t param_count, result_count, param_bytes;
    struct special_use *specials;
    size_t special_count;
    int *callees;
    size_t callee_count;
    uint8_t mark; /* while reasons are propagated */
    uint64_t max_threads;
    uint32_t cluster[3]; /* of an entry: .reqnctapercluster; zeros: none */
};

struct ptx_relocation {
    uint64_t offset;
    uint64_t addend;
    int variable, function;
    uint32_t bytes;
    char *name; /* to resolve */
    uint64_t window;
};

struct ptx_variable {
    char *name;
    int unit;
    enum space space; /* global, const or shared */
    int is_visible, is_extern, is_weak;
    int link;
    uint64_t bytes, alignment;
    uint64_t offset; /* of shared memory */
    unsigned char *initial;
    struct ptx_relocation *relocations;
    size_t relocation_count;
    int placed; /* index among the variables that the caller places; NONE: shared */
};

/* A slot of the base BASE_ADDRESSES: the address of a variable plus a constant. */
struct ptx_address {
    int variable;
    int64_t addend;
    uint32_t slot;
};

struct sg_ptx {
    int references;
    struct ptx_function *functions;
    size_t function_count, function_capacity;
    struct ptx_variable *variables;
    size_t variable_count, variable_capacity;
    int *placed;
    size_t placed_count;
    unsigned char *constants; /* aligned */
    uint32_t constant_bytes, constant_capacity;
    struct ptx_address *addresses;
    size_t address_count;
    uint32_t address_bytes;
    uint32_t shared_bytes; /* of variables outside entries */
    void **blocks;         /* memory that is freed with the program */
    size_t block_count;
    int relocations;
    int is_lost; /* out of memory */
};

void *ptx_keep(struct sg_ptx *program, size_t bytes); /* zeroed; freed with the program; NULL: out of memory */
char *ptx_copy_text(struct sg_ptx *program, const char *text, size_t bytes);
/* Grow an array by one element; NULL: out of memory. */
void *ptx_grow(void *array, size_t *count, size_t *capacity, size_t element_bytes);

/* ---- Parsing ----------------------------------------------------------------------------------------------------- */

enum symbol_kind { SYMBOL_REGISTER, SYMBOL_AREA, SYMBOL_LOCAL, SYMBOL_VARIABLE, SYMBOL_FUNCTION, SYMBOL_PARAM, SYMBOL_TARGETS };

struct symbol {
    const char *name;
    size_t bytes;
    enum symbol_kind kind;
    uint32_t count; /* of a range of registers such as %r<5>; 0: the name alone */
    uint32_t slot, stride;
    const struct type *type;
    uint32_t vector;
    uint32_t size; /* of memory */
    int index;
    uint32_t *targets;
    uint32_t target_count;
};

struct label {
    const char *name;
    size_t bytes;
    uint32_t scope, at;
};

struct reference { /* to a label */
    const char *name;
    size_t bytes;
    uint32_t scope;
    size_t ins;
    uint32_t *cell; /* NULL: the instruction's target */
};

struct parser {
    struct lexer lexer;
    struct sg_ptx *program;
    int unit;
    int function; /* index; NONE: outside */
    struct symbol *symbols;
    size_t symbol_count, symbol_capacity;
    struct label *labels;
    size_t label_count, label_capacity;
    struct reference *references;
    size_t reference_count, reference_capacity;
    uint32_t *scopes; /* parent of each scope */
    size_t scope_count, scope_capacity;
    uint32_t scope;
    uint32_t carry; /* slot of the condition code register */
    uint32_t *known; /* constants of the function, hashed: their offsets plus one; 0: none */
    size_t known_count, known_capacity;
};

/* Parse one text. The program may already contain others. -1: the text is no PTX. */
int ptx_parse(struct sg_ptx *program, int unit, const char *text, size_t bytes);
int ptx_parse_body(struct parser *parser);
int ptx_variable_declaration(struct parser *parser, enum space space, int is_extern, int is_visible, int is_weak);
/* Record why the current function cannot be executed. The first reason stays. */
__attribute__((format(printf, 2, 3))) void ptx_refuse(struct parser *parser, const char *format, ...);
struct ptx_function *ptx_current(struct parser *parser);
struct symbol *ptx_add_symbol(struct parser *parser, const struct token *name, enum symbol_kind kind);
const struct symbol *ptx_find_symbol(const struct parser *parser, const char *name, size_t bytes, uint32_t *index);
uint32_t ptx_new_register(struct parser *parser, uint32_t bytes, uint32_t alignment);
int64_t ptx_integer(struct lexer *lexer, int *is_good); /* a constant with an optional sign */
void ptx_skip_statement(struct lexer *lexer);

enum operand_kind { OPERAND_NONE, OPERAND_REGISTER, OPERAND_NUMBER, OPERAND_SYMBOL, OPERAND_VECTOR, OPERAND_ADDRESS,
                    OPERAND_LABEL, OPERAND_SINK, OPERAND_LIST };

enum { MAX_OPERANDS = 12, MAX_MEMBERS = 160, MAX_MODIFIERS = 16 };

struct operand {
    enum operand_kind kind;
    const char *text;
    size_t bytes;
    int is_negated;     /* of a predicate */
    const struct type *type; /* of a register */
    uint32_t slot;
    uint64_t number;    /* bits of an integer, or of a double */
    int is_float;       /* 1: double, 2: bits of a float */
    int64_t addend;     /* of an address */
    const struct symbol *symbol;
    int first, count;   /* members of a vector or list, or the base of an address */
    struct operand *second; /* of p|q */
};

struct statement {
    char name[64];
    const char *modifiers[MAX_MODIFIERS];
    int modifier_count;
    char text[160]; /* name and modifiers, terminated in place */
    struct operand operands[MAX_OPERANDS];
    int count;
    struct operand members[MAX_MEMBERS];
    int member_count;
    uint32_t guard;
    int is_negated;
};

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

/* Translate a parsed statement into instructions of the current function. */
void ptx_decode(struct parser *parser, struct statement *statement);
int ptx_decode_control(struct parser *parser, struct statement *s);  /* 1: the statement was handled */
int ptx_decode_memory(struct parser *parser, struct statement *s);
int ptx_decode_data(struct parser *parser, struct statement *s);
int ptx_decode_conversion(struct parser *parser, struct statement *s);
int ptx_is_one_of(const char *name, const char *const *names);
int ptx_decode_matrix(struct parser *parser, struct statement *s);
int ptx_decode_group(struct parser *parser, struct statement *s);
int ptx_decode_fragments(struct parser *parser, struct statement *s);
int ptx_decode_video(struct parser *parser, struct statement *s);
void ptx_decode_mbarrier(struct parser *parser, struct statement *s);
void ptx_decode_bulk(struct parser *parser, struct statement *s);
void ptx_decode_fill(struct parser *parser, struct statement *s);
void ptx_decode_copy_arrival(struct parser *parser, struct statement *s); /* cp.async.mbarrier.arrive */
struct ptx_ins *ptx_emit(struct parser *parser, const struct statement *statement, ptx_handler run, enum ins_kind kind);
/* Return the slot of an operand as a value of this type; NO_SLOT: it is none, and the function is refused. */
uint32_t ptx_source(struct parser *parser, struct statement *s, const struct operand *operand, const struct type *type);
uint32_t ptx_destination(struct parser *parser, const struct operand *operand, const struct type *type);
uint32_t ptx_constant(struct parser *parser, uint64_t bits, uint32_t bytes);
uint32_t ptx_address_slot(struct parser *parser, int variable, int64_t addend);
/* Return whether a modifier is present, and remove it. */
int ptx_take(struct statement *s, const char *modifier);
const char *ptx_take_any(struct statement *s, const char *const *names);
const struct type *ptx_take_type(struct statement *s); /* the last modifier, which must be a type; NULL: it is none */
const struct type *ptx_named(const char *name);
int ptx_rest(struct parser *parser, struct statement *s); /* refuse modifiers that remain; 1: none remains */

/* The address of an access: a register or constant, and an offset. */
struct ptx_place {
    uint32_t slot;
    int is_wide;
    int64_t offset;
    enum space space;
};

void ptx_take_hints(struct statement *s); /* remove modifiers of ordering and caching, which have no effect here */
enum space ptx_take_space(struct statement *s);
/* Resolve an address operand: a register, a symbol or a number, and a constant. -1: the function is refused. */
int ptx_resolve_place(struct parser *parser, struct statement *s, const struct operand *operand, enum space space,
                      struct ptx_place *place);
void ptx_set_place(struct ptx_ins *ins, const struct ptx_place *place);

struct handler_entry {
    const char *key;  /* name and modifiers without those that have no effect */
    ptx_handler run;
    const char *shape; /* one letter per operand: h w l integer, x half, f d float, p predicate; ? may be absent */
};
ptx_handler ptx_handler_find(const char *key, const char **shape);
const struct handler_entry *ptx_handlers_generic(size_t *count);
const struct handler_entry *ptx_handlers_wide(size_t *count);

/* Handlers that decoders name directly. */
void ptx_load(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_store(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_load_param(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_atomic(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_atomic_vector(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_atomic_wide(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
uint64_t ptx_atomic_value(const struct ptx_ins *ins, uint64_t old, uint64_t value);
void ptx_copy_async(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_address_convert(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_is_space(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_convert(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_convert_pair(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_convert_packed(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_frame_address(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_read_clock(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_pack(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_unpack(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_shuffle(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_vote(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_match(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_reduce(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_reduce_real(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_elect(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_active_mask(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_mma(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_load_matrix(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_store_matrix(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
void ptx_convert_quarter(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);

/* ---- Execution --------------------------------------------------------------------------------------------------- */

struct ptx_frame {
    const struct ptx_function *function;
    struct ptx_frame *parent;
    const struct ptx_call *call;
    uint32_t return_to;
    uint32_t mask, returned; /* threads that entered, and that returned or exited */
    unsigned char *registers; /* aligned */
    unsigned char *area;      /* parameters of calls: area_bytes per thread */
    uint32_t local_from;      /* offset of its local memory */
    uint32_t depth;
    struct ptx_frame *next; /* among all frames of the warp */
};

enum fragment_state { FRAGMENT_READY, FRAGMENT_BARRIER, FRAGMENT_WARP, FRAGMENT_GRID, FRAGMENT_CLUSTER };

/* Threads of a warp that are at the same instruction. */
struct ptx_fragment {
    uint32_t mask, pc;
    uint32_t waits_for; /* member mask of the warp-level wait; number of the wait of the grid or of the cluster */
    uint64_t spent;     /* instructions up to its latest taken branch */
    enum fragment_state state;
    uint32_t barrier;
    struct ptx_frame *frame;
};

struct ptx_warp {
    unsigned char *base[4];
    struct ptx_block *block;
    struct ptx_frame *frame, *root, *frames; /* the current one, that of the entry, and all of them */
    uint32_t number, alive, exists; /* threads that have not exited; threads that exist */
    uint64_t executed;
    struct ptx_fragment fragments[WARP + 1];
    uint32_t fragment_count;
    unsigned char *local;
    uint32_t local_bytes; /* per thread */
    uint32_t arrivals[WARP]; /* of each thread at the barrier of the cluster */
};

struct ptx_barrier {
    uint32_t arrived, expected; /* expected 0: all threads */
    uint32_t voters, true_count; /* of a reduction */
};

enum { BARRIERS = 16 };

struct ptx_block {
    struct ptx_run *run;
    uint64_t number;
    uint32_t index[3];
    struct ptx_warp *warps;
    uint32_t warp_count, thread_count;
    unsigned char *shared;
    uint32_t shared_bytes;
    struct ptx_barrier barriers[BARRIERS];
    struct ptx_cluster *cluster; /* NULL: it has one block */
    uint32_t rank;               /* in the cluster */
    uint32_t phases;             /* completed ones of the barrier of a cluster of one block */
    struct ptx_block *next;
};

/* Blocks that run at the same time, have a barrier, and access each other's shared memory, which exists until all of
 * them have ended. In the address of another block's shared memory, the bits above its size are its rank plus one. */
enum { CLUSTER_MAX = 16, RANK_SHIFT = 24 };

struct ptx_cluster {
    struct ptx_block *blocks[CLUSTER_MAX];
    uint32_t count, ended, phases; /* phases: completed ones of the barrier */
    struct ptx_cluster *next;
};

/* Return the block whose shared memory an address belongs to, and remove its rank; NULL: there is none. */
struct ptx_block *ptx_shared_block(const struct ptx_block *block, uint64_t *address);
/* Threads arrive at the barrier of the cluster (op 0) or wait for it. 1: the fragment goes on. */
int ptx_cluster_barrier(struct ptx_warp *warp, struct ptx_fragment *fragment, const struct ptx_ins *ins, uint32_t mask);
int ptx_cluster_release(struct ptx_warp *warp); /* 1: a fragment that waited for the cluster can go on */
int ptx_decode_cluster(struct parser *parser, struct statement *s); /* 1: the statement was handled */
void ptx_decode_cluster_barrier(struct parser *parser, struct statement *s);

struct ptx_range_entry {
    uint64_t start, end;
};

struct ptx_run {
    const struct sg_ptx_launch *launch;
    const struct sg_ptx *program;
    const struct ptx_function *entry;
    enum sg_ptx_fault fault;
    unsigned char *addresses; /* values of BASE_ADDRESSES */
    uint32_t shared_bytes;    /* of a block */
    uint64_t warp_limit, executed;
    uint64_t grid_arrived; /* threads that wait for the whole grid */
    uint32_t grid_waits;   /* waits of the grid that are over */
    uint32_t cluster[3], cluster_blocks; /* of the launch */
    int is_cluster;                      /* it was launched as clusters, which may have one block */
    struct ptx_cluster *clusters; /* that have not ended */
    uint64_t workspace; /* address of the barrier of a cooperative grid; 0: it is none */
    struct ptx_range_entry ranges[2][4]; /* for reads and writes: recently accessed memory */
    unsigned next_range[2];
};

enum step { STEP_DONE, STEP_BLOCKED, STEP_PAUSED };
/* Run the warp until it has exited, waits for others, or has executed `quantum` instructions. */
enum step ptx_warp_run(struct ptx_warp *warp, uint64_t quantum);
void ptx_warp_start(struct ptx_warp *warp);
void ptx_warp_end(struct ptx_warp *warp);
int ptx_block_release(struct ptx_block *block); /* release complete barriers; 1: one was released */
void ptx_frame_specials(struct ptx_warp *warp, struct ptx_frame *frame);
/* Return the host address of memory that a thread accesses; NULL: a fault was set. */
void *ptx_memory_at(struct ptx_warp *warp, uint64_t address, uint32_t bytes, enum space space, uint32_t thread,
                    int is_write);
void ptx_fail(struct ptx_warp *warp, enum sg_ptx_fault fault); /* the first fault counts */
/* Complete bytes that a barrier in shared memory expects; -1: a fault was set. */
int ptx_barrier_complete(struct ptx_warp *warp, uint64_t address, uint32_t thread, uint32_t bytes);
void ptx_system_call(struct ptx_warp *warp, const struct ptx_ins *ins, uint32_t mask);
uint64_t ptx_system_argument(const struct ptx_warp *warp, const struct ptx_call *call, uint32_t index, uint32_t thread);
void ptx_system_result(struct ptx_warp *warp, const struct ptx_call *call, uint32_t thread, uint64_t value);
uint64_t ptx_heap_take(uint64_t bytes, uint64_t limit);
void ptx_heap_give(uint64_t address);

#endif

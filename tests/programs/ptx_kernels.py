"""Kernels in PTX whose results depend on which block computes what: texts, shapes and sizes of their memory.

Every kernel has two parameters, the addresses of an input and of an output of `WORDS` words each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WORDS = 16384
THREADS = 32
HEAD = ".version 8.4\n.target sm_80\n.address_size 64\n"
SHAPES = ((13, 1, 1), (4, 5, 1), (2, 3, 3))

# %n: number of the block; %i: number of the thread in the grid; %o: address of the thread's word of the output.
BEGIN = """
  .reg .b32 %n, %i, %x, %y, %z, %nx, %ny, %nz, %t, %r<32>; .reg .b64 %in, %out, %o, %s, %d<16>;
  .reg .f32 %f<16>; .reg .f64 %g<8>; .reg .pred %p<8>; .reg .b16 %h<8>;
  ld.param.u64 %in, [input]; ld.param.u64 %out, [output];
  mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z;
  mov.u32 %nx, %nctaid.x; mov.u32 %ny, %nctaid.y; mov.u32 %nz, %nctaid.z; mov.u32 %t, %tid.x;
  mad.lo.u32 %n, %z, %ny, %y; mad.lo.u32 %n, %n, %nx, %x; mad.lo.u32 %i, %n, 32, %t;
  mul.wide.u32 %s, %i, 4; add.u64 %o, %out, %s; add.u64 %s, %in, %s;
"""


@dataclass(frozen=True)
class Kernel:
    """The text of a module with the kernel `k`, and how to launch it."""

    name: str
    text: str
    grid: tuple[int, int, int]
    shared: int = 0
    variable: str = ""
    """A variable of the module that is part of the result."""
    prints: bool = False
    reason: str = ""
    """Why it cannot be launched in parts; empty: it can."""
    plain: bool = True
    """Whether the software GPU executes the kernel itself, not only its variant."""


def entry(body: str, *, begin: str = BEGIN, limits: str = "") -> str:
    return f".visible .entry k(.param .u64 input, .param .u64 output) {limits}\n{{{begin}{body}\n  ret;\n}}\n"


STORE = "\n  st.global.u32 [%o], {};"

BODIES: dict[str, str] = {
    "index": STORE.format("%i"),
    "coordinates": """
  mad.lo.u32 %r1, %z, 100, %y; mad.lo.u32 %r1, %r1, 100, %x; mul.lo.u32 %r2, %nx, %ny; mad.lo.u32 %r2, %r2, 7, %nz;
  mad.lo.u32 %r1, %r2, 100000, %r1;"""
    + STORE.format("%r1"),
    "forms of reading": """
  cvt.u64.u32 %d1, %ctaid.x; mad.lo.s32 %r1, %ctaid.y, %ntid.x, %tid.x; mul.wide.u32 %d2, %nctaid.x, 3;
  setp.eq.u32 %p1, %ctaid.x, 1; selp.b32 %r2, 1000, %nctaid.y, %p1; cvt.rn.f32.u32 %f1, %ctaid.x;
  cvt.rzi.u32.f32 %r3, %f1; add.u64 %d1, %d1, %d2; cvt.u32.u64 %r4, %d1; add.u32 %r1, %r1, %r2;
  mad.lo.u32 %r1, %r3, %r4, %r1; min.u32 %r5, %ctaid.z, 1; add.u32 %r1, %r1, %r5;"""
    + STORE.format("%r1"),
    "copy": "  ld.global.u32 %r1, [%s]; add.u32 %r1, %r1, %n;" + STORE.format("%r1"),
    "vectors": """
  and.b32 %r1, %i, 3; setp.ne.u32 %p1, %r1, 0; @%p1 bra E;
  ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%s]; add.u32 %r2, %r2, %x; st.global.v4.u32 [%o], {%r5, %r4, %r3, %r2};
E:""",
    "floats": """
  ld.global.f32 %f1, [%s]; cvt.rn.f32.u32 %f2, %n; fma.rn.f32 %f3, %f1, %f2, %f1; mul.rn.f32 %f3, %f3, 0f3F8CCCCD;
  sqrt.rn.f32 %f4, %f2; add.f32 %f3, %f3, %f4; st.global.f32 [%o], %f3;""",
    "doubles": """
  cvt.rn.f64.u32 %g1, %n; cvt.rn.f64.u32 %g2, %i; add.f64 %g2, %g2, 0d3FF0000000000000; div.rn.f64 %g3, %g1, %g2;
  cvt.rn.f32.f64 %f1, %g3; st.global.f32 [%o], %f1;""",
    "halves": """
  cvt.rn.f16.u32 %h1, %n; cvt.rn.f16.u32 %h2, %t; fma.rn.f16 %h3, %h1, %h2, %h1; mov.b32 %r1, {%h3, %h1};"""
    + STORE.format("%r1"),
    "loop": """
  mov.u32 %r1, 0; add.u32 %r2, %n, 3;
L: mad.lo.u32 %r1, %r1, 5, %r2; sub.u32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra L;"""
    + STORE.format("%r1"),
    "grid stride": """
  mul.lo.u32 %r1, %nx, %ny; mul.lo.u32 %r1, %r1, %nz; mul.lo.u32 %r1, %r1, 32; mov.u32 %r2, %i;
L: setp.ge.u32 %p1, %r2, 4000; @%p1 bra E; mul.wide.u32 %d1, %r2, 4; add.u64 %d2, %out, %d1; mul.lo.u32 %r3, %r2, 3;
  add.u32 %r3, %r3, %n; st.global.u32 [%d2], %r3; add.u32 %r2, %r2, %r1; bra L;
E:""",
    "data dependent loop": """
  ld.global.u32 %r1, [%s]; and.b32 %r1, %r1, 15; mov.u32 %r2, %n;
L: setp.eq.u32 %p1, %r1, 0; @%p1 bra E; mad.lo.u32 %r2, %r2, 3, %r1; sub.u32 %r1, %r1, 1; bra L;
E:"""
    + STORE.format("%r2"),
    "early exit": "  and.b32 %r1, %n, 1; setp.ne.u32 %p1, %r1, 0; @%p1 ret; @%p1 exit;" + STORE.format("%n"),
    "divergence": """
  add.u32 %r1, %t, %n; and.b32 %r1, %r1, 3; setp.lt.u32 %p1, %r1, 2; @%p1 bra A; mul.lo.u32 %r2, %n, 7; bra.uni B;
A: add.u32 %r2, %n, 9;
B: xor.b32 %r2, %r2, %r1;"""
    + STORE.format("%r2"),
    "table of branches": """
  and.b32 %r1, %n, 3; mov.u32 %r2, 5;
T: .branchtargets A, B, C, D;
  brx.idx %r1, T;
A: add.u32 %r2, %r2, %x; bra D;
B: mul.lo.u32 %r2, %r2, 11; bra D;
C: sub.u32 %r2, %r2, %n;
D:"""
    + STORE.format("%r2"),
    "shuffle": """
  mad.lo.u32 %r1, %n, 17, %t; shfl.sync.bfly.b32 %r2, %r1, 5, 31, -1; redux.sync.add.u32 %r3, %r2, -1;
  xor.b32 %r2, %r2, %r3;"""
    + STORE.format("%r2"),
    "vote": """
  add.u32 %r1, %t, %n; and.b32 %r1, %r1, 5; setp.eq.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r2, %p1, -1;
  match.any.sync.b32 %r3, %r1, -1; xor.b32 %r2, %r2, %r3;"""
    + STORE.format("%r2"),
    "local memory": """
  .local .align 4 .b8 depot[32]; mov.u64 %d1, depot; and.b32 %r1, %n, 7; mul.wide.u32 %d2, %r1, 4;
  add.u64 %d1, %d1, %d2; st.local.u32 [%d1], %i; ld.local.u32 %r2, [%d1]; add.u32 %r2, %r2, 1;"""
    + STORE.format("%r2"),
    "shared memory": """
  .shared .align 4 .b8 area[128]; mov.u32 %r1, area; mad.lo.u32 %r2, %t, 4, %r1; st.shared.u32 [%r2], %i; bar.sync 0;
  xor.b32 %r3, %t, 9; mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.u32 %r4, [%r3]; mad.lo.u32 %r4, %r4, 3, %n;"""
    + STORE.format("%r4"),
    "reduction in a block": """
  .shared .align 4 .b8 area[128]; ld.global.u32 %r9, [%s]; mov.u32 %r1, area; mad.lo.u32 %r2, %t, 4, %r1;
  st.shared.u32 [%r2], %r9; mov.u32 %r3, 16;
L: bar.sync 0; setp.ge.u32 %p1, %t, %r3; @%p1 bra S; shl.b32 %r4, %r3, 2; add.u32 %r4, %r2, %r4;
  ld.shared.u32 %r5, [%r4]; ld.shared.u32 %r6, [%r2]; add.u32 %r6, %r6, %r5; st.shared.u32 [%r2], %r6;
S: shr.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra L; bar.sync 0; ld.shared.u32 %r7, [%r1];
  add.u32 %r7, %r7, %n;"""
    + STORE.format("%r7"),
    "nested scopes": """
  mov.u32 %r1, 1; { .reg .b32 %r1; mov.u32 %r1, %ctaid.x; { .reg .b32 q; mov.b32 q, %nctaid.x; add.u32 %r1, %r1, q; }
  mad.lo.u32 %r2, %r1, 3, %n; /* %ctaid.y } */ } // %ctaid.z {
  add.u32 %r2, %r2, %r1;"""
    + STORE.format("%r2"),
    "stencil": """
  setp.eq.u32 %p1, %i, 0; ld.global.u32 %r1, [%s]; mov.u32 %r2, 0; @!%p1 ld.global.u32 %r2, [%s+-4];
  ld.global.u32 %r3, [%s+4]; sub.u32 %r1, %r2, %r1; add.u32 %r1, %r1, %r3; mad.lo.u32 %r1, %n, 7, %r1;"""
    + STORE.format("%r1"),
    "transpose": """
  mad.lo.u32 %r1, %x, %ny, %y; mad.lo.u32 %r1, %r1, %nz, %z; mad.lo.u32 %r1, %r1, 32, %t; mul.wide.u32 %d1, %r1, 4;
  add.u64 %d1, %in, %d1; ld.global.u32 %r2, [%d1];"""
    + STORE.format("%r2"),
    "product": """
  mov.u32 %r1, 0; mov.f32 %f1, 0f00000000; mul.wide.u32 %d1, %n, 128; add.u64 %d1, %in, %d1;
L: mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2; mad.lo.u32 %r2, %r1, 32, %t; mul.wide.u32 %d4, %r2, 4;
  add.u64 %d4, %in, %d4; ld.global.u32 %r3, [%d3]; ld.global.u32 %r4, [%d4]; and.b32 %r3, %r3, 255;
  and.b32 %r4, %r4, 255;
  cvt.rn.f32.u32 %f2, %r3; cvt.rn.f32.u32 %f3, %r4; fma.rn.f32 %f1, %f2, %f3, %f1; add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, 32; @%p1 bra L; st.global.f32 [%o], %f1;""",
    "histogram": """
  ld.global.u32 %r1, [%s]; and.b32 %r1, %r1, 63; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %out, %d1;
  red.global.add.u32 [%d1+16000], 1; red.global.max.u32 [%d1+16256], %n;"""
    + STORE.format("%n"),
    "search": """
  mul.lo.u32 %r1, %n, 77; mov.u32 %r2, 0; mov.u32 %r3, 4096;
L: add.u32 %r4, %r2, %r3; shr.u32 %r4, %r4, 1; mul.lo.u32 %r5, %r4, 3; setp.lt.u32 %p1, %r5, %r1;
  @%p1 add.u32 %r2, %r4, 1; @!%p1 mov.u32 %r3, %r4; setp.lt.u32 %p2, %r2, %r3; @%p2 bra L;"""
    + STORE.format("%r2"),
    "wide arithmetic": """
  cvt.u64.u32 %d1, %i; mad.lo.u64 %d1, %d1, 0x9E3779B97F4A7C15, %s; sub.u64 %d1, %d1, %in; mul.hi.u64 %d2, %d1, %d1;
  xor.b64 %d1, %d1, %d2; cvt.u32.u64 %r1, %d1; add.u32 %r1, %r1, %n;"""
    + STORE.format("%r1"),
}

FUNCTION = """.func (.param .b32 r) scaled(.param .b32 a)
{ .reg .b32 %r<4>; ld.param.u32 %r1, [a]; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r1, 5, %r2; mov.u32 %r3, %nctaid.y;
  add.u32 %r1, %r1, %r3; st.param.b32 [r], %r1; ret; }
"""
CALL = "{{ .param .b32 u; .param .b32 v; st.param.b32 [u], {}; call{} (v), {}, (u); ld.param.b32 {}, [v]; }}"
OUTER = (
    FUNCTION
    + ".func (.param .b32 r) outer(.param .b32 a)\n{ .reg .b32 %r<4>; ld.param.u32 %r1, [a];\n"
    + CALL.format("%r1", "", "scaled", "%r2")
    + "\n add.u32 %r2, %r2, %r1; st.param.b32 [r], %r2; ret; }\n"
)
POINTS = """.func nothing { ret; }
.func mark(.param .b64 a, .param .align 8 .b8 b[16])
{ .reg .b32 %r<4>; .reg .b64 %d<3>; ld.param.u64 %d1, [a]; ld.param.u32 %r1, [b+8]; mov.u32 %r2, %ctaid.y;
  mad.lo.u32 %r1, %r2, 1000, %r1; st.global.u32 [%d1], %r1; ret; }
"""
COUNT = ".visible .global .align 4 .u32 total = 3;\n.global .align 4 .u32 tickets;\n"
PRINTING = """.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);
.global .align 1 .b8 format[10] = {98, 37, 117, 32, 37, 117, 10, 0, 0, 0};
"""
SPECIAL: dict[str, tuple[str, str]] = {
    "function": (FUNCTION, CALL.format("%i", ".uni", "scaled", "%r1") + STORE.format("%r1")),
    "nested functions": (OUTER, CALL.format("%i", "", "outer", "%r1") + STORE.format("%r1")),
    "function in a branch": (
        OUTER,
        "and.b32 %r9, %t, 1; setp.eq.u32 %p1, %r9, 0; mov.u32 %r1, %n; @%p1 bra E;"
        + CALL.format("%i", "", "outer", "%r1")
        + " E:"
        + STORE.format("%r1"),
    ),
    "function in a loop": (
        FUNCTION,
        "mov.u32 %r1, %n; mov.u32 %r2, 0; L:"
        + CALL.format("%r1", "", "scaled", "%r1")
        + "add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 4; @%p1 bra L;"
        + STORE.format("%r1"),
    ),
    "function without result": (
        POINTS,
        """
  { .param .b64 u; .param .align 8 .b8 v[16]; st.param.b64 [u], %o; st.param.b32 [v+8], %i; call mark, (u, v); }
  call nothing;""",
    ),
    "constants": (
        ".const .align 4 .u32 table[4] = {10, 20, 30, 40};\n",
        "and.b32 %r1, %n, 3; mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, table; add.u64 %d2, %d2, %d1; "
        "ld.const.u32 %r2, [%d2];" + STORE.format("%r2"),
    ),
    "counter": (COUNT, "red.global.add.u32 [total], %i;" + STORE.format("%n")),
    "last block": (
        COUNT,
        """
  mul.lo.u32 %r1, %nx, %ny; mul.lo.u32 %r1, %r1, %nz; sub.u32 %r2, %r1, 1; setp.ne.u32 %p1, %t, 0; @%p1 bra E;
  red.global.add.u32 [total], %n; membar.gl; atom.global.inc.u32 %r3, [tickets], %r2; setp.ne.u32 %p2, %r3, %r2;
  @%p2 bra E; ld.volatile.global.u32 %r4, [total]; mad.lo.u32 %r4, %r4, 1000, %r1; st.global.u32 [%out+65000], %r4;
E:""",
    ),
    "dynamic shared memory": (
        ".extern .shared .align 16 .b8 dynamic[];\n",
        "mov.u32 %r1, dynamic; mad.lo.u32 %r2, %t, 4, %r1; st.shared.u32 [%r2], %i; bar.sync 0; sub.u32 %r3, 31, %t; "
        "mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.u32 %r4, [%r3];" + STORE.format("%r4"),
    ),
    "static shared memory of the module": (
        ".shared .align 4 .b8 area[128];\n",
        "mov.u32 %r1, area; mad.lo.u32 %r2, %t, 4, %r1; st.shared.u32 [%r2], %n; bar.sync 0; "
        "ld.shared.u32 %r4, [%r1+64];" + STORE.format("%r4"),
    ),
    "printing": (
        PRINTING,
        """
  .local .align 8 .b8 depot[8]; .reg .b64 %SP; setp.gt.u32 %p1, %t, 1; @%p1 bra E;
  mov.u64 %SP, depot; cvta.local.u64 %SP, %SP; st.u32 [%SP], %n; st.u32 [%SP+4], %t; mov.u64 %d4, format;
  { .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %d4; st.param.b64 [b], %SP;
    call.uni (c), vprintf, (a, b);    ld.param.b32 %r2, [c]; }
E:"""
        + STORE.format("%n"),
    ),
}

REFUSED: dict[str, tuple[str, str, str]] = {
    "waits": (
        "",
        "L: ld.volatile.global.u32 %r1, [%in]; setp.eq.u32 %p1, %r1, 77; @%p1 bra L;",
        "wait for other blocks",
    ),
    "launch": ("", "mov.u32 %r1, %gridid;" + STORE.format("%r1"), "the launch that it belongs to"),
    "clusters": ("", "mov.u32 %r1, %cluster_ctaid.x;" + STORE.format("%r1"), "clusters"),
}


GRID = ("%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z")


def readers() -> Iterator[Kernel]:
    """Yield a kernel for each set of coordinates; what it adds up does not depend on the order of its blocks."""
    for mask in range(1, 1 << len(GRID)):
        reads = [register for bit, register in enumerate(GRID) if mask >> bit & 1]
        mixed = "".join(f"\n  mov.u32 %r2, {register}; mad.lo.u32 %r1, %r1, 37, %r2;" for register in reads)
        begin = f"""
  .reg .b32 %r<4>; .reg .b64 %d<3>; ld.param.u64 %d1, [output]; mov.u32 %r1, 1;{mixed}
  and.b32 %r3, %r1, 1023; mul.wide.u32 %d2, %r3, 4; add.u64 %d1, %d1, %d2; red.global.add.u32 [%d1], %r1;"""
        yield Kernel(f"reads {' '.join(reads)}", HEAD + entry("", begin=begin), (2, 3, 3))


def kernels() -> Iterator[Kernel]:
    yield from readers()
    for at, (name, body) in enumerate(BODIES.items()):
        for grid in SHAPES if at % 2 else SHAPES[1:]:
            yield Kernel(name, HEAD + entry(body, limits=".maxntid 32, 1, 1" if at % 3 else ""), grid)
    for name, (outside, body) in SPECIAL.items():
        for grid in SHAPES[::2]:
            yield Kernel(
                name,
                HEAD + outside + entry(body),
                grid,
                shared=128 if name.startswith("dynamic") else 0,
                variable="total" if outside == COUNT else "",
                prints=outside == PRINTING,
            )
    vector = ".reg .v4 .u32 %v; mov.v4.u32 %v, %ctaid; mov.v4.u32 {%r4, _, %r5, %r6}, %nctaid; mov.u32 %r1, %v.x; "
    vector += "mad.lo.u32 %r1, %v.y, 100, %r1; mad.lo.u32 %r1, %r4, 10000, %r1; add.u32 %r1, %r1, %r6;"
    reads = "  mad.lo.u32 %r1, %y, 100, %x; mad.lo.u32 %r1, %nx, 10000, %r1;"
    yield Kernel("vector of the grid", HEAD + entry(vector + STORE.format("%r1")), (4, 5, 1), plain=False)
    yield Kernel("its counterpart", HEAD + entry(reads + STORE.format("%r1")), (4, 5, 1))
    for name, (outside, body, reason) in REFUSED.items():
        yield Kernel(name, HEAD + outside + entry(body), (3, 1, 1), reason=reason)

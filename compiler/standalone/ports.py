"""The C header of a model, NAME.h: a structure with a typed field for each size, input and output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from occ.compiler.native_entry.output_shapes import is_decided_by_runs
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DimExpr, symbols, text
from occ.runtime.element_types import ELEMENT_TYPES
from occ.runtime.manifest import Manifest, TensorInfo

_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const const_cast
    consteval constexpr constinit continue co_await co_return co_yield decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
    new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
    restrict return short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor
    xor_eq
"""
_KEYWORDS = frozenset(_WORDS.split())  # of C and C++


def identifier(name: str, taken: Iterable[str] = ()) -> str:
    """A C identifier similar to a name, different from those in use."""
    made = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    if made[0].isdigit() or made.startswith("_"):
        made = f"t{made}" if made[0] == "_" else f"t_{made}"
    taken = {*taken, *_KEYWORDS}
    found, k = made, 2
    while found in taken:
        found, k = f"{made}_{k}", k + 1
    return found


@dataclass(frozen=True)
class Port:
    """An input or output: its type, and its field.

    Attributes:
        is_tensor: whether the field is an `occ_tensor`, because only a run determines the shape.
    """

    info: TensorInfo
    field: str
    is_tensor: bool = False


@dataclass(frozen=True)
class Ports:
    """The fields of a model.

    Attributes:
        name: of the model, an identifier.
        sizes: fields for the symbolic extents of inputs, by symbol.
        labels: the model's names for its symbols.
        inputs, outputs: in order.
    """

    name: str
    sizes: dict[str, str]
    labels: dict[str, str]
    inputs: Sequence[Port]
    outputs: Sequence[Port]

    @classmethod
    def of(cls, m: Manifest, name: str) -> Ports:
        labels = {d.name: d.label for d in m.dims}
        used: list[str] = []

        def field(wanted: str) -> str:
            used.append(identifier(wanted, used))
            return used[-1]

        shown = dict.fromkeys(s for i in m.inputs for e in i.shape for s in sorted(symbols(e)))
        inputs = [Port(i, field(i.name)) for i in m.inputs]
        outputs = [Port(o, field(o.name), is_decided_by_runs(m, o)) for o in m.outputs]
        return cls(name, {s: field(labels.get(s, s)) for s in shown}, labels, inputs, outputs)

    @property
    def counts(self) -> list[str]:
        """The functions that report the element counts of outputs."""
        return [f"{self.name}_{p.field}_count" for p in self.counted if not isinstance(_elements(p.info), int)]

    @property
    def counted(self) -> list[Port]:
        """The outputs whose element counts follow from the sizes of inputs."""
        return [p for p in self.outputs if not p.is_tensor]

    def size(self, e: DimExpr) -> str:
        """A size as an expression of C over the fields of `p`."""
        if isinstance(e, int):
            return str(e)
        if isinstance(e, str):
            return f"p->{self.sizes[e]}"
        op, first, *rest = e
        made = self.size(first)
        for other in map(self.size, rest):
            made = f"({made} {op} {other})" if op in "+*" else f"{_FUNCTIONS[op]}({made}, {other})"
        return made

    def shown(self, info: TensorInfo) -> str:
        """A type as text: `f32[n,8]`; `?` is an extent that a run determines, and `...` are any."""
        shape = [text(e, self.labels) if symbols(e) <= self.sizes.keys() else "?" for e in info.shape]
        return f"{info.dtype}[{'...' if info.kind == 'unranked' else ','.join(shape)}]"


_FUNCTIONS = {"//": "quotient", "min": "least", "max": "most"}


def c_type(info: TensorInfo) -> str:
    return ELEMENT_TYPES[info.dtype].c or "uint8_t"


_IN_MEMORY = """/* Opens the model with weights in memory, which must stay unchanged until occ_close. Weights at an address that is not a
   multiple of 64 are copied. */
OCC_API int {name}_open_memory(const void *weights, size_t bytes, occ_model **model);
"""


_OF_RUNS = """
   An occ_tensor has the shape that a run determines: with `data` null the library allocates, later runs use that memory
   again, and occ_free frees it. */"""


def header(ports: Ports, *, link: str, weights: str, producer: str) -> str:
    """NAME.h.

    Args:
        ports: of the model.
        link: the command that links a program with it; empty if a host calls it.
        weights: file name of the weights; empty if they are linked in.
        producer: the tool that generated it.
    """
    n = ports.name
    sizes = [f"    int64_t {field}; /* size {ports.labels.get(s, s)} */" for s, field in ports.sizes.items()]
    inputs = [f"    const {c_type(p.info)} *{p.field}; /* {_said(p, ports)} */" for p in ports.inputs]
    types = ("occ_tensor" if p.is_tensor else c_type(p.info) for p in ports.outputs)
    outputs = [f"    {c} *{p.field}; /* {_said(p, ports)} */" for c, p in zip(types, ports.outputs, strict=True)]
    fields = [*sizes, *inputs, *outputs] or ["    char unused;"]
    where = f"`weights` is the path of {weights}, which is mapped" if weights else "`weights` is ignored"
    how, more = _linking(n, link), _OF_RUNS if any(p.is_tensor for p in ports.outputs) else " */"
    return f"""/* {n}: a model compiled by {_plain(producer)}. {how} All functions of occ.h take the model that {n}_open opens. */
#ifndef OCC_MODEL_{n}
#define OCC_MODEL_{n}
#include "occ.h"
#include <stdbool.h>
#ifdef __cplusplus
extern "C" {{
#endif

/* Sizes, inputs and outputs of a run, dense and row-major. Outputs that are aligned to 64 bytes are not copied.{more}
typedef struct {n}_ports {{
{chr(10).join(fields)}
}} {n}_ports;

/* Opens the model; {where}. Returns an occ_status. */
OCC_API int {n}_open(const char *weights, occ_model **model);
{_IN_MEMORY.format(name=n) if weights else ""}
/* Runs it; outputs must have as many elements as below. Returns an occ_status; occ_error_text(model) says what is wrong. */
OCC_API int {n}_run(occ_model *model, const {n}_ports *p);

/* Elements of the outputs. */
{chr(10).join(_count(p, ports) for p in ports.counted)}

#ifdef __cplusplus
}}
#endif
#endif
"""


def _linking(name: str, link: str) -> str:
    """How programs access the functions of the header."""
    if not link:
        return f"{name}.wasm is a module of WebAssembly, whose functions a\n   host calls, as occ.js does."
    return f"A program is linked with\n\n       {link}\n\n   and needs nothing but libc."


def _said(p: Port, ports: Ports) -> str:
    other = "" if p.info.name == p.field else f"{p.info.name}: "
    return _plain(f"{other}{ports.shown(p.info)}")


def _plain(words: str) -> str:
    """Words that do not end a comment, in one line."""
    return re.sub(r"[^ -~]", "?", words).replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")


def _count(p: Port, ports: Ports) -> str:
    e = _elements(p.info)
    name = f"{ports.name}_{p.field}_count"
    return f"#define {name} {e}" if isinstance(e, int) else f"OCC_API int64_t {name}(const {ports.name}_ports *p);"


def _elements(info: TensorInfo) -> DimExpr:
    known = 1
    open_: list[DimExpr] = []
    for e in info.shape:
        if isinstance(e, int):
            known *= e
        else:
            open_.append(e)
    return ["*", known, *open_] if open_ and known else known


_OPEN_MEMORY = """
int {name}_open_memory(const void *weights, size_t bytes, occ_model **model) {{
    return occ_open_linked_memory(&linked, weights, bytes, model);
}}
"""


def glue(ports: Ports, *, digest: str, size: int, embedded: str) -> str:
    """NAME.cpp.

    Args:
        ports: of the model.
        digest: SHA-256 of the weights.
        size: bytes of them.
        embedded: a statement that defines `occ_weights`; empty if the weights stay in a file.
    """
    n = ports.name
    inputs = ", ".join(_tensor(p, ports, "p->{}", "0") for p in ports.inputs)
    outputs = ", ".join(_output(p, ports) for p in ports.outputs)
    made = [f"    if (p->{p.field}) *p->{p.field} = outputs[{k}];" for k, p in enumerate(ports.outputs) if p.is_tensor]
    return f"""#include "{n}.h"
#include "linked.h"

{embedded}
extern "C" {{
{"extern const unsigned char occ_weights[];" if embedded else ""}
extern const unsigned char occ_model_facts[];
int32_t occ_model_run(struct occ_call *call);

static const occ_linked linked = {{occ_model_facts, occ_model_run, {"occ_weights" if embedded else "nullptr"}, {size}u, "{digest}"}};

int {n}_open(const char *weights, occ_model **model) {{ return occ_open_linked(&linked, weights, model); }}
{"" if embedded else _OPEN_MEMORY.format(name=n)}

int {n}_run(occ_model *model, const {n}_ports *p) {{
    if (!p) return occ_run(model, nullptr, {len(ports.inputs)}, nullptr, {len(ports.outputs)});
    const occ_tensor inputs[] = {{{inputs or "{}"}}};
    occ_tensor outputs[] = {{{outputs or "{}"}}};
    const int status = occ_run(model, inputs, {len(ports.inputs)}, outputs, {len(ports.outputs)});
{"".join(f"{line}{chr(10)}" for line in made)}    return status;
}}

{chr(10).join(_counts(ports))}
}}
"""


def _counts(ports: Ports) -> list[str]:
    """The functions that count the elements of outputs whose sizes differ between runs."""
    n = ports.name
    return [
        f"int64_t {n}_{p.field}_count(const {n}_ports *p) {{ return {ports.size(e)}; }}"
        for p in ports.counted
        if not isinstance(e := _elements(p.info), int)
    ]


def _output(p: Port, ports: Ports) -> str:
    """An output of a run; of a null pointer one that may have no elements."""
    if not p.is_tensor:
        return _tensor(p, ports, "p->{}", "SIZE_MAX")
    return f"p->{p.field} ? *p->{p.field} : {_tensor(p, ports, 'nullptr', 'SIZE_MAX')}"


def _tensor(p: Port, ports: Ports, value: str, size: str) -> str:
    extents = "".join(f", int64_t({ports.size(e)})" for e in p.info.shape) if size == "0" else ""
    return f"described({value.format(p.field)}, {size}, OCC_{p.info.dtype.upper()}{extents})"

"""What plug-ins may import stays as it is, and the guides and the plug-in of the tests import nothing else."""

import ast
import re
from pathlib import Path

import occ.plugin
from occ.compiler.ir.te.expr import Expr

ROOT = Path(__file__).parents[2]
SURFACE = """
    Artifact Axis Binary Bitcast Build Call Carried Cast CompileError Const Context DType Declined Dim Expr Generated Index LIBRARY Layout Load LowerTe Machine Module Op
    Options Pass PlanMemory Reduce Rewriter Scatter Select Size StageSchedule Sym Target TeFunc TeStage Text Value c_kernel call cast
    clamp entry_object equal error extensions fusion halide_kernel in_panels link literal loads manifest maximum minimum not_equal operator option pipelines place_before rebuild reduce_axes
    rewrite running schedule_rule stored_weights te_kernel walk where
"""


def test_the_surface_is_fixed() -> None:
    """A name that goes away breaks the packages of users: it needs a release that warns before."""
    assert sorted(occ.plugin.__all__) == sorted(SURFACE.split())
    assert all(hasattr(occ.plugin, name) for name in occ.plugin.__all__)


def test_a_generator_finds_every_kind_of_expression() -> None:
    """A kind that is new to te is one that the generators of packages meet too."""
    kinds = {c.__name__ for c in Expr.__subclasses__() if c.__module__ == Expr.__module__}
    assert kinds <= set(occ.plugin.__all__)


def test_guides_and_the_plugin_import_the_surface_only() -> None:
    sources = [p.read_text() for p in (ROOT / "tests/plugin").rglob("*.py")]
    for guide in (ROOT / "docs").glob("*.md"):
        sources += re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.M | re.S)
    modules = {name for source in sources for name in _imported(source)}
    assert {m for m in modules if m.split(".")[0] == "occ"} <= {"occ", "occ.plugin"}


def _imported(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    from_ = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    return from_ | {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}

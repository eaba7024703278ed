"""Print the size of every package and fail when a file outgrows what can be read in one sitting, or two tests share a name.

A file is at most 400 lines. The folders of tests are not packages, so pytest identifies test files by their base names.
What is larger than it should be is counted too, and may not become more than `MOST`.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 400
MOST = {
    "files over 300 lines": 35,
    "functions over 40 lines": 41,
    "functions of more than 7 parameters": 67,
    "lines over 120 columns": 72,
    "statements that the formatter skips": 297,
}


def counts(text: str) -> Counter[str]:
    """What a file adds to each of the counts."""
    lines = text.splitlines()
    functions = [f for f in ast.walk(ast.parse(text)) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))]
    parameters = [len(f.args.posonlyargs + f.args.args + f.args.kwonlyargs) for f in functions]
    return Counter(
        {
            "files over 300 lines": int(len(lines) > 300),
            "functions over 40 lines": sum((f.end_lineno or 0) - f.lineno >= 40 for f in functions),
            "functions of more than 7 parameters": sum(n > 7 for n in parameters),
            "lines over 120 columns": sum(len(line) > 120 for line in lines),
            "statements that the formatter skips": sum("# fmt: skip" in line for line in lines),
        }
    )


def main() -> int:
    """Report lines per package; returns 1 if any file has too many, or shares its name."""
    packages: dict[str, list[int]] = {}
    total: Counter[str] = Counter()
    tests = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    wrong = [f"tests/**/{name}: {n} files of one name" for name, n in tests.items() if n > 1]
    for top in ("compiler", "runtime", "occ"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            lines = len(text.splitlines())
            packages.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(lines)
            total += counts(text)
            if lines > LIMIT:
                wrong.append(f"{name}: {lines} lines, of at most {LIMIT}")
    for package, sizes in packages.items():
        print(f"{package:28} {len(sizes):3} files {sum(sizes):6} lines, largest {max(sizes)}")
    for what, most in MOST.items():
        print(f"{total[what]:4} {what}, of at most {most}")
        if total[what] > most:
            wrong.append(f"{total[what]} {what}, of at most {most}: mend one, here or elsewhere")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Print the size of every package and fail when a file outgrows what can be read in one sitting, or two tests share a name.

A file is at most 400 lines. The folders of tests are no packages, so pytest knows test files by their base names alone.
"""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 400


def main() -> int:
    """Report lines per package; returns 1 if any file has too many, or shares its name."""
    packages: dict[str, list[int]] = {}
    tests = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    wrong = [f"tests/**/{name}: {n} files of one name" for name, n in tests.items() if n > 1]
    for top in ("compiler", "runtime", "occ"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            lines = len(path.read_text(encoding="utf-8").splitlines())
            packages.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(lines)
            if lines > LIMIT:
                wrong.append(f"{name}: {lines} lines, of at most {LIMIT}")
    for package, sizes in packages.items():
        print(f"{package:28} {len(sizes):3} files {sum(sizes):6} lines, largest {max(sizes)}")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

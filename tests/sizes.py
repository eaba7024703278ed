"""Print the size of every package and fail when a file outgrows what can be read in one sitting.

A file is at most 400 lines.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 400


def main() -> int:
    """Report lines per package; returns 1 if any file has too many."""
    packages: dict[str, list[int]] = {}
    over: list[str] = []
    for top in ("compiler", "runtime", "occ"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            lines = len(path.read_text(encoding="utf-8").splitlines())
            packages.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(lines)
            if lines > LIMIT:
                over.append(f"{name}: {lines} lines, of at most {LIMIT}")
    for package, sizes in packages.items():
        print(f"{package:28} {len(sizes):3} files {sum(sizes):6} lines, largest {max(sizes)}")
    for line in over:
        print(f"error: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

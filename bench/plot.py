"""`make bench-plot`: draws the JSON of bench/speed.py as an SVG, the speed of each runtime relative to onnxruntime."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

COLOURS = {"occ": "#0f766e", "onnxruntime": "#94a3b8", "openvino": "#f59e0b", "ncnn": "#a78bfa", "iree": "#f472b6"}
BASELINE = "onnxruntime"
LEFT, WIDTH, BAR, GAP, TOP = 190, 560, 11, 14, 92
STYLE = "text{font-family:system-ui,sans-serif;font-size:13px;fill:#0f172a}.title{font-size:16px;font-weight:600}.small{font-size:11px;fill:#475569}"


def main() -> int:
    """Draw a file of figures; returns 1 if it has none to draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", type=Path, help="what `bench/speed.py --json` wrote")
    parser.add_argument("out", type=Path, help="the SVG")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    data = json.loads(args.figures.read_text("utf-8"))
    speeds = relative_speeds(data["results"], args.threads)
    if not speeds:
        print(f"{args.figures}: no model with {BASELINE} on {args.threads} threads", file=sys.stderr)
        return 1
    caption = f"{data.get('machine', 'unknown machine')}; occ {data.get('commit', 'of unknown commit')}; threads: {args.threads}"
    args.out.write_text("\n".join(drawing(speeds, caption)) + "\n", "utf-8")
    return 0


def relative_speeds(results: list[dict[str, Any]], threads: int) -> dict[str, dict[str, float]]:
    """Time of onnxruntime over the time of each runtime, by model. Runtimes whose outputs differ are left out."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        for c in result.get("comparisons", []):
            times = {name: t["ms"] for name, t in c["times"].items() if name not in c.get("reasons", {})}
            if c["threads"] == threads and BASELINE in times and result.get("form", "open") == "open":
                found[result["model"]] = {name: times[BASELINE] / ms for name, ms in times.items()}
    return found


def drawing(speeds: dict[str, dict[str, float]], caption: str) -> Iterator[str]:
    """The lines of an SVG: a group of bars for each model, a bar for each runtime, a line at the baseline's speed."""
    runtimes = [r for r in COLOURS if any(r in by for by in speeds.values())]
    scale = WIDTH / max(1.0, *(s for by in speeds.values() for s in by.values()))
    height = TOP + sum(len(by) * BAR + GAP for by in speeds.values()) + 10
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 70} {height}" width="{LEFT + WIDTH + 70}" height="{height}">'
    yield f"<style>{STYLE}</style>"
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    yield f'<text x="16" y="26" class="title">Speed relative to {BASELINE} (longer is faster)</text>'
    yield f'<text x="16" y="46" class="small">{escape(caption)}</text>'
    for i, name in enumerate(runtimes):
        yield f'<rect x="{16 + 120 * i}" y="59" width="12" height="12" fill="{COLOURS[name]}"/>'
        yield f'<text x="{34 + 120 * i}" y="70">{escape(name)}</text>'
    y = TOP
    for model, by in speeds.items():
        yield f'<text x="{LEFT - 10}" y="{y + len(by) * BAR / 2 + 4:g}" text-anchor="end">{escape(model)}</text>'
        for name in [r for r in runtimes if r in by]:
            yield f'<rect x="{LEFT}" y="{y}" width="{by[name] * scale:.1f}" height="{BAR - 1}" fill="{COLOURS[name]}"/>'
            yield f'<text x="{LEFT + by[name] * scale + 4:.1f}" y="{y + BAR - 2}" class="small">{by[name]:.2f}</text>'
            y += BAR
        y += GAP
    x = LEFT + scale
    yield f'<path d="M{x:.1f} {TOP - 6} V{height - 10}" stroke="#0f172a" stroke-dasharray="3 3"/>'
    yield "</svg>"


if __name__ == "__main__":
    sys.exit(main())

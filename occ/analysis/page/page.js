"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const svgns = "http://www.w3.org/2000/svg";
const byId = new Map(data.nodes.map((n) => [n.id, n]));
const make = (name, attributes, parent) => {
  const e = document.createElementNS(svgns, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (parent) parent.appendChild(e);
  return e;
};
const element = (name, text, parent) => {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.appendChild(e);
  return e;
};
const number = (x, digits = 3) => (x === null || x === undefined ? "" : x >= 1000 ? String(Math.round(x)) : Number(x).toPrecision(digits));
const most = Math.max(...data.nodes.map((n) => n.ms || 0), 1e-9);
const against = new Map(data.against.rows.flatMap((r) => r.ids.map((id) => [id, r])));

// Colours of nodes: what a kernel has, from pale yellow to red, or from red to green.
const scales = {
  time: ["The redder a node, the more time its kernel takes", (n) => `hsl(${60 - 60 * (n.ms / most) ** 0.5} 90% ${85 - 25 * (n.ms / most)}%)`],
  "share of peak": ["The greener a node, the closer its kernel comes to the peak of the processor", (n) => n.share === null ? "" : `hsl(${120 * Math.min(n.share, 1)} 70% 68%)`],
  "against onnxruntime": ["Green nodes are quicker than those of onnxruntime, red ones slower", (n) => {
    const r = against.get(n.id);
    return r && r.ms && r.theirs ? `hsl(${60 + 60 * Math.max(-1, Math.min(1, Math.log2(r.theirs / r.ms)))} 70% 70%)` : "";
  }],
};
if (!against.size || data.against.unsteady) delete scales["against onnxruntime"];
let scaling = "time";
const color = (n) => (n.kind === "port" ? "#cfe3ff" : n.kind === "part" ? "#fff" : (n.ms !== null && scales[scaling][1](n)) || "#eee");

// What is drawn: nodes, the parts of unfolded ones in the place of these, and edges between them.
const LARGE = 1200;
const parts = (n) => (n.inner = n.inner || n.parts.map((p, k) => ({ id: `${n.id}.${k}`, kind: "part", whole: n, label: p.label, title: `${p.label}: ${p.type}`, ms: null, reads: p.reads })));
const drawn = () => data.nodes.flatMap((n) => (n.open ? parts(n) : [n]));
function* lines() {
  for (const e of data.edges) {
    const a = byId.get(e.from), b = byId.get(e.to), result = Number(e.value.split(":")[1]);
    const from = a.open ? parts(a)[a.gives[result] || 0] || parts(a)[0] : a;
    const readers = b.open ? parts(b).filter((p) => p.reads.includes(e.value)) : [b];
    for (const to of readers.length ? readers : [parts(b)[0]]) yield [from, to];
  }
  for (const n of data.nodes) if (n.open) for (const p of parts(n)) for (const r of p.reads) if (typeof r === "number") yield [parts(n)[r], p];
}

// Layers by dagre; a large graph as columns, which dagre would take too long for.
function layout(nodes, edges) {
  if (nodes.length > LARGE) {
    const rows = Math.ceil(Math.sqrt(nodes.length * 3));
    nodes.forEach((n, k) => { n.x = 110 + 220 * Math.floor(k / rows); n.y = 30 + 46 * (k % rows); });
    return edges;
  }
  const open = data.nodes.filter((n) => n.open);
  const g = new dagre.graphlib.Graph({ compound: open.length > 0 }).setGraph({ ranksep: 26, nodesep: 18 }).setDefaultEdgeLabel(() => ({}));
  for (const n of open) g.setNode(n.id, {});
  for (const n of nodes) g.setNode(n.id, { width: n.width, height: 30 });
  for (const n of nodes) if (n.whole) g.setParent(n.id, n.whole.id);
  for (const [a, b] of edges) g.setEdge(a.id, b.id);
  dagre.layout(g);
  for (const n of nodes) Object.assign(n, { x: g.node(n.id).x, y: g.node(n.id).y });
  return edges.map(([a, b]) => g.edge(a.id, b.id).points);
}

const all = document.getElementById("all"), view = document.getElementById("view"), side = document.getElementById("side");
const clipped = (text) => (text.length > 27 ? text.slice(0, 26) + "…" : text);
function box(n) {
  const inner = parts(n), GAP = 10, HEAD = 18;
  const xs = inner.flatMap((p) => [p.x - p.width / 2, p.x + p.width / 2]), ys = inner.map((p) => p.y);
  const [x, y] = [Math.min(...xs) - GAP, Math.min(...ys) - 15 - HEAD];
  const wide = Math.max(Math.max(...xs) + GAP - x, 34 + 6.6 * clipped(n.label).length);
  n.shown = make("g", { class: "box", "data-id": n.id }, all);
  make("rect", { x, y, width: wide, height: Math.max(...ys) + 15 + GAP - y, fill: color(n) }, n.shown);
  make("text", { x: x + 22, y: y + 13 }, n.shown).textContent = clipped(n.label);
  fold(n, x + 10, y + 9);
  n.x = x + wide / 2; n.y = y;
}
function fold(n, x, y) {
  const sign = make("g", { class: "fold", transform: `translate(${x},${y})` }, n.shown);
  make("circle", { r: 6 }, sign);
  make("path", { d: n.open ? "M-3,0H3" : "M-3,0H3M0,-3V3" }, sign);
  make("title", {}, sign).textContent = n.open ? "fold" : "unfold";
  sign.addEventListener("click", (e) => { e.stopPropagation(); toggle(n); });
}
function draw() {
  all.replaceChildren();
  const nodes = drawn();
  for (const n of nodes) n.width = Math.min(200, 22 + 6.6 * n.label.length);
  const edges = [...new Map([...lines()].map((e) => [`${e[0].id} ${e[1].id}`, e])).values()];
  const paths = layout(nodes, edges);
  for (const points of paths) make("path", { class: "edge", d: "M" + points.map((p) => `${p.x},${p.y}`).join("L") }, all);
  for (const n of data.nodes) if (n.open) box(n);
  for (const n of nodes) {
    n.shown = make("g", { class: "node", transform: `translate(${n.x},${n.y})`, "data-id": n.id }, all);
    make("rect", { x: -n.width / 2, y: -15, width: n.width, height: 30, fill: color(n) }, n.shown);
    make("text", { "text-anchor": "middle", y: 4 }, n.shown).textContent = clipped(n.label);
    make("title", {}, n.shown).textContent = n.title || (n.ms === null ? n.type : `${number(n.ms)} ms, ${n.type}`);
    if (n.parts && n.parts.length) fold(n, n.width / 2, -15);
  }
  for (const n of [...nodes, ...data.nodes.filter((m) => m.open)]) n.shown.addEventListener("click", () => choose(n.whole || n));
  mark();
}
function toggle(n) {
  n.open = !n.open;
  draw();
  center(n);
}
function toggleAll(open) {
  for (const n of data.nodes) n.open = open && n.parts.length > 0;
  draw();
  begin();
}

// Pan and zoom.
let scale = 1, left = 0, top_ = 0, dragged = null;
const place = () => all.setAttribute("transform", `translate(${left},${top_}) scale(${scale})`);
function fit() {
  const box = all.getBBox(), room = view.getBoundingClientRect();
  scale = Math.min(room.width / (box.width + 40), room.height / (box.height + 40), 1.5) || 1;
  left = room.width / 2 - scale * (box.x + box.width / 2);
  top_ = Math.max(20 - scale * box.y, room.height / 2 - scale * (box.y + box.height / 2));
  place();
}
// What is seen first can be read: the beginning of a graph that is too large to be read as a whole.
function begin() {
  const READABLE = 0.7, ROW = 60;
  fit();
  if (scale >= READABLE) return;
  const room = view.getBoundingClientRect(), high = Math.min(...drawn().map((n) => n.y));
  const first = drawn().filter((n) => n.y < high + ROW), mid = first.reduce((t, n) => t + n.x, 0) / first.length;
  scale = READABLE;
  left = room.width / 2 - scale * mid;
  top_ = 40 - scale * high;
  place();
}
function center(n) {
  const room = view.getBoundingClientRect();
  scale = Math.max(scale, 0.8);
  left = room.width / 2 - scale * n.x;
  top_ = room.height / 2 - scale * n.y;
  place();
}
view.addEventListener("wheel", (e) => {
  e.preventDefault();
  const room = view.getBoundingClientRect(), x = e.clientX - room.left, y = e.clientY - room.top, by = Math.exp(-e.deltaY / 500);
  left = x - by * (x - left); top_ = y - by * (y - top_); scale *= by;
  place();
}, { passive: false });
view.addEventListener("pointerdown", (e) => { dragged = [e.clientX - left, e.clientY - top_]; });
window.addEventListener("pointermove", (e) => { if (dragged) { left = e.clientX - dragged[0]; top_ = e.clientY - dragged[1]; place(); } });
window.addEventListener("pointerup", () => { dragged = null; });
document.getElementById("fit").addEventListener("click", fit);

// What is next to the graph.
function table(parent, heads, rows, chosen) {
  const t = element("table", undefined, parent), head = element("tr", undefined, t);
  for (const h of heads) element("th", h, head);
  rows.forEach((row, k) => {
    const tr = element("tr", undefined, t);
    for (const cell of row) element("td", cell, tr);
    if (chosen && chosen[k]) { tr.dataset.node = chosen[k].id; tr.addEventListener("click", () => { choose(chosen[k]); center(chosen[k]); }); }
  });
}
let chosen = null, found = null;
// What is chosen has a blue border, and what a search leaves out is faint, in every drawing.
function mark() {
  document.querySelectorAll(".chosen").forEach((e) => e.classList.remove("chosen"));
  if (chosen) chosen.shown.classList.add("chosen");
  for (const n of data.nodes) for (const e of n.open ? [n, ...parts(n)] : [n]) e.shown.classList.toggle("faint", found !== null && !found.has(e.whole || e));
}
function choose(n) {
  chosen = n;
  mark();
  side.replaceChildren();
  const back = element("button", "overview", side);
  back.addEventListener("click", overview);
  element("h2", n.label, side).id = "chosen";
  const row = against.get(n.id);
  const facts = [["type", n.type], ["kernel", n.kernel], ["ONNX nodes", n.nodes.join(", ")], ["ms", number(n.ms)], ["GFLOP/s", number(n.gflops)], ["GB/s", number(n.gbytes)], ["share of peak", n.share === null ? "" : number(100 * n.share) + " %"],
    ["onnxruntime", row ? `${number(row.theirs)} ms, occ ${number(row.ms)} ms, for ${row.nodes.join(", ")}` : ""]];
  table(side, ["", ""], facts.filter(([, v]) => v));
  for (const [title, text] of [["inside", n.inside], ["te function and schedule", n.te], ["Halide", n.source]]) {
    if (text) { element("h2", title, side); element("pre", text, side); }
  }
}
function plot(parent, w, h) { return make("svg", { class: "plot", viewBox: `0 0 ${w} ${h}` }, parent); }
function tick(s, x, y, anchor, value, line) {
  make("path", { d: line, class: "grid" }, s);
  make("text", { x, y, "text-anchor": anchor }, s).textContent = value < 1 ? value.toPrecision(1) : String(value);
}
function roofline(parent) {
  const timed = data.nodes.filter((n) => n.gflops > 0 && n.gbytes > 0);
  if (!timed.length) return;
  element("h2", "roofline: GFLOP/s over operations per byte", parent);
  const s = plot(parent, 400, 180), lg = Math.log10;
  const xs = timed.map((n) => lg(n.gflops / n.gbytes)), ys = timed.map((n) => lg(n.gflops)), top = lg(Math.max(data.peak, 10 ** Math.max(...ys)));
  const [x0, x1, y0, y1] = [Math.min(-2, ...xs), Math.max(2.5, ...xs), Math.min(-1, ...ys), top + 0.3];
  const X = (v) => 30 + 360 * (v - x0) / (x1 - x0), Y = (v) => 165 - 150 * (v - y0) / (y1 - y0);
  for (let k = Math.ceil(x0); k <= x1; k++) tick(s, X(k), 174, "middle", 10 ** k, `M${X(k)},165V15`);
  for (let k = Math.ceil(y0); k <= y1; k++) if (Y(k) < 160) tick(s, 26, Y(k) + 3, "end", 10 ** k, `M30,${Y(k)}H390`);
  if (data.peak) {
    const memory = lg(Math.max(...timed.map((n) => n.gbytes)));
    const knee = Math.min(Math.max(lg(data.peak) - memory, x0), x1);
    make("path", { d: `M${X(x0)},${Y(x0 + memory)}L${X(knee)},${Y(lg(data.peak))}L${X(x1)},${Y(lg(data.peak))}`, fill: "none", stroke: "currentColor" }, s);
    make("text", { x: 388, y: Y(lg(data.peak)) - 3, "text-anchor": "end" }, s).textContent = `peak ${number(data.peak)} GFLOP/s`;
  }
  timed.forEach((n, k) => {
    const dot = make("circle", { cx: X(xs[k]), cy: Y(ys[k]), r: 2 + 8 * (n.ms / most) ** 0.5, fill: color(n), stroke: "#555" }, s);
    make("title", {}, dot).textContent = `${n.label}: ${number(n.gflops)} GFLOP/s`;
    dot.addEventListener("click", () => { choose(n); center(n); });
  });
}
const bytes = (n) => (n < 1024 ? `${n} bytes` : n < 1048576 ? `${number(n / 1024)} KiB` : `${number(n / 1048576)} MiB`);
function memory(parent) {
  if (!data.memory.length) return;
  const high = Math.max(...data.memory.map((m) => m.offset + m.bytes), 1);
  element("h2", `memory of a run, ${bytes(high)}: offset over steps`, parent);
  const s = plot(parent, 400, 180), steps = Math.max(...data.memory.map((m) => m.last + 1), 1);
  for (const m of data.memory) {
    const r = make("rect", { x: 400 * m.first / steps, width: Math.max(400 * (m.last + 1 - m.first) / steps, 1), y: 175 - 170 * (m.offset + m.bytes) / high, height: Math.max(170 * m.bytes / high, 0.7), fill: `hsl(${(m.first * 47) % 360} 60% 60% / .8)` }, s);
    make("title", {}, r).textContent = `${bytes(m.bytes)}, steps ${m.first} to ${m.last}`;
  }
}
function some(parent, name, heads, rows, chosen) {
  const FEW = 12, place = element("div", undefined, parent);
  const show = (n) => table(place, heads, rows.slice(0, n), chosen.slice(0, n));
  show(FEW);
  if (rows.length <= FEW) return;
  const more = element("button", `all ${rows.length} ${name}`, parent);
  more.addEventListener("click", () => { place.replaceChildren(); show(rows.length); more.remove(); });
}
function comparison(parent) {
  const rows = data.against.rows;
  if (data.against.note) element("p", data.against.note, parent);
  if (!rows.length) return;
  const sum = (side) => number(rows.reduce((t, r) => t + r[side], 0));
  element("h2", `against onnxruntime, node by node: ${sum("ms")} and ${sum("theirs")} ms`, parent);
  const ratio = (r) => (r.ms && r.theirs && !data.against.unsteady ? (r.theirs / r.ms).toFixed(2) + "x" : "");
  some(parent, "rows", ["occ ms", "ort ms", "ratio", "nodes"], rows.map((r) => [number(r.ms || null), number(r.theirs || null), ratio(r), r.nodes[0] + (r.nodes.length > 1 ? ` and ${r.nodes.length - 1} more` : "")]), rows.map((r) => byId.get(r.ids[0])));
}
function overview() {
  side.replaceChildren();
  chosen = null;
  mark();
  const timed = data.nodes.filter((n) => n.ms).sort((a, b) => b.ms - a.ms), total = timed.reduce((t, n) => t + n.ms, 0);
  if (timed.length) {
    element("h2", `kernels: ${number(total)} ms`, side);
    some(side, "kernels", ["ms", "%", "peak", "kernel", "first node"], timed.map((n) => [number(n.ms), number(100 * n.ms / total, 2), n.share === null ? "" : Math.round(100 * n.share) + "%", n.label, n.nodes[0] || ""]), timed);
    element("p", `${scales[scaling][0]}; what is grey has none. A click shows its code, + its parts.`, side);
  }
  comparison(side);
  roofline(side);
  memory(side);
  element("h2", "sizes", side);
  table(side, ["", ""], data.sizes.map((s) => [s.what, bytes(s.bytes)]));
  if (data.passes.length) {
    element("h2", "passes", side);
    table(side, ["ms", "ops", "pass"], data.passes.map((p) => [number(p.ms), p.ops || "", `${p.stage}: ${p.name}`]));
  }
}

const search = document.getElementById("search");
search.addEventListener("input", () => {
  const text = search.value.toLowerCase();
  const hits = data.nodes.filter((n) => text && [n.label, n.kernel, ...n.nodes, ...n.parts.map((p) => p.label)].join(" ").toLowerCase().includes(text));
  found = text ? new Set(hits) : null;
  mark();
  document.getElementById("hits").textContent = text ? `${hits.length} found` : "";
  search.found = hits;
});
search.addEventListener("keydown", (e) => { if (e.key === "Enter" && search.found && search.found.length) { choose(search.found[0]); center(search.found[0]); } });
const colors = document.getElementById("colors");
for (const name of Object.keys(scales)) element("option", name, colors);
colors.addEventListener("change", () => { scaling = colors.value; draw(); overview(); });
const unfold = document.getElementById("unfold");
unfold.hidden = !data.nodes.some((n) => n.parts.length);
unfold.addEventListener("click", () => {
  const open = unfold.textContent === "unfold all";
  toggleAll(open);
  unfold.textContent = open ? "fold all" : "unfold all";
});
document.getElementById("facts").textContent = data.facts;
draw();
overview();
begin();

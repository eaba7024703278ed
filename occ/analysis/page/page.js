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
const color = (n) => (n.kind !== "op" ? "#cfe3ff" : n.ms ? `hsl(${60 - 60 * (n.ms / most) ** 0.5} 90% ${85 - 25 * (n.ms / most)}%)` : "#eee");

// The graph: layers by dagre; long chains of a large graph as columns, which dagre would take too long for.
function layout() {
  const LARGE = 1200;
  if (data.nodes.length > LARGE) {
    const rows = Math.ceil(Math.sqrt(data.nodes.length * 3));
    data.nodes.forEach((n, k) => { n.x = 110 + 220 * Math.floor(k / rows); n.y = 30 + 46 * (k % rows); });
    return data.edges.map((e) => [byId.get(e.from), byId.get(e.to)]);
  }
  const g = new dagre.graphlib.Graph().setGraph({ ranksep: 26, nodesep: 18 }).setDefaultEdgeLabel(() => ({}));
  for (const n of data.nodes) g.setNode(n.id, { width: n.width, height: 30 });
  for (const e of data.edges) g.setEdge(e.from, e.to);
  dagre.layout(g);
  for (const n of data.nodes) Object.assign(n, { x: g.node(n.id).x, y: g.node(n.id).y });
  return data.edges.map((e) => g.edge(e.from, e.to).points);
}

const all = document.getElementById("all"), view = document.getElementById("view"), side = document.getElementById("side");
for (const n of data.nodes) n.width = Math.min(200, 22 + 6.6 * n.label.length);
for (const points of layout()) make("path", { class: "edge", d: "M" + points.map((p) => `${p.x},${p.y}`).join("L") }, all);
for (const n of data.nodes) {
  n.shown = make("g", { class: "node", transform: `translate(${n.x},${n.y})`, "data-id": n.id }, all);
  make("rect", { x: -n.width / 2, y: -15, width: n.width, height: 30, fill: color(n) }, n.shown);
  make("text", { "text-anchor": "middle", y: 4 }, n.shown).textContent = n.label.length > 27 ? n.label.slice(0, 26) + "…" : n.label;
  n.shown.addEventListener("click", () => choose(n));
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
  const room = view.getBoundingClientRect(), high = Math.min(...data.nodes.map((n) => n.y));
  const first = data.nodes.filter((n) => n.y < high + ROW), mid = first.reduce((t, n) => t + n.x, 0) / first.length;
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
    if (chosen) { tr.dataset.node = chosen[k].id; tr.addEventListener("click", () => { choose(chosen[k]); center(chosen[k]); }); }
  });
}
function choose(n) {
  document.querySelectorAll(".chosen").forEach((e) => e.classList.remove("chosen"));
  n.shown.classList.add("chosen");
  side.replaceChildren();
  const back = element("button", "overview", side);
  back.addEventListener("click", overview);
  element("h2", n.label, side).id = "chosen";
  const facts = [["type", n.type], ["kernel", n.kernel], ["ONNX nodes", n.nodes.join(", ")], ["ms", number(n.ms)], ["GFLOP/s", number(n.gflops)], ["GB/s", number(n.gbytes)], ["share of peak", n.share === null ? "" : number(100 * n.share) + " %"]];
  table(side, ["", ""], facts.filter(([, v]) => v));
  for (const [title, text] of [["inside", n.inside], ["te function and schedule", n.te], ["Halide", n.source]]) {
    if (text) { element("h2", title, side); element("pre", text, side); }
  }
}
function plot(parent, w, h) { return make("svg", { class: "plot", viewBox: `0 0 ${w} ${h}` }, parent); }
function roofline(parent) {
  const timed = data.nodes.filter((n) => n.gflops > 0 && n.gbytes > 0);
  if (!timed.length) return;
  element("h2", "roofline: GFLOP/s over operations per byte", parent);
  const s = plot(parent, 400, 180), lg = Math.log10;
  const xs = timed.map((n) => lg(n.gflops / n.gbytes)), ys = timed.map((n) => lg(n.gflops)), top = lg(Math.max(data.peak, 10 ** Math.max(...ys)));
  const [x0, x1, y0, y1] = [Math.min(-2, ...xs), Math.max(2.5, ...xs), Math.min(-1, ...ys), top + 0.3];
  const X = (v) => 30 + 360 * (v - x0) / (x1 - x0), Y = (v) => 165 - 150 * (v - y0) / (y1 - y0);
  if (data.peak) {
    const memory = lg(Math.max(...timed.map((n) => n.gbytes)));
    const knee = Math.min(Math.max(lg(data.peak) - memory, x0), x1);
    make("path", { d: `M${X(x0)},${Y(x0 + memory)}L${X(knee)},${Y(lg(data.peak))}L${X(x1)},${Y(lg(data.peak))}`, fill: "none", stroke: "currentColor" }, s);
    make("text", { x: 32, y: Y(lg(data.peak)) - 3 }, s).textContent = `peak ${number(data.peak)} GFLOP/s`;
  }
  timed.forEach((n, k) => {
    const dot = make("circle", { cx: X(xs[k]), cy: Y(ys[k]), r: 2 + 8 * (n.ms / most) ** 0.5, fill: color(n), stroke: "#555" }, s);
    make("title", {}, dot).textContent = `${n.label}: ${number(n.gflops)} GFLOP/s`;
    dot.addEventListener("click", () => { choose(n); center(n); });
  });
}
function memory(parent) {
  if (!data.memory.length) return;
  element("h2", "memory of a run: offset over steps", parent);
  const s = plot(parent, 400, 180), steps = Math.max(...data.memory.map((m) => m.last + 1), 1), high = Math.max(...data.memory.map((m) => m.offset + m.bytes), 1);
  for (const m of data.memory) {
    const r = make("rect", { x: 400 * m.first / steps, width: Math.max(400 * (m.last + 1 - m.first) / steps, 1), y: 175 - 170 * (m.offset + m.bytes) / high, height: Math.max(170 * m.bytes / high, 0.7), fill: `hsl(${(m.first * 47) % 360} 60% 60% / .8)` }, s);
    make("title", {}, r).textContent = `${m.bytes} bytes, steps ${m.first} to ${m.last}`;
  }
  make("text", { x: 3, y: 10 }, s).textContent = `${(high / 1048576).toFixed(2)} MiB`;
}
function overview() {
  side.replaceChildren();
  const timed = data.nodes.filter((n) => n.ms).sort((a, b) => b.ms - a.ms), total = timed.reduce((t, n) => t + n.ms, 0);
  if (timed.length) {
    element("h2", `kernels: ${number(total)} ms`, side);
    const FEW = 12, rows = element("div", undefined, side);
    const show = (some) => table(rows, ["ms", "%", "peak", "kernel", "first node"], some.map((n) => [number(n.ms), number(100 * n.ms / total, 2), n.share === null ? "" : Math.round(100 * n.share) + "%", n.label, n.nodes[0] || ""]), some);
    show(timed.slice(0, FEW));
    if (timed.length > FEW) {
      const more = element("button", `all ${timed.length} kernels`, side);
      more.addEventListener("click", () => { rows.replaceChildren(); show(timed); more.remove(); });
    }
    element("p", "The redder a node, the more time its kernel takes; what is grey has none. A click shows its code.", side);
  }
  roofline(side);
  memory(side);
  if (data.passes.length) {
    element("h2", "passes", side);
    table(side, ["ms", "ops", "pass"], data.passes.map((p) => [number(p.ms), p.ops || "", `${p.stage}: ${p.name}`]));
  }
}

const search = document.getElementById("search");
search.addEventListener("input", () => {
  const text = search.value.toLowerCase();
  const found = data.nodes.filter((n) => text && [n.label, n.kernel, ...n.nodes].join(" ").toLowerCase().includes(text));
  for (const n of data.nodes) n.shown.classList.toggle("faint", text !== "" && !found.includes(n));
  document.getElementById("hits").textContent = text ? `${found.length} found` : "";
  search.found = found;
});
search.addEventListener("keydown", (e) => { if (e.key === "Enter" && search.found && search.found.length) { choose(search.found[0]); center(search.found[0]); } });
document.getElementById("facts").textContent = data.facts;
overview();
begin();

// Runs a model that `occ build --emit shared` has made for WebAssembly, in browsers, Node.js and Deno. docs/webassembly.md
//
//     import { load } from "./occ.js";
//     const model = await load("model.wasm", "model.weights");
//     const { y } = model.run({ x: { data: new Float32Array(24), dims: [3, 8] } });

const MAX_RANK = 16, TENSOR = 24 + 8 * MAX_RANK;  // bytes of an occ_tensor, see occ.h

// By occ_dtype: what people call it, and what its elements are in JavaScript. Halves come as their bits.
const TYPES = [
  null, ["f32", Float32Array], ["f64", Float64Array], ["f16", Uint16Array], ["bf16", Uint16Array], ["i8", Int8Array],
  ["i16", Int16Array], ["i32", Int32Array], ["i64", BigInt64Array], ["u8", Uint8Array], ["u16", Uint16Array],
  ["u32", Uint32Array], ["u64", BigUint64Array], ["bool", Uint8Array], ["c64", Float32Array], ["c128", Float64Array],
];
const typeOf = (dtype) => TYPES[dtype] ?? ["byte", Uint8Array];
const parts = (dtype) => (dtype === 14 || dtype === 15 ? 2 : 1);  // of an element: complex numbers are pairs

/** An error that the model tells; its message names the node or the input. */
export class OccError extends Error {}

const bytesOf = async (source) => {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  const answer = source instanceof Response ? source : await fetch(source);
  if (!answer.ok) throw new OccError(`${answer.url} cannot be fetched: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await answer.arrayBuffer());
};

/**
 * Open a model.
 * @param module the module: a URL, a Response, bytes, or a WebAssembly.Module
 * @param weights the same of the weights, if they are in a file of their own
 */
export async function load(module, weights) {
  const compiled = module instanceof WebAssembly.Module ? module : await WebAssembly.compile(await bytesOf(module));
  const system = new Proxy({}, { get: (_, name) => () => {
    if (name === "proc_exit") throw new OccError("the module has ended itself");
    return 8;  // EBADF: there are no files
  } });
  const imports = {};
  for (const { module: from, name } of WebAssembly.Module.imports(compiled)) (imports[from] ??= {})[name] = system[name];
  const instance = await WebAssembly.instantiate(compiled, imports);
  instance.exports._initialize?.();
  return new Model(instance.exports, weights === undefined ? null : await bytesOf(weights));
}

class Model {
  #c;
  #model;
  #weights = 0;

  constructor(exports, weights) {
    this.#c = exports;
    const open = Object.keys(exports).find((n) => n.endsWith("_open") && n !== "occ_open");
    if (!open) throw new OccError("the module has no model of occ");
    const place = this.#room(4);
    try {
      if (weights) {
        this.#weights = this.#room(weights.length + 64);
        const at = (this.#weights + 63) & ~63;
        new Uint8Array(this.#c.memory.buffer).set(weights, at >>> 0);
        if (!this.#c[`${open}_memory`]) throw new OccError("the weights of the model are in its module: give no others");
        this.#check(this.#c[`${open}_memory`](at, weights.length, place), 0);
      } else {
        this.#check(this.#c[open](0, place), 0);
      }
      this.#model = this.#view().getUint32(place, true);
    } finally {
      exports.free(place);
    }
    /** Name, element type and extents of inputs and outputs; null stands for extents that differ between runs. */
    this.inputs = this.#ports("input");
    this.outputs = this.#ports("output");
  }

  /**
   * Run the model.
   * @param feeds the inputs by name, each { data: a typed array, dims: its extents, outermost first }
   * @returns the outputs by name, likewise
   */
  run(feeds) {
    const [n, m] = [this.inputs.length, this.outputs.length];
    for (const name of Object.keys(feeds)) {
      if (!this.inputs.some((p) => p.name === name)) throw new OccError(`the model has no input \`${name}\``);
    }
    const tensors = this.#room((n + m) * TENSOR), held = [];
    new Uint8Array(this.#c.memory.buffer, tensors, (n + m) * TENSOR).fill(0);
    try {
      this.inputs.forEach((p, k) => held.push(this.#give(p, feeds[p.name], tensors + k * TENSOR)));
      this.#check(this.#c.occ_run(this.#model, tensors, n, tensors + n * TENSOR, m), this.#model);
      return Object.fromEntries(this.outputs.map((p, k) => [p.name, this.#take(tensors + (n + k) * TENSOR)]));
    } finally {
      for (let k = 0; k < m; k++) this.#c.occ_free(tensors + (n + k) * TENSOR);
      for (const at of [...held, tensors]) this.#c.free(at);
    }
  }

  /** Free the model. */
  close() {
    this.#c.occ_close(this.#model);
    this.#c.free(this.#weights);
    this.#model = this.#weights = 0;
  }

  #give(port, feed, at) {
    if (!feed) throw new OccError(`the input \`${port.name}\` is missing`);
    const [name, Kind] = typeOf(port.code), { data, dims } = feed, count = dims.reduce((a, b) => a * b, parts(port.code));
    if (!(data instanceof Kind)) throw new OccError(`the input \`${port.name}\` is ${name}: give a ${Kind.name}`);
    if (data.length !== count) throw new OccError(`the input \`${port.name}\` has ${data.length} elements, its dims say ${count}`);
    if (dims.length > MAX_RANK) throw new OccError(`the input \`${port.name}\` has more than ${MAX_RANK} dims`);
    const memory = this.#room(data.byteLength + 64), aligned = ((memory + 63) & ~63) >>> 0, view = this.#view();
    new Kind(this.#c.memory.buffer, aligned, data.length).set(data);
    view.setUint32(at, aligned, true);
    view.setUint32(at + 4, data.byteLength, true);
    view.setInt32(at + 8, port.code, true);
    view.setInt32(at + 12, dims.length, true);
    dims.forEach((d, k) => view.setBigInt64(at + 24 + 8 * k, BigInt(d), true));
    return memory;
  }

  #take(at) {
    const view = this.#view(), code = view.getInt32(at + 8, true), [dtype, Kind] = typeOf(code);
    const dims = Array.from({ length: view.getInt32(at + 12, true) }, (_, k) => Number(view.getBigInt64(at + 24 + 8 * k, true)));
    const count = dims.reduce((a, b) => a * b, parts(code));
    const data = new Kind(this.#c.memory.buffer, view.getUint32(at, true), count).slice();
    return { data, dims, dtype };
  }

  #ports(kind) {
    const count = this.#c[`occ_${kind}s`](this.#model);
    return Array.from({ length: count }, (_, k) => {
      const at = this.#c[`occ_${kind}`](this.#model, k), view = this.#view(), rank = view.getInt32(at + 8, true);
      const code = view.getInt32(at + 4, true), extents = view.getUint32(at + 12, true);
      const dims = Array.from({ length: Math.max(rank, 0) }, (_, a) => Number(view.getBigInt64(extents + 8 * a, true)));
      return { name: this.#text(view.getUint32(at, true)), dtype: typeOf(code)[0], code, dims: dims.map((d) => (d < 0 ? null : d)) };
    });
  }

  #check(status, model) {
    if (status) throw new OccError(this.#text(this.#c.occ_error_text(model)) || `status ${status}`);
  }

  #room(bytes) {
    const at = this.#c.malloc(bytes) >>> 0;
    if (!at) throw new OccError(`there is no memory for ${bytes} bytes`);
    return at;
  }

  #view() {  // memory that has grown is another buffer
    return new DataView(this.#c.memory.buffer);
  }

  #text(at) {
    const memory = new Uint8Array(this.#c.memory.buffer);
    return new TextDecoder().decode(memory.subarray(at, memory.indexOf(0, at)));
  }
}

// A twin of a small Llama whose rows have a multiple of 256 values, as the larger blocks of ggml need. It computes
// the same function with weights that look like those of a wide model: the residual stream is turned into a wider
// space, heads and neurons are doubled and their outputs halved.
//
//   node tests/interop/wide_model.mjs --model examples/base-1m --output DIR
import fs from "node:fs";
import path from "node:path";
import {fileURLToPath} from "node:url";
import {readOptions} from "./peer.mjs";

const kBlock = 256;  // values

// mulberry32, uniform in (0, 1).
function uniforms(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
}

// (rows, cols) of rows * cols values.
class Matrix {
  constructor(rows, cols, values = new Float64Array(rows * cols)) {
    Object.assign(this, {rows, cols, values});
  }
  row(r) { return this.values.subarray(r * this.cols, (r + 1) * this.cols); }
  // this (O, I) times the transpose of other (P, I): (O, P).
  timesTransposed(other) {
    const out = new Matrix(this.rows, other.rows);
    for (let r = 0; r < this.rows; r++) {
      const a = this.row(r);
      for (let p = 0; p < other.rows; p++) {
        const b = other.row(p);
        let sum = 0;
        for (let i = 0; i < this.cols; i++) sum += a[i] * b[i];
        out.values[r * out.cols + p] = sum;
      }
    }
    return out;
  }
  transposed() {
    const out = new Matrix(this.cols, this.rows);
    for (let r = 0; r < this.rows; r++) for (let c = 0; c < this.cols; c++) out.values[c * this.rows + r] = this.values[r * this.cols + c];
    return out;
  }
  // Row i is row `order[i]`, times `factor(order[i])`.
  pick(order, factor = () => 1) {
    const out = new Matrix(order.length, this.cols);
    order.forEach((from, i) => out.row(i).set(this.row(from).map((value) => value * factor(from))));
    return out;
  }
  scaleColumns(factors) {
    return new Matrix(this.rows, this.cols, this.values.map((value, i) => value * factors[i % this.cols]));
  }
}

// (wide, narrow) with orthonormal columns.
function orthonormal(wide, narrow) {
  const uniform = uniforms(1);
  const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  const columns = new Matrix(narrow, wide);
  for (let c = 0; c < narrow; c++) {
    const column = columns.row(c);
    for (let i = 0; i < wide; i++) column[i] = normal();
    // Twice is enough: what rounding leaves after the first pass is gone after the second.
    for (let pass = 0; pass < 2; pass++) {
      for (let other = 0; other < c; other++) {
        const earlier = columns.row(other);
        const dot = earlier.reduce((sum, value, i) => sum + value * column[i], 0);
        for (let i = 0; i < wide; i++) column[i] -= dot * earlier[i];
      }
      const length = Math.hypot(...column);
      for (let i = 0; i < wide; i++) column[i] /= length;
    }
  }
  return columns.transposed();
}

function readTensors(file) {
  const bytes = fs.readFileSync(file);
  const headerSize = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + headerSize));
  const tensors = {};
  for (const [name, info] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [begin, end] = info.data_offsets.map((offset) => offset + 8 + headerSize);
    const size = info.dtype === "F32" ? 4 : 2;
    if (!["F32", "BF16"].includes(info.dtype)) throw new Error(`${file}: ${name} is ${info.dtype}; F32 or BF16 is expected`);
    const values = new Float64Array((end - begin) / size);
    const word = Buffer.alloc(4);
    for (let i = 0; i < values.length; i++) {
      if (size === 4) bytes.copy(word, 0, begin + 4 * i, begin + 4 * i + 4);
      else bytes.copy(word, 2, begin + 2 * i, begin + 2 * i + 2);
      values[i] = word.readFloatLE(0);
    }
    tensors[name] = new Matrix(info.shape.length > 1 ? info.shape[0] : 1, info.shape.at(-1), values);
  }
  return tensors;
}

function writeTensors(file, tensors) {
  const header = {};
  let offset = 0;
  for (const [name, m] of Object.entries(tensors)) {
    const end = offset + 4 * m.values.length;
    header[name] = {dtype: "F32", shape: name.endsWith("norm.weight") ? [m.cols] : [m.rows, m.cols], data_offsets: [offset, end]};
    offset = end;
  }
  const json = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(json.length));
  fs.writeFileSync(file, Buffer.concat([size, json, ...Object.values(tensors).map((m) => Buffer.from(Float32Array.from(m.values).buffer))]));
}

// 0 ... n - 1, each `times` times in a row.
const repeated = (n, times) => Array.from({length: n * times}, (_, i) => Math.floor(i / times));

// folder: is made. Errors: Error for a model other than a Llama without biases.
export function writeWideTwin(model, folder) {
  const config = JSON.parse(fs.readFileSync(path.join(model, "config.json"), "utf8"));
  if (config.model_type !== "llama") throw new Error(`${model}: a Llama is expected, found ${config.model_type}`);
  const from = readTensors(path.join(model, "model.safetensors"));
  const narrow = config.hidden_size, heads = config.num_attention_heads;
  const headSize = config.head_dim ?? narrow / heads;
  const wide = Math.ceil(narrow / kBlock) * kBlock;
  const inner = Math.ceil(config.intermediate_size / kBlock) * kBlock;
  // Copies of each head; the copies stay beside each other, and so under their head of keys and values.
  const copies = Math.ceil(heads * headSize / kBlock) * kBlock / (heads * headSize);
  if (!Number.isInteger(copies)) throw new Error(`${model}: ${heads} heads of ${headSize} do not divide ${kBlock}`);

  const turn = orthonormal(wide, narrow);  // (wide, narrow)
  const rows = (head) => Array.from({length: headSize}, (_, i) => head * headSize + i);
  const headRows = repeated(heads, copies).flatMap(rows);
  // The neurons that are there twice.
  const twice = inner - config.intermediate_size;
  if (twice > config.intermediate_size) throw new Error(`${model}: fewer than ${inner / 2} neurons`);
  const neurons = [...Array(config.intermediate_size).keys(), ...Array(twice).keys()];
  const share = (neuron) => neuron < twice ? 0.5 : 1;

  // An RMS over `wide` values of which only `narrow` directions are used is smaller by this.
  const shrink = Math.sqrt(narrow / wide);
  const reads = (weight, gain) => weight.scaleColumns(gain.values.map((g) => g * shrink)).timesTransposed(turn);
  const writes = (weight) => turn.timesTransposed(weight.transposed());
  const ones = () => new Matrix(1, wide, new Float64Array(wide).fill(1));
  const to = {"model.embed_tokens.weight": from["model.embed_tokens.weight"].timesTransposed(turn)};
  for (let l = 0; l < config.num_hidden_layers; l++) {
    const name = `model.layers.${l}.`;
    const weight = (linear) => from[`${name}${linear}.weight`];
    const set = (linear, m) => { to[`${name}${linear}.weight`] = m; };
    const attention = weight("input_layernorm"), mlp = weight("post_attention_layernorm");
    set("input_layernorm", ones());
    set("post_attention_layernorm", ones());
    set("self_attn.q_proj", reads(weight("self_attn.q_proj"), attention).pick(headRows));
    set("self_attn.k_proj", reads(weight("self_attn.k_proj"), attention));
    set("self_attn.v_proj", reads(weight("self_attn.v_proj"), attention));
    set("self_attn.o_proj", writes(weight("self_attn.o_proj").transposed().pick(headRows, () => 1 / copies).transposed()));
    set("mlp.gate_proj", reads(weight("mlp.gate_proj"), mlp).pick(neurons));
    set("mlp.up_proj", reads(weight("mlp.up_proj"), mlp).pick(neurons));
    set("mlp.down_proj", writes(weight("mlp.down_proj").transposed().pick(neurons, share).transposed()));
  }
  to["model.norm.weight"] = ones();
  to["lm_head.weight"] = reads(from["lm_head.weight"] ?? from["model.embed_tokens.weight"], from["model.norm.weight"]);

  fs.cpSync(model, folder, {recursive: true, dereference: true});
  for (const name of fs.readdirSync(folder)) fs.chmodSync(path.join(folder, name), 0o644);
  Object.assign(config, {hidden_size: wide, intermediate_size: inner, num_attention_heads: heads * copies, head_dim: headSize,
    rms_norm_eps: config.rms_norm_eps * narrow / wide, tie_word_embeddings: false, torch_dtype: "float32"});
  fs.writeFileSync(path.join(folder, "config.json"), JSON.stringify(config, null, 2));
  writeTensors(path.join(folder, "model.safetensors"), to);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const options = readOptions({}, ["model", "output"], "wide_model.mjs --model DIR --output DIR");
  writeWideTwin(options.model, options.output);
}

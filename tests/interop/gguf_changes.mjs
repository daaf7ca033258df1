#!/usr/bin/env node
// One key or tensor of a GGUF file is dropped, changed or added, and llama.cpp and the program read the result: where
// llama.cpp refuses it, the program does; where both load it, their log-probabilities agree. The program may refuse more,
// which is listed.
//
//   node tests/interop/gguf_changes.mjs --qlora build/release/bin/qlora --files A.gguf,B.gguf
//        [--seed 1] [--seconds 240] [--only NAME_PART] [--tolerance 1e-4]
//
// Changes are taken in an order of the seed until the time is over. Needs `npm install --ignore-scripts`. Exit status: 0 no
// differences, 1 differences, 77 skipped.
import {spawn, spawnSync} from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import {fileURLToPath} from "node:url";
import {f32Tensor, kTypes, readGguf, writeGguf} from "./gguf_file.mjs";
import {createContext, loadGguf, logprobs, startLlama} from "./llama_peer.mjs";
import {load, readOptions, scratchFolder} from "./peer.mjs";

const kRow = 24;  // tokens
const kMostOfGelu = 0.02;
const kMostOfBf16 = 0.02;  // llama.cpp rounds what it multiplies with BF16

// llama.cpp as a child, which may abort: reads names of files, answers with their log-probabilities.
async function answer() {
  const llama = await startLlama();
  for await (const line of readline.createInterface({input: process.stdin})) {
    const {file, row} = JSON.parse(line);
    let found;
    try {
      const model = await loadGguf(llama, file);
      const context = await createContext(model, null);
      found = {logprobs: await logprobs(context.getSequence(), row)};
      await context.dispose();
      await model.dispose();
    } catch (e) {
      found = {refused: String(e.message ?? e)};
    }
    fs.writeSync(1, JSON.stringify(found) + "\n");
  }
}
if (process.env.GGUF_CHANGES_CHILD) {
  await answer();
  process.exit(0);
}

class Llama {
  #child;
  #lines;
  #start() {
    this.#child = spawn(process.execPath, [fileURLToPath(import.meta.url)],
      {env: {...process.env, GGUF_CHANGES_CHILD: "1"}, stdio: ["pipe", "pipe", "ignore"]});
    this.#lines = readline.createInterface({input: this.#child.stdout})[Symbol.asyncIterator]();
  }
  async ask(file, row) {
    if (!this.#child) this.#start();
    this.#child.stdin.on("error", () => {});
    this.#child.stdin.write(JSON.stringify({file, row}) + "\n");
    const {value, done} = await this.#lines.next();
    if (!done) return JSON.parse(value);
    this.#child = null;  // an assertion of llama.cpp ended it
    return {refused: "aborted"};
  }
  end() { this.#child?.stdin.end(); }
}

await load("node-llama-cpp");
const options = readOptions({seed: 1, seconds: 240, only: "", tolerance: 1e-4}, ["qlora", "files"],
  "gguf_changes.mjs --qlora PROGRAM --files A.gguf,B.gguf");
const scratch = scratchFolder();

let state = BigInt(options.seed) * 2654435761n + 1n;
function random(count) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n);
  return Number(state >> 33n) % count;
}

// Keys that one architecture or another reads, for those in which a file has none.
const kMoreKeys = [["attention.scale", "f32", 0.5], ["logit_scale", "f32", 0.5], ["embedding_scale", "f32", 2], ["residual_scale", "f32", 0.5],
  ["rope.scaling.type", "string", "linear"], ["rope.scaling.type", "string", "yarn"], ["rope.scaling.type", "string", "longrope"],
  ["rope.scaling.factor", "f32", 2], ["rope.scale_linear", "f32", 2], ["rope.scaling.attn_factor", "f32", 1.5],
  ["rope.scaling.original_context_length", "u32", 64], ["rope.scaling.finetuned", "bool", 0], ["rope.scaling.yarn_log_multiplier", "f32", 0.5],
  ["rope.scaling.yarn_ext_factor", "f32", 0.5], ["rope.scaling.yarn_attn_factor", "f32", 0.5], ["rope.scaling.yarn_beta_fast", "f32", 16],
  ["rope.freq_base_swa", "f32", 500], ["rope.dimension_count", "u32", 4], ["rope.dimension_count_swa", "u32", 4],
  ["attention.sliding_window", "u32", 4], ["attention.sliding_window_pattern", "u32", 2], ["attention.key_length", "u32", 8],
  ["attention.value_length", "u32", 8], ["attention.key_length_swa", "u32", 8], ["attn_logit_softcapping", "f32", 1], ["final_logit_softcapping", "f32", 1],
  ["attention.temperature_scale", "f32", 0.5], ["attention.temperature_length", "u32", 4], ["attention.causal", "bool", 0],
  ["expert_weights_scale", "f32", 2], ["expert_weights_norm", "bool", 0], ["expert_weights_norm", "bool", 1], ["expert_gating_func", "u32", 1],
  ["expert_gating_func", "u32", 2], ["expert_gating_func", "u32", 3], ["expert_shared_count", "u32", 1], ["expert_group_count", "u32", 2],
  ["expert_group_used_count", "u32", 1], ["leading_dense_block_count", "u32", 1], ["moe_every_n_layers", "u32", 2], ["nextn_predict_layers", "u32", 1],
  ["attention.clamp_kqv", "f32", 0.1], ["attention.max_alibi_bias", "f32", 8], ["attention.layer_norm_epsilon", "f32", 0.1],
  ["use_parallel_residual", "bool", 1], ["swiglu_clamp_exp", "f32", 1], ["attention.shared_kv_layers", "u32", 1], ["full_attention_interval", "u32", 2],
  ["interleave_moe_layer_step", "u32", 2], ["pooling_type", "u32", 1], ["attention.output_scale", "f32", 0.5], ["attention.value_scale", "f32", 0.5],
  ["hidden_act", "string", "gelu"], ["decoder_block_count", "u32", 1], ["attention.gate_size", "u32", 4], ["xielu.alpha_p", "f32", 1]];
// Tensors of a block or beside them, with the tensor whose rows give their size.
const kMoreTensors = [["attn_q.bias", "attn_q.weight"], ["attn_k.bias", "attn_k.weight"], ["attn_v.bias", "attn_v.weight"], ["attn_qkv.bias", "attn_qkv.weight"],
  ["attn_output.bias", "attn_output.weight"], ["ffn_gate.bias", "ffn_gate.weight"], ["ffn_up.bias", "ffn_up.weight"], ["ffn_down.bias", "ffn_down.weight"],
  ["attn_norm.bias", "attn_output.weight"], ["ffn_norm.bias", "attn_output.weight"], ["ffn_gate_inp.bias", "ffn_gate_inp.weight"],
  ["exp_probs_b.bias", "ffn_gate_inp.weight"], ["attn_sub_norm.weight", "attn_output.weight"], ["post_attention_norm.weight", "attn_output.weight"],
  ["post_ffw_norm.weight", "attn_output.weight"], ["attn_gate.weight", "attn_q.weight"], ["layer_output_scale.weight", null], ["attn_sinks.weight", null],
  ["attn_rot_embd", null], ["nonsense.weight", null]];
const kMoreTables = [["output.bias", "token_embd.weight"], ["output_norm.bias", "blk.0.attn_output.weight"], ["rope_freqs.weight", null],
  ["token_embd_norm.weight", "blk.0.attn_output.weight"], ["position_embd.weight", null], ["output.weight", "token_embd.weight"], ["cls.weight", null]];

const kFloat = kTypes.f32, kU32 = kTypes.u32, kI32 = kTypes.i32;
const noise = (count, size = 0.3) => Array.from({length: count}, (_, i) => size * Math.sin(1 + 7 * i + i * i));

// [name, change of {keys, tensors}]: each of a copy.
function changesOf(file) {
  const {keys, tensors} = file;
  const architecture = keys.find(({key}) => key === "general.architecture").value;
  const own = `${architecture}.`;
  const heads = keys.find(({key}) => key === `${own}attention.head_count`)?.value ?? 4;
  const changes = [];
  const add = (name, edit) => changes.push([name, edit]);
  const setKey = (key, type, value) => ({keys, ...rest}) =>
    ({keys: [...keys.filter((k) => k.key !== key), {key, type, value}], ...rest});
  for (const {key, type, value} of keys) {
    if (key.startsWith("tokenizer.")) continue;
    add(`drop ${key}`, ({keys, ...rest}) => ({keys: keys.filter((k) => k.key !== key), ...rest}));
    if (!key.startsWith(own)) continue;
    if (type === kU32) for (const v of [0, 1, value + 1, 2 * value, 3]) if (v !== value) add(`${key} = ${v}`, setKey(key, kU32, v));
    if (type === kU32) add(`${key} as i32`, setKey(key, kI32, value));
    if (type === kU32) add(`${key} as u64`, setKey(key, kTypes.u64, BigInt(value)));
    if (type === kFloat) for (const v of [0, 2 * value, 0.3 * value, -value, NaN, Infinity]) add(`${key} = ${v}`, setKey(key, kFloat, v));
    if (type === kTypes.bool) add(`${key} flipped`, setKey(key, type, 1 - value));
    if (type === kTypes.string) for (const v of ["none", "linear", "yarn", "other"]) if (v !== value) add(`${key} = ${v}`, setKey(key, type, v));
    if (type === 9) {
      const {element, values} = value;
      add(`${key} shorter`, setKey(key, 9, {element, values: values.slice(1)}));
      add(`${key} longer`, setKey(key, 9, {element, values: [...values, values[0]]}));
      const other = (v) => element === kTypes.bool ? 1 - v : typeof v === "number" ? v + 1 : v;
      values.slice(0, 4).forEach((_, i) => add(`${key}[${i}] changed`, setKey(key, 9, {element, values: values.map((v, j) => i === j ? other(v) : v)})));
      if (typeof values[0] === "number") add(`${key} as one`, setKey(key, element, values[0]));
    }
  }
  for (const [name, type, value] of kMoreKeys) {
    if (!keys.some(({key}) => key === own + name)) add(`add ${own}${name} = ${value}`, setKey(own + name, kTypes[type], value));
  }
  add("add yarn with all", (f) => [["type", "string", "yarn"], ["factor", "f32", 4], ["original_context_length", "u32", 32]]
    .reduce((g, [name, type, value]) => setKey(`${own}rope.scaling.${name}`, kTypes[type], value)(g), f));
  for (const other of ["llama", "qwen2", "qwen3", "gemma3", "granite", "olmo2", "nonsense"]) {
    if (other !== architecture) add(`architecture ${other}`, ({keys, ...rest}) => ({...rest, keys: keys.map((k) =>
      k.key === "general.architecture" ? {...k, value: other} : k.key.startsWith(own) ? {...k, key: other + k.key.slice(own.length - 1)} : k)}));
  }
  const find = (name) => tensors.find((t) => t.name === name);
  const put = (tensor) => ({tensors, ...rest}) => ({...rest, tensors: [...tensors.filter((t) => t.name !== tensor.name), tensor]});
  for (const tensor of tensors) {
    if (/^blk\.\d/.test(tensor.name) && !/^blk\.[01]\./.test(tensor.name)) continue;
    const {name, type, shape} = tensor;
    add(`drop ${name}`, ({tensors, ...rest}) => ({...rest, tensors: tensors.filter((t) => t.name !== name)}));
    if (shape.length > 1 && shape[0] !== shape[1]) add(`${name} turned`, put({...tensor, shape: [shape[1], shape[0], ...shape.slice(2)]}));
    if (shape.length === 1) add(`${name} in two dimensions`, put({...tensor, shape: [shape[0], 1]}));
    if (shape.length === 1 && shape[0] > 2) add(`${name} shorter`, put({...tensor, shape: [shape[0] - 1], data: tensor.data.subarray(0, 4 * (shape[0] - 1))}));
    if (type === 0) add(`${name} as BF16`, put({...tensor, type: 30, data: Buffer.from(tensor.data.filter((_, i) => i % 4 > 1 && i < 4 * shape.reduce((a, b) => a * b)))}));
    if (shape.length === 2 && type === 0) add(`${name} with a scale`, put(f32Tensor(name.replace(/weight$/, "scale"), [1], [1.5])));
    if (shape.length === 2 && type === 0) add(`${name} with an input scale`, put(f32Tensor(name.replace(/weight$/, "input_scale"), [1], [1.5])));
    if (shape.length === 3 && type === 0) add(`${name} with scales`, put(f32Tensor(name.replace(/weight$/, "scale"), [shape[2]], noise(shape[2]).map((v) => 1 + v))));
  }
  const sized = (name, of, prefix) => {
    const tensor = of && find(prefix + of);
    if (of && !tensor) return;
    const rows = of ? tensor.shape[1] : name === "rope_freqs.weight" ? 4 : name === "attn_sinks.weight" ? heads : 1;
    const shape = name === "output.weight" || name === "attn_gate.weight" ? tensor.shape : [rows];
    const count = shape.reduce((a, b) => a * b);
    const values = name.endsWith("norm.weight") || name === "rope_freqs.weight" ? noise(count).map((v) => 1 + Math.abs(v)) : noise(count);
    if (!find(prefix + name)) add(`add ${prefix}${name}`, put(f32Tensor(prefix + name, shape, values)));
  };
  for (const [name, of] of kMoreTensors) for (const block of [0, 1]) sized(name, of, `blk.${block}.`);
  for (const [name, of] of kMoreTables) sized(name, of, "");
  return changes;
}

function ours(file, row) {
  const rows = path.join(scratch, "rows.jsonl");
  fs.writeFileSync(rows, JSON.stringify({input_ids: row}) + "\n");
  const run = spawnSync(options.qlora, ["eval", "--model", file, "--dataset", rows, "--per-token", "--load-in-4bit", "false",
    "--compute-dtype", "float32", "--json", "--threads", "1"], {encoding: "utf8", maxBuffer: 1 << 28});
  if (run.status === 0) return {logprobs: JSON.parse(run.stdout).logprobs};
  const words = run.stderr.trim().split("\n");
  return {refused: words.find((line) => /error/.test(line)) ?? words.at(-1), status: run.status};
}

// Of two lists of factors llama.cpp takes one by the length of its context, of at least 256 tokens, and the program by that of the
// row: the lists are made one.
function withOneList({tensors, ...rest}) {
  const long = tensors.find(({name}) => name === "rope_factors_long.weight");
  return {...rest, tensors: tensors.map((tensor) => tensor.name === "rope_factors_short.weight" ? {...tensor, data: long.data} : tensor)};
}

const work = [];
for (const file of options.files.split(",")) {
  const whole = withOneList(readGguf(file));
  const tokens = whole.keys.find(({key}) => key === "tokenizer.ggml.tokens").value.values.length;
  const context = Number(whole.keys.find(({key}) => key.endsWith(".context_length")).value);
  const row = Array.from({length: Math.min(kRow, context)}, (_, i) => 3 + (11 * i * i + 17 * i) % (tokens - 3));
  const name = path.basename(file, ".gguf");
  for (const [what, edit] of [["nothing", (f) => f], ...changesOf(whole)]) {
    const first = what === "nothing";
    if (first || `${name}: ${what}`.includes(options.only)) work.push({name: `${name}: ${what}`, edit, whole, row, first});
  }
}
for (let i = work.length - 1; i > 0; i--) {
  const j = random(i + 1);
  [work[i], work[j]] = [work[j], work[i]];
}
const order = [...work.filter((w) => w.first), ...work.filter((w) => !w.first)];

const llama = new Llama();
const changed = path.join(scratch, "changed.gguf");
const until = Date.now() + 1000 * Number(options.seconds);
const counts = {equal: 0, refused: 0, "refused by us alone": 0};
const tolerance = Number(options.tolerance);
// llama.cpp has GELU from a table of 16 bits. Architectures that compute it have a wide limit, and the exact one where nothing that
// went through GELU goes on.
const usesGelu = ({keys}) => /^gemma/.test(keys.find(({key}) => key === "general.architecture")?.value ?? "");
const withoutGelu = ({tensors, ...rest}) => ({...rest, tensors: tensors.map((tensor) =>
  /\.(ffn_down|ffn_down_exps|proj)\.weight$/.test(tensor.name) ? {...tensor, data: Buffer.alloc(tensor.data.length)} : tensor)});
const apart = (a, b) => Math.max(...a.logprobs.map((v, i) => Math.abs(v - b.logprobs[i])));
let failures = 0;
let done = 0;
const fail = (name, what) => { failures++; console.log(`FAIL ${name}: ${what}`); };
for (const {name, edit, whole, row} of order) {
  if (Date.now() > until) break;
  done++;
  try {
    writeGguf(edit(whole), changed);
  } catch (e) {
    continue;  // a value that the key cannot hold
  }
  const theirs = await llama.ask(changed, row);
  const own = ours(changed, row);
  if (own.status !== undefined && own.status !== 2) {
    fail(name, `ended with ${own.status}: ${own.refused}`);
  } else if (theirs.refused && own.refused) {
    counts.refused++;
  } else if (theirs.refused) {
    fail(name, `llama.cpp: ${theirs.refused}; we load it`);
  } else if (own.refused) {
    counts["refused by us alone"]++;
    console.log(`ours  ${name}: ${own.refused.replace(changed, "FILE")}`);
  } else {
    const difference = apart(theirs, own);
    let most = name.endsWith(" as BF16") ? kMostOfBf16 : tolerance;
    if (usesGelu(whole) && difference > most) {
      most = kMostOfGelu;
      writeGguf(withoutGelu(edit(whole)), changed);
      const [rest, ownRest] = [await llama.ask(changed, row), ours(changed, row)];
      if (rest.logprobs && ownRest.logprobs && !(apart(rest, ownRest) <= tolerance)) {
        fail(name, `without GELU, log-probabilities differ by ${apart(rest, ownRest).toExponential(1)}`);
        continue;
      }
    }
    const nan = theirs.logprobs.some(Number.isNaN) || theirs.logprobs.some((v) => v === null);
    if (difference <= most) counts.equal++;
    else fail(name, `log-probabilities ${nan ? "of llama.cpp are no numbers" : `differ by ${difference.toExponential(1)}`}`);
  }
}
llama.end();
console.log(`seed ${options.seed}: ${done} of ${order.length} changes, ${JSON.stringify(counts)}, ${failures} differences`);
process.exit(failures ? 1 : 0);

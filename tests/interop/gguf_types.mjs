#!/usr/bin/env node
// Every type of `qlora export --outtype` in the programs that read such files: llama.cpp loads it, plain and with an
// adapter, and makes the same tokens; its perplexity is within what the type is known to lose; the program's own
// log-probabilities are llama.cpp's of the values that the blocks stand for; @huggingface/gguf reads its header.
//
//   node tests/interop/gguf_types.mjs --qlora build/release/bin/qlora --model DIR --text FILE --train FILE
//        [--tokens 400] [--only TYPE] [--experts DIR]
//
// --model: a small Llama, whose twin of rows of 256 values is taken; --train: data for an adapter; --experts: a model
// with experts, for MXFP4. Needs `npm install --ignore-scripts`. Exit status: 0 equal, 1 differences, 77 skipped.
import fs from "node:fs";
import path from "node:path";
import {createContext, loadGguf, logprobs, programRunner, rowsOf, startLlama} from "./llama_peer.mjs";
import {load, readOptions, scratchFolder} from "./peer.mjs";
import {writeWideTwin} from "./wide_model.mjs";

// Type of the gate of layer 0 in ggml's words, general.file_type, and the most nats per token by which the file's loss
// may exceed that of the F16 file. Measured on the stories of examples/base-1m, without and with an adapter: 8 bits
// 0.003, 6 bits 0.007, 5 bits 0.007, 4 bits 0.028, 3 bits 0.051, 2 bits 0.16; the limits are two to three times these.
// The wide twin of stories260K, a model without this text's regularity, loses 0.001, 0.002, 0.008, 0.025, 0.078 and 0.4.
const kTypes = {
  f32: ["F32", 0, 1e-3], f16: ["F16", 1, 0], bf16: ["BF16", 32, 5e-3], q8_0: ["Q8_0", 7, 0.01], q6_k: ["Q6_K", 18, 0.02],
  q5_k_m: ["Q5_K", 17, 0.02], q5_k_s: ["Q5_K", 16, 0.02], q5_1: ["Q5_1", 9, 0.02], q5_0: ["Q5_0", 8, 0.02],
  q4_k_m: ["Q4_K", 15, 0.07], q4_k_s: ["Q4_K", 14, 0.07], q4_1: ["Q4_1", 3, 0.07], q4_0: ["Q4_0", 2, 0.07],
  iq4_nl: ["IQ4_NL", 25, 0.07], iq4_xs: ["IQ4_XS", 30, 0.07],
  q3_k_l: ["Q3_K", 13, 0.12], q3_k_m: ["Q3_K", 12, 0.12], q3_k_s: ["Q3_K", 11, 0.12],
  q2_k: ["Q2_K", 10, 0.4], q2_k_s: ["Q2_K", 21, 0.4],
  // Only experts are MXFP4.
  mxfp4_moe: ["Q8_0", 38, 0.01], mxfp4: ["Q8_0", 38, 0.01], auto: ["F16", 1, 0.01],
};

// Values and bytes of a block.
const kBlocks = {F32: [1, 4], F16: [1, 2], BF16: [1, 2], Q8_0: [32, 34], Q6_K: [256, 210], Q5_K: [256, 176], Q5_1: [32, 24],
  Q5_0: [32, 22], Q4_K: [256, 144], Q4_1: [32, 20], Q4_0: [32, 18], IQ4_NL: [32, 18], IQ4_XS: [256, 136], Q3_K: [256, 110],
  Q2_K: [256, 84], MXFP4: [32, 17]};

const {gguf, GGMLQuantizationType} = await load("@huggingface/gguf");
const options = readOptions({tokens: 400, only: "", experts: ""}, ["qlora", "model", "text", "train"],
  "gguf_types.mjs --qlora PROGRAM --model DIR --text FILE --train FILE");
const llama = await startLlama();
const scratch = scratchFolder();
const qlora = programRunner(options.qlora);
const file = (name) => path.join(scratch, name);
const text = fs.readFileSync(options.text, "utf8");

let failures = 0;
function check(name, good, detail) {
  if (good) return;
  failures++;
  console.log(`FAIL ${name}: ${detail}`);
}
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const farthest = (a, b) => a.length === b.length && a.length > 0 ? Math.max(...a.map((value, i) => Math.abs(value - b[i]))) : Infinity;
const kMostDifference = 1e-4;  // float32 sums in another order
// llama.cpp rounds the activations of products with blocks to 8 bits; the errors of tokens cancel but for this.
const kMostShift = 0.02;

// Log-probabilities by llama.cpp of `rows`, or of the text, plain and with each adapter.
async function theirs(model, rows, adapters) {
  const loaded = await loadGguf(llama, model);
  const ids = Array.from(loaded.tokenize(text)).slice(0, Number(options.tokens));
  rows ??= rowsOf(loaded, ids, 120);
  const found = [];
  for (const adapter of adapters) {
    const context = await createContext(loaded, adapter);
    const sequence = context.getSequence();
    const values = [];
    for (const row of rows) values.push(...await logprobs(sequence, row));
    found.push(values);
    await context.dispose();
  }
  await loaded.dispose();
  return {ids, rows, found};
}

function ours(model, rows, ...args) {
  fs.writeFileSync(file("rows.jsonl"), rows.map((row) => JSON.stringify({input_ids: row})).join("\n") + "\n");
  return JSON.parse(qlora("eval", "--model", model, ...args, "--dataset", file("rows.jsonl"), "--per-token",
    "--load-in-4bit", "false", "--compute-dtype", "float32", "--json")).logprobs;
}

// The header as another reader sees it: the number of the type, the type of the gates, and tensors side by side that
// fill the file.
async function checkHeader(type, model, base, number) {
  const {metadata, tensorInfos, tensorDataOffset} = await gguf(model, {allowLocalFile: true});
  check(`${type} file type`, metadata["general.file_type"] === number, `${metadata["general.file_type"]}, ${number} is expected`);
  const name = (info) => GGMLQuantizationType[info.dtype];
  const gate = name(tensorInfos.find((info) => /^blk\.0\.ffn_gate(_exps)?\.weight$/.test(info.name)));
  check(`${type} gate`, gate === base, `${gate}, ${base} is expected`);
  let end = Number(tensorDataOffset);
  for (const info of tensorInfos.toSorted((a, b) => Number(a.offset - b.offset))) {
    const begin = Number(tensorDataOffset) + Number(info.offset);
    check(`${type} ${info.name}`, begin === Math.ceil(end / 32) * 32, `begins at ${begin}, the one before ends at ${end}`);
    const [values, bytes] = kBlocks[name(info)];
    end = begin + Number(info.shape.reduce((product, n) => product * n, 1n)) / values * bytes;
  }
  const size = fs.statSync(model).size;
  check(`${type} size`, size === end || size === Math.ceil(end / 32) * 32, `${size}, the tensors end at ${end}`);
}

// model: what is exported; adapter: null, or a folder and its GGUF file; reference: what this found of the F16 file, or
// null; base: the type of the gate where it is another than in kTypes.
async function compareType(type, model, adapter, reference, base = kTypes[type][0]) {
  const [, number, most] = kTypes[type];
  const written = file(`${type}.gguf`), decoded = file("decoded.gguf");
  const importance = type === "q2_k_s" ? ["--imatrix", options.text, "--imatrix-tokens", "4096"] : [];
  qlora("export", model, written, "--outtype", type, ...importance, "--no-verify", "--overwrite");
  qlora("export", written, decoded, "--outtype", "f32", "--no-verify", "--overwrite");
  await checkHeader(type, written, base, number);
  const adapters = adapter ? [null, adapter.gguf] : [null];
  const exact = await theirs(decoded, reference?.rows, adapters);
  const rounded = await theirs(written, exact.rows, adapters);
  check(`${type} token ids`, !reference || rounded.ids.join() === reference.ids.join(), "other ids than of the F16 file");
  adapters.forEach((lora, i) => {
    const name = lora ? `${type} with an adapter` : type;
    const own = ours(written, exact.rows, ...(lora ? ["--adapter", adapter.folder] : []));
    const difference = farthest(own, exact.found[i]);
    check(`${name} log-probabilities`, difference <= kMostDifference, `up to ${difference.toExponential(2)} from llama.cpp's`);
    const shift = mean(rounded.found[i]) - mean(exact.found[i]);
    check(`${name} as blocks`, Math.abs(shift) <= kMostShift, `llama.cpp's own products shift the mean by ${shift.toExponential(2)}`);
    let line = `${name}: ours differ by at most ${difference.toExponential(1)}, llama.cpp's 8-bit products shift the mean by ${shift.toFixed(4)}`;
    if (reference) {
      const loss = mean(reference.found[i]) - mean(rounded.found[i]);
      check(`${name} loss`, loss <= most, `${loss.toFixed(4)} nats more than of F16, at most ${most} is expected`);
      line += `, ${loss.toFixed(4)} nats lost to F16 (at most ${most})`;
    }
    console.log(line);
  });
  if (adapter) check(`${type} adapter`, farthest(exact.found[0], exact.found[1]) > 0.01, "the adapter has no effect");
  fs.rmSync(written);
  return rounded;
}

const help = qlora("export", "--help").replace(/\s+/g, " ");
const offered = /--outtype TEXT .*?one of ([^[]*) \[/.exec(help)[1].trim().split(/,\s*/);
const unknown = offered.filter((type) => !(type in kTypes));
check("types", offered.length > 10 && unknown.length === 0, `no bound for ${unknown}`);

if (options.experts) {
  await compareType("mxfp4", options.experts, null, null, "MXFP4");
  // Rows of 32 values: the larger blocks give way to smaller ones.
  await compareType("q4_k_m", options.experts, null, null, "Q5_0");
  await compareType("iq4_xs", options.experts, null, null, "IQ4_NL");
}
const wide = file("wide");
writeWideTwin(options.model, wide);
const adapter = {folder: file("adapter"), gguf: file("adapter.gguf")};
qlora("train", "--model", wide, "--dataset", options.train, "--output_dir", adapter.folder, "--load-in-4bit", "false",
  "--max_steps", "6", "--learning_rate", "5e-3", "--max_length", "96", "--over_long", "truncate",
  "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1");
qlora("export", wide, adapter.gguf, "--adapter", adapter.folder, "--format", "gguf-adapter", "--outtype", "f32", "--no-verify");
const reference = await compareType("f16", wide, adapter, null);
for (const type of offered) {
  if (type !== "f16" && (!options.only || type === options.only)) await compareType(type, wide, adapter, reference);
}
console.log(failures ? `${failures} checks failed` : "all checks passed");
process.exit(failures ? 1 : 0);

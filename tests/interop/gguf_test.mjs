#!/usr/bin/env node
// Exported GGUF files in the real llama.cpp: the same token ids, the same greedy text, and the
// log-probability of every token as `qlora eval` computes it. For Q8_0, llama.cpp rounds activations
// to 8 bits as well, which no file can undo: there the mean log-probability is compared.
//
//   node tests/interop/gguf_test.mjs --qlora build/release/bin/qlora \
//        --model DIR --text FILE [--adapter DIR] [--tokens 400] [--rounded no] [--tolerance 1e-3]
//
// --rounded no: without files in Q8_0, for models whose routers choose other experts then.
// Needs `npm install --ignore-scripts` in tests/interop. Exit status: 0 equal, 1 differences, 77 skipped.
import fs from "node:fs";
import path from "node:path";
import {createContext, loadGguf, logprobs, programRunner, rowsOf, startLlama} from "./llama_peer.mjs";
import {readOptions, scratchFolder} from "./peer.mjs";

const options = readOptions({tokens: 400, tolerance: 1e-3}, ["qlora", "model", "text"],
  "gguf_test.mjs --qlora PROGRAM --model DIR --text FILE [--adapter DIR]");
const llama = await startLlama();
const scratch = scratchFolder();
const qlora = programRunner(options.qlora);

const text = fs.readFileSync(options.text, "utf8");
const prompt = text.slice(0, 40).trim();
let failures = 0;
function check(name, good, detail) {
  console.log(`${good ? "ok  " : "FAIL"} ${name}: ${detail}`);
  if (!good) failures++;
}

// file, lora: what llama.cpp runs; args: what makes qlora compute the same.
async function compare(name, file, lora, args, tolerance) {
  const model = await loadGguf(llama, file);
  const ids = Array.from(model.tokenize(text)).slice(0, options.tokens);
  if (name === "f32") {
    const lines = path.join(scratch, "texts.jsonl");
    const texts = text.split("\n").filter((line) => line.length).slice(0, 200);
    fs.writeFileSync(lines, texts.map((line) => JSON.stringify(line)).join("\n") + "\n");
    const ours = qlora("tokenize", "--model", options.model, "--jsonl", lines, "--no-special").trim().split("\n");
    // Names of special tokens in a text are those tokens, as in Hugging Face's tokenizers.
    const theirs = (line) => JSON.stringify(Array.from(model.tokenize(line, true)));
    const equal = texts.filter((line, i) => JSON.stringify(JSON.parse(ours[i]).ids) === theirs(line));
    check("token ids", equal.length === texts.length, `${equal.length} of ${texts.length} lines equal`);
  }
  const bos = model.tokens.bos;
  // llama.cpp has no sliding window for some families; a context no longer than the window hides that.
  const length = Math.min(120, model.trainContextSize - 1);
  const rows = rowsOf(model, ids, length);
  const data = path.join(scratch, "rows.jsonl");
  fs.writeFileSync(data, rows.map((row) => JSON.stringify({input_ids: row})).join("\n") + "\n");
  const ours = JSON.parse(qlora("eval", "--model", options.model, ...args, "--dataset", data, "--per-token",
    "--compute-dtype", "float32", "--json")).logprobs;

  const session = await createContext(model, lora);
  const sequence = session.getSequence();
  const theirs = [];
  for (const row of rows) theirs.push(...await logprobs(sequence, row));
  const average = (f) => theirs.reduce((sum, value, i) => sum + f(value - ours[i]), 0) / theirs.length;
  const mean = average(Math.abs), shift = Math.abs(average((d) => d));
  const rounded = tolerance > 5e-3;
  check(`${name} log-probabilities`, theirs.length === ours.length && (rounded ? shift : mean) <= tolerance,
    `${theirs.length} tokens, mean difference ${mean.toExponential(2)}, of the mean ${shift.toExponential(2)} ` +
    `(at most ${tolerance}${rounded ? " of the mean" : ""})`);

  if (!rounded && length === 120) {
    await sequence.clearHistory();
    const prompt_ids = [...(model.tokens.shouldPrependBosToken ? [bos] : []), ...model.tokenize(prompt)];
    const generated = [];
    for await (const token of sequence.evaluate(prompt_ids, {temperature: 0, yieldEogToken: true})) {
      if (generated.length >= 40 || model.isEogToken(token)) break;
      generated.push(token);
    }
    const theirText = model.detokenize([...prompt_ids, ...generated]).replace(/^<s>\s?/, "");
    const ourText = JSON.parse(qlora("generate", "--model", options.model, ...args, "--prompt", prompt,
      "--max-new-tokens", "40", "--compute-dtype", "float32", "--json")).text;
    // A random model writes bytes that are no text, which the two programs replace differently.
    if (theirText.includes("\uFFFD")) console.log(`     ${name} greedy text: not compared, it is not UTF-8`);
    else check(`${name} greedy text`, theirText.trim().endsWith(ourText.trim()) && ourText.length > 0, JSON.stringify(ourText.slice(0, 60)));
  }
  await session.dispose();
  await model.dispose();
}

const file = (name) => path.join(scratch, name + ".gguf");
// A copy under a plain name: llama.cpp treats models in a way of its own by what they are called.
const folder = path.join(scratch, "model");
fs.cpSync(options.model, folder, {recursive: true, dereference: true});
// llama.cpp picks longrope's long factors by its context size, which is never as small as these models'.
const configFile = path.join(folder, "config.json");
const config = JSON.parse(fs.readFileSync(configFile, "utf8"));
if (config.rope_scaling?.long_factor) {
  config.rope_scaling.long_factor = config.rope_scaling.short_factor;
  fs.chmodSync(configFile, 0o644);
  fs.writeFileSync(configFile, JSON.stringify(config));
}
const model = ["--model", folder];
const dense = ["--load-in-4bit", "false"];
qlora("export", ...model, "--outtype", "f32", "--output", file("f32"));
await compare("f32", file("f32"), null, dense, options.tolerance);
const rounded = options.rounded !== "no";
// The embedding and the head are rounded to 8 bits as well, so that the mean shifts a little.
const kShift = 2e-2;
if (rounded) {
  qlora("export", ...model, "--outtype", "q8_0", "--output", file("q8_0"));
  await compare("q8_0", file("q8_0"), null, dense, kShift);
}
qlora("export", ...model, "--merge-base", "nf4", "--outtype", "f32", "--output", file("nf4"));
await compare("nf4 base as f32", file("nf4"), null, ["--load-in-4bit", "true"], options.tolerance);
if (options.adapter) {
  const adapter = ["--adapter", options.adapter];
  qlora("export", ...model, ...adapter, "--merge-base", "nf4", "--outtype", "f32", "--output", file("merged"));
  await compare("adapter merged into nf4", file("merged"), null, [...adapter, "--load-in-4bit", "true"], options.tolerance);
  if (rounded) {
    qlora("export", ...model, ...adapter, "--merge-base", "original", "--outtype", "q8_0", "--output", file("merged8"));
    await compare("adapter merged into original, q8_0", file("merged8"), null, [...adapter, ...dense], kShift);
  }
  qlora("export", ...model, ...adapter, "--format", "gguf-adapter", "--outtype", "f32", "--output", file("adapter"));
  await compare("adapter gguf over nf4", file("nf4"), file("adapter"), [...adapter, "--load-in-4bit", "true"], options.tolerance);
}
console.log(failures ? `${failures} checks failed` : "all checks passed");
process.exit(failures ? 1 : 0);

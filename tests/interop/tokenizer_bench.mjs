#!/usr/bin/env node
// The speed of `qlora-bench tokenizer` beside that of @huggingface/tokenizers (npm), on the same tokenizer and text.
//
//   node tests/interop/tokenizer_bench.mjs --bench build/release/bin/qlora-bench [--model DIR] [--text FILE] [--threads 2]
//        (default: the largest tokenizer and the longest text of $QLORA_SHARED/data)
//
// Prints; it judges nothing. Exit status: 0, or 77 skipped.
import {execFileSync} from "node:child_process";
import fs from "node:fs";
import {createRequire} from "node:module";
import path from "node:path";
import {fileURLToPath} from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const shared = process.env.QLORA_SHARED ?? path.join(here, "../../../shared");
const options = {bench: "", model: path.join(shared, "data/tokenizers/llama-bpe"),
                 text: path.join(shared, "data/tinyshakespeare.txt"), threads: "2"};
const argv = process.argv.slice(2);
for (let i = 0; i + 1 < argv.length; i += 2) options[argv[i].slice(2)] = argv[i + 1];

for (const needed of [options.model, options.text]) {
  if (fs.existsSync(needed)) continue;
  console.log(`SKIPPED: there is no ${needed}`);
  process.exit(77);
}
let Tokenizer;
try {
  const modules = process.env.JINJA_NODE_MODULES;
  ({Tokenizer} = createRequire(modules ? path.join(modules, "x.js") : import.meta.url)("@huggingface/tokenizers"));
} catch (e) {
  console.log("SKIPPED: npm package \"@huggingface/tokenizers\" is not installed (npm install in tests/interop)");
  process.exit(77);
}

const bench = JSON.parse(execFileSync(options.bench, ["tokenizer", "--model", options.model, "--text_file",
                                             options.text, "--threads", options.threads, "--json"]));
for (const row of bench.results) {
  console.log(`qlora ${row.op}, ${row.threads} thread(s), ${row.shape}: ${row.value.toFixed(1)} MB/s`);
}

const read = (name) => JSON.parse(fs.readFileSync(path.join(options.model, name), "utf8"));
const tokenizer = new Tokenizer(read("tokenizer.json"), read("tokenizer_config.json"));
const text = fs.readFileSync(options.text, "utf8");
const lines = text.split(/(?<=\n)/);
let best = Infinity;
for (let round = 0; round < 3; round++) {
  const start = performance.now();
  for (const line of lines) tokenizer.encode(line);
  best = Math.min(best, (performance.now() - start) / 1000);
}
console.log(`@huggingface/tokenizers encode, 1 thread: ${(Buffer.byteLength(text) / best / 1e6).toFixed(1)} MB/s`);

#!/usr/bin/env node
// Prefill and decode speed of a GGUF in the real llama.cpp, as JSON on standard output.
//
//   node bench/peers/llama.mjs MODEL.gguf [PROMPT_TOKENS 512] [NEW_TOKENS 32] [THREADS 2]
//
// Needs `npm install --ignore-scripts` in tests/interop.
import {createRequire} from "node:module";
import path from "node:path";
import {fileURLToPath, pathToFileURL} from "node:url";

const [file, prompt = 512, fresh = 32, threads = 2] = process.argv.slice(2);
if (!file) {
  console.error("usage: llama.mjs MODEL.gguf [PROMPT_TOKENS] [NEW_TOKENS] [THREADS]");
  process.exit(2);
}
const interop = path.join(path.dirname(fileURLToPath(import.meta.url)), "../../tests/interop/");
const {getLlama} = await import(
  pathToFileURL(createRequire(pathToFileURL(interop)).resolve("node-llama-cpp")).href);
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false,
  maxThreads: Number(threads), logLevel: "error"});
const model = await llama.loadModel({modelPath: file, ignoreMemorySafetyChecks: true});
const context = await model.createContext({contextSize: Number(prompt) + Number(fresh) + 8,
  batchSize: Number(prompt), sequences: 1, threads: Number(threads),
  ignoreMemorySafetyChecks: true});
const sequence = context.getSequence();
const tokens = Array.from({length: Number(prompt)}, (_, i) => 10 + (i % 100));

let prefill = Infinity;
let decode = Infinity;
for (let round = 0; round < 3; ++round) {
  await sequence.clearHistory();
  let start = performance.now();
  await sequence.evaluateWithoutGeneratingNewTokens(tokens);
  prefill = Math.min(prefill, performance.now() - start);
  start = performance.now();
  for (let i = 0; i < Number(fresh); ++i) {
    await sequence.evaluateWithoutGeneratingNewTokens([10 + i]);
  }
  decode = Math.min(decode, (performance.now() - start) / Number(fresh));
}
console.log(JSON.stringify({prefill_tokens_per_second: 1000 * prompt / prefill,
  decode_tokens_per_second: 1000 / decode}));
process.exit(0);

// llama.cpp and the program under test as the comparisons run them.
import {spawnSync} from "node:child_process";
import {load} from "./peer.mjs";

// args => standard output of the program; a failure ends this one with 1.
export function programRunner(program) {
  return (...args) => {
    const run = spawnSync(program, args, {encoding: "utf8", maxBuffer: 1 << 30});
    if (run.status !== 0) {
      console.error(`qlora ${args.join(" ")}\nfailed with status ${run.status}:\n${run.stderr}`);
      process.exit(1);
    }
    return run.stdout;
  };
}

// llama.cpp on one thread of the processor. Without node-llama-cpp, the program ends with 77.
export async function startLlama() {
  const llamaCpp = await load("node-llama-cpp");
  return llamaCpp.getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false, maxThreads: 1, logLevel: "error"});
}

export const loadGguf = (llama, file) =>
  llama.loadModel({modelPath: file, gpuLayers: 0, checkTensors: true, ignoreMemorySafetyChecks: true});

// lora: an adapter GGUF, or null.
export const createContext = (model, lora) =>
  // Not longer than the model's own context: longrope picks its factors by this size.
  model.createContext({contextSize: Math.min(512, model.trainContextSize), batchSize: 256, sequences: 1, threads: 1,
    flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32",
    ignoreMemorySafetyChecks: true, ...(lora ? {lora: {adapters: [{filePath: lora, scale: 1}]}} : {})});

// `ids` in rows of at most `length`, each after BOS where the model has one.
export function rowsOf(model, ids, length) {
  const bos = model.tokens.bos;
  const rows = [];
  for (let i = 0; i < ids.length; i += length) rows.push([...(bos == null ? [] : [bos]), ...ids.slice(i, i + length)]);
  return rows;
}

// Log-probability of each token of a row but the first.
export async function logprobs(sequence, row) {
  await sequence.clearHistory();
  const input = row.map((token, i) => i + 1 === row.length ? token : [token, {generateNext: {
    logits: {filter: {tokens: [row[i + 1]], includeTop: 1}}, totalLogitWeight: true, options: {temperature: 0}}}]);
  const found = [];
  const results = await sequence.controlledEvaluate(input);
  results.forEach((result, i) => {
    const next = result?.next;
    if (!next?.logits || i + 1 >= row.length) return;
    const weight = typeof next.totalLogitWeight === "number" ? next.totalLogitWeight : next.totalLogitWeight.weight;
    const most = Math.max(...next.logits.values());
    found.push(next.logits.get(row[i + 1]) - most - Math.log(weight));
  });
  return found;
}

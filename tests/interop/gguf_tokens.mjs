#!/usr/bin/env node
// Tokenizers of GGUF files, read by the real llama.cpp and by `qlora tokenize`: ids of random texts with
// special tokens in them, the text of random ids, and which tokens end a generation. The files have no
// weights and made-up vocabularies: with all pairs of bytes as merges, ids show where words were cut.
//
//   node tests/interop/gguf_tokens.mjs --qlora build/release/bin/qlora [--strings 400] [--seed 1] [--only NAME]
//
// Needs `npm install --ignore-scripts` in tests/interop. Exit status: 0 equal, 1 differences, 77 skipped.
import {spawnSync} from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import {fileURLToPath} from "node:url";
import {randomTexts} from "./random_texts.mjs";
import {load, readOptions, scratchFolder} from "./peer.mjs";

const llamaCpp = await load("node-llama-cpp");
const options = readOptions({strings: 400, seed: 1, only: ""}, ["qlora"],
  "gguf_tokens.mjs --qlora PROGRAM [--strings N] [--seed N] [--only NAME]");
const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "../..");
const scratch = scratchFolder();
const {random, below, pick, times, piece} = randomTexts(Number(options.seed));

// Values of GGUF: a type and what writes it.
const number = (type, bytes, write) => (value) => {
  const buffer = Buffer.alloc(bytes);
  buffer[write](value);
  return {type, buffer};
};
const u32 = number(4, 4, "writeUInt32LE"), i32 = number(5, 4, "writeInt32LE"), f32 = number(6, 4, "writeFloatLE");
const bool = (value) => ({type: 7, buffer: Buffer.from([value ? 1 : 0])});
const u64 = (value) => number(10, 8, "writeBigUInt64LE")(BigInt(value)).buffer;
const text = (value) => {
  const bytes = Buffer.from(value);
  return {type: 8, buffer: Buffer.concat([u64(bytes.length), bytes])};
};
const array = (make, values) => ({type: 9, buffer: Buffer.concat([u32(make(values[0]).type).buffer, u64(values.length),
  ...values.map((v) => make(v).buffer)])});
function writeGguf(file, keys) {
  const parts = [Buffer.from("GGUF"), u32(3).buffer, u64(0), u64(Object.keys(keys).length)];
  for (const [key, value] of Object.entries(keys)) parts.push(text(key).buffer, u32(value.type).buffer, value.buffer);
  const bytes = Buffer.concat(parts);
  fs.writeFileSync(file, Buffer.concat([bytes, Buffer.alloc((32 - bytes.length % 32) % 32)]));
}
// Enough of a model for llama.cpp to read its vocabulary.
const model = {"general.architecture": text("llama"), "llama.block_count": u32(1), "llama.context_length": u32(64),
  "llama.embedding_length": u32(32), "llama.feed_forward_length": u32(32), "llama.attention.head_count": u32(1),
  "llama.attention.layer_norm_rms_epsilon": f32(1e-5)};

const [NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE] = [1, 2, 3, 4, 5, 6];
// The characters of the bytes, as GPT-2 writes them.
const byteCharacters = [];
for (let byte = 0, next = 256; byte < 256; byte++) {
  const own = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  byteCharacters.push(String.fromCodePoint(own ? byte : next++));
}
const shuffled = (list) => {
  for (let i = list.length - 1; i > 0; i--) {
    const j = below(i + 1);
    [list[i], list[j]] = [list[j], list[i]];
  }
  return list;
};

// Overlapping texts, texts with a role, white space.
const specials = [["<|im_start|>", CONTROL], ["<|im_end|>", CONTROL], ["<|endoftext|>", NORMAL], ["<s>", CONTROL], ["</s>", USER],
  ["<unk>", UNKNOWN], ["<|a|>", CONTROL], ["<|a|>x", USER], ["|>x<|", USER], ["<|b|>", USER], ["  ", USER], ["\n\n", USER],
  ["été", USER], ["tool", USER], ["<|fim_pad|>", NORMAL], ["<|channel|>", CONTROL], ["[PAD9]", UNUSED]];

// drop: bytes that have no token.
function byteLevel(pre, extra = {}, drop = []) {
  const dropped = new Set(drop.map((b) => byteCharacters[b]));
  const kept = byteCharacters.filter((c) => !dropped.has(c));
  const pairs = kept.flatMap((a) => kept.map((b) => [a, b]));
  const triples = Array.from({length: 3000}, () => [pick(pairs).join(""), pick(kept)]);
  const merges = shuffled([...pairs, ...new Map(triples.map((t) => [t.join(""), t])).values()]);
  // Whole words that no merge gives.
  const words = ["hello", "\u0120world", "123", "\u0120the", "1234", "\u0120\u0120\u0120", "tokenizer"].filter((w) => ![...w].some((c) => dropped.has(c)));
  const tokens = [...new Set([...kept, ...merges.map((m) => m.join("")), ...words])].map((t) => [t, NORMAL]);
  const all = [...tokens, ...specials];
  return {
    ...(pre === null ? {} : {"tokenizer.ggml.pre": text(pre)}),
    "tokenizer.ggml.model": text("gpt2"), "tokenizer.ggml.tokens": array(text, all.map((t) => t[0])),
    "tokenizer.ggml.token_type": array(i32, all.map((t) => t[1])),
    "tokenizer.ggml.merges": array(text, merges.map((m) => m.join(" "))),
    "tokenizer.ggml.bos_token_id": u32(tokens.length), "tokenizer.ggml.eos_token_id": u32(tokens.length + 1), ...extra,
  };
}

// scores: "random" of few different values, "none", or "rank".
function sentencePiece(scores, extra = {}, name = "") {
  const letters = [..."▁abcdefghijklmnopqrstuvwxyzABCDEH.,'\"1é語\u0301"];
  const parts = new Set(letters);
  while (parts.size < 3000) {
    const joined = pick([...parts]) + pick(random() < 0.5 ? letters : [...parts]);
    if (joined.length <= 8 && (random() < 0.2 || !/.▁/u.test(joined))) parts.add(joined);
  }
  for (const whole of ["▁the", "hello", "▁world", "▁▁", "▁▁▁▁", "xﬁne", "中文"]) parts.add(whole);
  // Without tokens of their own, although longer ones have them.
  for (const gone of ["q", "é", "語"]) parts.delete(gone);
  const bytes = Array.from({length: 256}, (_, b) => [`<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`, BYTE]);
  const specialTexts = new Set(specials.map((t) => t[0]));
  const all = [["<unk>", UNKNOWN], ["<s>", CONTROL], ["</s>", CONTROL], ...bytes,
    ...[...parts].filter((p) => !specialTexts.has(p)).map((p) => [p, NORMAL]),
    ...specials.filter((t) => !["<unk>", "<s>", "</s>"].includes(t[0]))];
  const keys = {
    "tokenizer.ggml.model": text("llama"), "tokenizer.ggml.pre": text("default"),
    "tokenizer.ggml.tokens": array(text, all.map((t) => t[0])), "tokenizer.ggml.token_type": array(i32, all.map((t) => t[1])), ...extra,
  };
  if (scores !== "none") keys["tokenizer.ggml.scores"] = array(f32, all.map((_, i) => scores === "rank" ? -i : -below(40) / 4));
  if (name) keys["general.name"] = text(name);
  return keys;
}

// Pieces as of SentencePiece, and merges in place of scores; one of line feeds that no merge gives.
function mergedPieces() {
  const letters = [..."▁abcdefghijklmnopqrstuvwxyzABCDEH.,'\"1語\n"];
  const parts = new Set(letters), merges = [];
  while (merges.length < 3000) {
    const pair = [pick([...parts]), pick(random() < 0.5 ? letters : [...parts])];
    if (pair.join("").length > 8 || parts.has(pair.join(""))) continue;
    parts.add(pair.join(""));
    merges.push(pair);
  }
  for (const whole of ["hello", "▁world", "\n\n\n", "xﬁne"]) parts.add(whole);
  const bytes = Array.from({length: 256}, (_, b) => [`<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`, BYTE]);
  const own = specials.map((t) => t[0]);
  const all = [["<unk>", UNKNOWN], ["<s>", CONTROL], ["</s>", CONTROL], ...bytes, ...[...parts].filter((p) => !own.includes(p)).map((p) => [p, NORMAL]),
    ...specials.filter((t) => !["<unk>", "<s>", "</s>"].includes(t[0]) && !parts.has(t[0]))];
  const known = new Set(all.map((t) => t[0]));
  return {
    "tokenizer.ggml.model": text("gemma4"), "tokenizer.ggml.tokens": array(text, all.map((t) => t[0])),
    "tokenizer.ggml.token_type": array(i32, all.map((t) => t[1])),
    "tokenizer.ggml.merges": array(text, merges.filter((m) => [...m, m.join("")].every((t) => known.has(t))).map((m) => m.join(" "))),
    "tokenizer.ggml.bos_token_id": u32(1), "tokenizer.ggml.eos_token_id": u32(2),
  };
}

// Characters that Unicode 16 added: llama.cpp's tables are older than those of tokenizer.json.
const newer = new RegExp("[" + ("897 1b4e-1b4f 1b7f 1c89-1c8a 2427-2429 31e4-31e5 a7cb-a7cd a7da-a7dc 105c0-105f3 10d40-10d8f 10ec2-10ec4 " +
  "10efc 11380-113e2 116d0-116e3 11bc0-11bf9 11f5a 13460-143fa 16100-16139 16d40-16d79 18cff 1cc00-1ceb3 1e5d0-1e5ff 1f8b2-1f8c1 " +
  "1fa89 1fa8f 1fabe 1fac6 1fadc 1fadf 1fae9 1fbcb-1fbef").split(" ").map((range) => range.split("-").map((c) => `\\u{${c}}`).join("-")).join("") + "]", "gu");

const names = fs.readFileSync(path.join(root, "src/tokenizer/gguf/gguf_pre_tokenizers.cc"), "utf8").matchAll(/^ {4}\{"([^"]+)", Rule/gm);
const cases = [...names].map(([, name]) => [name, () => byteLevel(name)]);
cases.push(["no pre", () => byteLevel(null)],
  ["no ids", () => { const keys = byteLevel("qwen2"); delete keys["tokenizer.ggml.bos_token_id"]; delete keys["tokenizer.ggml.eos_token_id"]; return keys; }],
  ["no types", () => { const keys = byteLevel("qwen2"); delete keys["tokenizer.ggml.token_type"]; return keys; }],
  ["missing bytes", () => byteLevel("gpt-2", {}, [0x71, 0xc3, 0xe2, 0x20, 0x0a])],
  ["eot and eom", () => byteLevel("qwen2", {"tokenizer.ggml.eot_token_id": u32(17), "tokenizer.ggml.eom_token_id": u32(18)})],
  ["ends of gpt-oss", () => byteLevel("gpt-4o", {"tokenizer.ggml.eos_token_id": u32(3)})],
  ["scores", () => sentencePiece("random")], ["ranks", () => sentencePiece("rank")], ["no scores", () => sentencePiece("none")],
  ["no space prefix", () => sentencePiece("random", {"tokenizer.ggml.add_space_prefix": bool(false)})],
  ["eos added", () => sentencePiece("random", {"tokenizer.ggml.add_bos_token": bool(false), "tokenizer.ggml.add_eos_token": bool(true)})],
  ["merged pieces", mergedPieces],
  ["phi-3", () => sentencePiece("random", {}, "My Phi-3 mini")]);

const llama = await llamaCpp.getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false, maxThreads: 1, logLevel: "disabled"});

function qlora(args, input) {
  const run = spawnSync(options.qlora, args, {input, encoding: "utf8", maxBuffer: 1 << 30});
  if (run.status !== 0) throw new Error(`qlora ${args.join(" ")}: status ${run.status}: ${run.stderr}`);
  return run.stdout;
}

// Byte-level vocabularies whose texts llama.cpp does not clean.
const plain = new Set(["qwen2", "qwen35", "smollm", "tekken", "gpt-4o", "deepseek-v3", "command-r", "no types", "eot and eom", "ends of gpt-oss"]);
let failures = 0, total = 0, totalLists = 0;
for (const [name, make] of cases) {
  if (options.only && name !== options.only) continue;
  const file = path.join(scratch, "vocabulary.gguf");
  const keys = make();
  writeGguf(file, {...model, ...keys});
  const loaded = await llama.loadModel({modelPath: file, gpuLayers: 0, vocabOnly: true, ignoreMemorySafetyChecks: true});
  const own = {added: specials.map((t) => t[0]), pieces: ["hello", " world", " the", "tokenizer", "123", "1234", "abcab", "▁"]};
  const texts = Array.from({length: Number(options.strings)}, () => times(1 + below(12), () => piece(own)).toWellFormed().replaceAll(newer, ""));
  const lines = qlora(["tokenize", file, "--special", "false", "--jsonl", "-"], texts.map((t) => JSON.stringify(t)).join("\n") + "\n");
  const found = lines.trim().split("\n").map((line) => JSON.parse(line));
  let different = 0;
  texts.forEach((t, i) => {
    const ids = Array.from(loaded.tokenize(t, true));
    if (ids.join() === found[i].ids.join()) return;
    if (different++ < 2) console.log(`  ${JSON.stringify(t)}\n    llama.cpp ${ids}\n    qlora     ${found[i].ids}`);
  });
  // Texts of ids. They begin with a plain token, from which no space is taken; of some byte-level vocabularies
  // llama.cpp leaves out spaces before punctuation afterwards, as old tokenizers did.
  const size = loaded.fileInfo.metadata.tokenizer.ggml.tokens.length;
  const lists = "tokenizer.ggml.merges" in keys && !plain.has(name) ? [] : Array.from({length: Number(options.strings)},
    () => [70, ...Array.from({length: 1 + below(12)}, () => below(random() < 0.5 ? size : 300))]);
  const decoded = lists.length ? qlora(["tokenize", file, "--jsonl", "-"], lists.map((ids) => JSON.stringify(ids)).join("\n") + "\n") : "";
  let otherTexts = 0;
  decoded.trim().split("\n").filter(Boolean).forEach((line, i) => {
    const wanted = loaded.detokenize(lists[i], false), {text: found} = JSON.parse(line);
    if (found !== wanted && otherTexts++ < 2) console.log(`  ${lists[i]}\n    llama.cpp ${JSON.stringify(wanted)}\n    qlora     ${JSON.stringify(found)}`);
  });
  total += texts.length;
  totalLists += lists.length;
  if (different || otherTexts) failures++;
  console.log(`${different || otherTexts ? "FAIL" : "ok  "} ${name}: ${texts.length - different} of ${texts.length} texts have the same ids` +
    (lists.length ? `, ${lists.length - otherTexts} of ${lists.length} lists of ids the same text` : ""));
  await loaded.dispose();
}
console.log(`${total} texts, ${totalLists} lists of ids, ${failures} vocabularies with differences`);
process.exit(failures ? 1 : 0);

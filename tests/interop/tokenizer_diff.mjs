#!/usr/bin/env node
// Random texts through the real Hugging Face tokenizers and through `qlora tokenize`: ids with and
// without special tokens, decoded text, and the text of random ids must be equal.
//
//   node tests/interop/tokenizer_diff.mjs --qlora build/release/bin/qlora [--strings 7000] [--seed 1]
//        [--only NAME] [DIR ...]       (default: tests/fixtures/* and, where there, ../shared)
//   node tests/interop/tokenizer_diff.mjs --write-golden     (tests/fixtures/golden.jsonl)
//
// --program "PATH ARGS": another program that reads JSON lines, given the folder as last argument.
// Needs `npm install` in tests/interop. Exit status: 0 equal, 1 differences, 77 skipped.
import {createRequire} from "node:module";
import {spawnSync} from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import {fileURLToPath} from "node:url";
import {randomTexts} from "./random_texts.mjs";

const here = path.dirname(fileURLToPath(import.meta.url));
const root = path.join(here, "../..");
let Tokenizer;
try {
  ({Tokenizer} = createRequire(import.meta.url)("tokenizers"));
} catch (e) {
  console.log("SKIPPED: npm package \"tokenizers\" is not installed (npm install in tests/interop)");
  process.exit(77);
}

const options = {strings: 7000, seed: 1, folders: []};
const argv = process.argv.slice(2);
for (let i = 0; i < argv.length; i++) {
  const value = () => argv[++i];
  if (argv[i] === "--qlora") options.command = [value(), "tokenize", "--jsonl", "-", "--model"];
  else if (argv[i] === "--program") options.command = value().split(" ");
  else if (argv[i] === "--strings") options.strings = Number(value());
  else if (argv[i] === "--seed") options.seed = Number(value());
  else if (argv[i] === "--only") options.only = value();
  else if (argv[i] === "--write-golden") options.golden = true;
  else options.folders.push(argv[i]);
}
const fixtures = path.join(root, "tests/fixtures");
const shared = process.env.QLORA_SHARED ?? path.join(root, "../shared");
const withTokenizer = (folder) => fs.existsSync(folder) ? fs.readdirSync(folder).sort()
  .map((name) => path.join(folder, name)).filter((d) => fs.existsSync(path.join(d, "tokenizer.json"))) : [];
if (!options.folders.length) {
  options.folders = withTokenizer(fixtures);
  if (!options.golden) options.folders.push(...withTokenizer(path.join(shared, "data/tokenizers")),
    ...withTokenizer(path.join(shared, "models")));
}
if (options.only) options.folders = options.folders.filter((d) => path.basename(d) === options.only);

const {random, below, pick, times, piece} = randomTexts(options.seed);

function ownTexts(json) {
  const bytes = new Map();
  let next = 256;
  for (let b = 0; b < 256; b++) {
    const own = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    bytes.set(String.fromCodePoint(own ? b : next++), b);
  }
  const vocab = json.model.vocab;
  let pieces = Array.isArray(vocab) ? vocab.map((p) => p[0]) : Object.keys(vocab);
  pieces = pieces.filter((p) => p.length).map((p) => [...p].every((c) => bytes.has(c)) && JSON.stringify(json.pre_tokenizer ?? "").includes("ByteLevel")
    ? Buffer.from([...p].map((c) => bytes.get(c))).toString() : p.replaceAll("▁", " "));
  const added = (json.added_tokens ?? []).map((t) => t.content);
  return {pieces, added: added.length ? added : ["<s>"]};
}

// A JSON string as bytes; now and then with ill-formed UTF-8 inside.
function randomLine(own) {
  const text = times(below(6) === 0 ? 1 + below(60) : 1 + below(9), () => piece(own)).toWellFormed();
  let line = Buffer.from(JSON.stringify(text));
  if (below(5) === 0) {
    const bad = () => Buffer.from(Array.from({length: 1 + below(4)}, () => pick([0x80, 0xbf, 0xc0, 0xc3, 0xe2, 0x96, 0xed, 0xa0, 0xf0, 0x9f, 0xf4, 0x90, 0xf8, 0xff])));
    const inside = line.subarray(1, -1);
    const at = below(4) === 0 ? inside.length : 0;
    line = Buffer.concat([Buffer.from("\""), inside.subarray(0, at), bad(), inside.subarray(at), bad(), Buffer.from("\"")]);
  }
  return line;
}

async function expected(tokenizer, line, special) {
  const value = JSON.parse(line.toString());  // ill-formed bytes become U+FFFD
  const ids = typeof value === "string" ? (await tokenizer.encode(value, null, {addSpecialTokens: special})).getIds() : value;
  return {ids: Array.from(ids), text: ids.length ? await tokenizer.decode(Array.from(ids), true) : ""};
}

async function compare(folder) {
  const file = path.join(folder, "tokenizer.json");
  const tokenizer = Tokenizer.fromFile(file);
  const own = ownTexts(JSON.parse(fs.readFileSync(file, "utf8")));
  const size = tokenizer.getVocabSize(true);
  let differences = 0;
  for (const special of [true, false]) {
    const count = Math.ceil(options.strings / 2);
    const lines = Array.from({length: count}, (_, i) => i % 10 === 9
      ? Buffer.from(JSON.stringify(Array.from({length: 1 + below(20)}, () => below(random() < 0.5 ? size : Math.min(size, 300)))))
      : randomLine(own));
    const input = Buffer.concat(lines.flatMap((l) => [l, Buffer.from("\n")]));
    const [program, ...args] = options.command;
    const command = options.command.includes("tokenize")
      ? [...args, folder, ...(special ? [] : ["--no-special"])] : [...args, folder, ...(special ? [] : ["--no-special"])];
    const run = spawnSync(program, command, {input, maxBuffer: 1 << 30});
    if (run.status !== 0) {
      console.log(`${folder}: ${program} failed: ${run.stderr}`);
      return 1;
    }
    const got = run.stdout.toString().trim().split("\n");
    for (let i = 0; i < lines.length; i++) {
      const want = await expected(tokenizer, lines[i], special);
      const have = got[i] === undefined ? null : JSON.parse(got[i]);
      if (JSON.stringify(have) === JSON.stringify(want)) continue;
      if (differences++ < 5) {
        console.log(`${path.basename(folder)}: ${lines[i].toString("latin1")}\n  text  ${JSON.stringify(JSON.parse(lines[i].toString()))}` +
          `\n  want  ${JSON.stringify(want)}\n  have  ${JSON.stringify(have)}`);
      }
    }
  }
  console.log(`${path.basename(folder)}: ${2 * Math.ceil(options.strings / 2)} texts, ${differences} differences`);
  return differences;
}

async function writeGolden() {
  const out = [];
  for (const folder of options.folders) {
    const name = path.basename(folder);
    const tokenizer = Tokenizer.fromFile(path.join(folder, "tokenizer.json"));
    const own = ownTexts(JSON.parse(fs.readFileSync(path.join(folder, "tokenizer.json"), "utf8")));
    const texts = ["", " ", "Hello, world! It's 12345 apples.", "  The cat\n\n  sat.\r\n\tEnd ", ...Array.from({length: 26}, () =>
      times(2 + below(7), () => piece(own)).toWellFormed())];
    for (const text of texts) out.push(JSON.stringify({tokenizer: name, input: text, ...await expected(tokenizer, Buffer.from(JSON.stringify(text)), true)}));
    for (let i = 0; i < 4; i++) {
      const ids = Array.from({length: 1 + below(12)}, () => below(tokenizer.getVocabSize(true)));
      out.push(JSON.stringify({tokenizer: name, ...await expected(tokenizer, Buffer.from(JSON.stringify(ids)), true)}));
    }
  }
  fs.writeFileSync(path.join(fixtures, "golden.jsonl"), out.join("\n") + "\n");
  console.log(`golden.jsonl: ${out.length} lines`);
}

if (options.golden) {
  await writeGolden();
} else {
  if (!options.command) {
    console.log("SKIPPED: no program; give --qlora PATH");
    process.exit(77);
  }
  let total = 0;
  for (const folder of options.folders) total += await compare(folder);
  console.log(total ? `${total} differences` : "all equal");
  process.exit(total ? 1 : 0);
}

#!/usr/bin/env node
// Compares the renderings of chat templates with @huggingface/jinja (npm) and jinja2 (Python).
//
//   node chat_diff.mjs --renderer BUILD/bin/data_tests [--verbose] [--golden FILE] [FILE.jinja ...]
//
// Without files: those of tests/fixtures/chat, of $QLORA_SHARED/data/templates (default: ../shared beside the
// repository) and of the folder $QLORA_TEMPLATES, which may hold published templates of any models. Each template renders the conversations of chat_cases.json, with and without a generation prompt.
// jinja2 is the authority, set up as transformers does; where it cannot be had, @huggingface/jinja is. A case passes
// when the texts are equal, or when the authority refuses and we refuse too or agree with the other engine.
// --golden writes what jinja2 makes of the fixtures, for a test without network.
// JINJA_NODE_MODULES may name a node_modules folder.
// Exit status: 0 equal; 1 a difference; 2 usage; 77 skipped because neither engine can be had.
import {execFileSync, spawnSync} from "node:child_process";
import fs from "node:fs";
import {createRequire} from "node:module";
import os from "node:os";
import path from "node:path";
import {fileURLToPath} from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const FIXTURES = path.join(HERE, "../fixtures/chat");
const NOW = [2024, 7, 26, 12, 34, 56];

// @huggingface/jinja reads the clock itself.
class FixedDate extends Date {
  constructor(...args) {
    if (args.length > 0) super(...args);
    else super(NOW[0], NOW[1] - 1, ...NOW.slice(2));
  }
}

// The npm engine, installed into a scratch folder when it is not there; null when npm cannot be reached.
function loadNpmEngine(scratch) {
  const load = (modules) => createRequire(path.join(modules, "x.js"))("@huggingface/jinja");
  for (const modules of [process.env.JINJA_NODE_MODULES, path.join(HERE, "node_modules")]) {
    if (modules && fs.existsSync(path.join(modules, "@huggingface/jinja"))) return load(modules);
  }
  const version = JSON.parse(fs.readFileSync(path.join(HERE, "package.json"))).dependencies["@huggingface/jinja"];
  const made = spawnSync("npm", ["install", "--ignore-scripts", "--prefix", scratch, `@huggingface/jinja@${version}`],
                         {stdio: "ignore", timeout: 120000});
  return made.status === 0 ? load(path.join(scratch, "node_modules")) : null;
}

function renderWithNpm(engine, cases) {
  const clock = globalThis.Date;
  globalThis.Date = FixedDate;
  const results = cases.map((c) => {
    try {
      return {text: new engine.Template(fs.readFileSync(c.template, "utf8")).render(c.variables)};
    } catch (error) {
      return {error: String(error.message)};
    }
  });
  globalThis.Date = clock;
  return results;
}

const lines = (text) => text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line));

function renderWithPython(cases) {
  const input = cases.map((c) => JSON.stringify(c)).join("\n");
  const ran = spawnSync("python3", [path.join(HERE, "chat_jinja2.py")],
                        {input, encoding: "utf8", maxBuffer: 1 << 30});
  return ran.status === 0 ? lines(ran.stdout) : null;
}

function renderWithOurs(renderer, cases, scratch) {
  const casesFile = path.join(scratch, "cases.jsonl");
  const resultsFile = path.join(scratch, "results.jsonl");
  fs.writeFileSync(casesFile, cases.map((c) => JSON.stringify(c) + "\n").join(""));
  execFileSync(renderer, ["--gtest_filter=ChatTemplateRender.*"], {stdio: ["ignore", "ignore", "inherit"],
                          env: {...process.env, QLORA_CHAT_CASES: casesFile, QLORA_CHAT_RESULTS: resultsFile}});
  return lines(fs.readFileSync(resultsFile, "utf8"));
}

function makeCases(template, {tools, conversations}) {
  return conversations.flatMap((conversation) => [true, false].map((prompt) => ({
    template, name: conversation.name, now: NOW,
    variables: {messages: conversation.messages, tools: conversation.tools ? tools : null, documents: null,
                add_generation_prompt: prompt, bos_token: "<s>", eos_token: "</s>", ...conversation.variables},
  })));
}

const same = (a, b) => "text" in b ? a.text === b.text : !("text" in a);
const passes = (ours, authority, other) => same(ours, authority) || (other && !("text" in authority) && same(ours, other));
const show = (result) => "text" in result ? JSON.stringify(result.text) : `error: ${result.error}`;

function main() {
  const files = [];
  let renderer = null;
  let verbose = false;
  let golden = null;
  const args = process.argv.slice(2);
  while (args.length > 0) {
    const arg = args.shift();
    if (arg === "--renderer") renderer = args.shift();
    else if (arg === "--verbose") verbose = true;
    else if (arg === "--golden") golden = args.shift();
    else files.push(path.resolve(arg));
  }
  if (!renderer) {
    console.error("chat_diff: --renderer is needed");
    return 2;
  }
  const list = (folder) => fs.readdirSync(folder).filter((name) => name.endsWith(".jinja")).sort()
                             .map((name) => path.join(folder, name));
  if (files.length === 0) {
    files.push(...list(FIXTURES));
    const folder = path.join(process.env.QLORA_SHARED ?? path.join(HERE, "../../../shared"), "data/templates");
    if (golden) console.log("chat_diff: golden results of the fixtures alone");
    else if (fs.existsSync(folder)) files.push(...list(folder));
    else console.log(`chat_diff: SKIPPED: no templates at ${folder}`);
    const published = process.env.QLORA_TEMPLATES;
    if (published && !golden) files.push(...list(published).map((file) => path.resolve(file)));
    else if (!published) console.log("chat_diff: SKIPPED: no further templates; QLORA_TEMPLATES names no folder");
  }
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "chat-diff-"));
  try {
    const engine = loadNpmEngine(scratch);
    if (!engine) console.log("chat_diff: @huggingface/jinja SKIPPED: npm cannot be reached");
    const described = JSON.parse(fs.readFileSync(path.join(HERE, "chat_cases.json"), "utf8"));
    const cases = files.flatMap((file) => makeCases(file, described));
    const npm = engine && renderWithNpm(engine, cases);
    const python = renderWithPython(cases);
    if (!python) console.log("chat_diff: jinja2 SKIPPED: python3 has no jinja2");
    if (!npm && !python) return 77;
    if (golden) writeGolden(golden, cases, python);
    return compare(files, cases, renderWithOurs(renderer, cases, scratch), npm, python, verbose);
  } finally {
    fs.rmSync(scratch, {recursive: true});
  }
}

// One line a case; a generation prompt where the assistant is to speak.
function writeGolden(file, cases, python) {
  const lines = cases.flatMap((c, i) => {
    const last = c.variables.messages.at(-1).role;
    if (c.variables.add_generation_prompt !== (last !== "assistant")) return [];
    return [JSON.stringify({template: path.basename(c.template, ".jinja"), case: c.name,
                            text: python[i].text ?? null}) + "\n"];
  });
  fs.writeFileSync(file, lines.join(""));
}

function compare(files, cases, ours, npm, python, verbose) {
  const authority = python ?? npm;
  const total = {cases: 0, equal: 0, npm: 0, refused: 0};
  for (const file of files) {
    const own = cases.map((c, i) => i).filter((i) => cases[i].template === file);
    const differing = own.filter((i) => !passes(ours[i], authority[i], python && npm && npm[i]));
    const npmEqual = npm ? own.filter((i) => same(ours[i], npm[i])).length : 0;
    const refused = own.filter((i) => !("text" in authority[i])).length;
    console.log(`${path.basename(file)}: ${own.length - differing.length}/${own.length} ` +
                `(${refused} refused by the authority)` + (npm ? `, npm ${npmEqual}/${own.length}` : ""));
    for (const i of verbose ? own : []) {
      if (differing.includes(i)) {
        console.log(`  ${cases[i].name} prompt=${cases[i].variables.add_generation_prompt}\n    ours      ` +
                    `${show(ours[i])}\n    authority ${show(authority[i])}` + (npm ? `\n    npm       ${show(npm[i])}` : ""));
      }
    }
    total.cases += own.length;
    total.equal += own.length - differing.length;
    total.npm += npmEqual;
    total.refused += refused;
  }
  console.log(`chat_diff: ${total.equal}/${total.cases} as ${python ? "jinja2" : "@huggingface/jinja"} ` +
              `(${total.refused} refused)` + (npm && python ? `; ${total.npm}/${total.cases} as @huggingface/jinja` : ""));
  return total.equal === total.cases ? 0 : 1;
}

process.exitCode = main();

#!/usr/bin/env node
// The prompt that was trained is the prompt that other programs use: adapters are trained until they know their
// records, exported as GGUF, and asked in the real llama.cpp through the chat template that the file brings, which
// @huggingface/jinja renders. The answer must be that of the record, and that of the command that training prints.
//
//   node tests/interop/prompt_test.mjs --qlora build/release/bin/qlora --model tests/golden/llama-tiny
//
// Needs `npm install --ignore-scripts` in tests/interop, or JINJA_NODE_MODULES naming a node_modules folder that has the
// packages. Exit status: 0 equal, 1 differences, 77 skipped.
import {spawnSync} from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import {BYTES, dataPage, file as parquetFile, node, plainStrings, text} from "../golden/parquet/build.mjs";
import {load, readOptions, scratchFolder} from "./peer.mjs";

const llamaCpp = await load("node-llama-cpp");
const {Template} = await load("@huggingface/jinja");
const options = readOptions({}, ["qlora", "model"], "prompt_test.mjs --qlora PROGRAM --model DIR");
const program = path.resolve(options.qlora);
const scratch = scratchFolder();

function run(command, args) {
  const done = spawnSync(command, args, {encoding: "utf8", cwd: scratch,
    env: {...process.env, PATH: `${path.dirname(program)}:${process.env.PATH}`}});
  if (done.status !== 0) {
    console.error(`${command} ${args.join(" ")}\nfailed with status ${done.status}:\n${done.stderr}`);
    process.exit(1);
  }
  return done;
}

const CHAT = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}" +
  "{{ eos_token }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
function makeModel(name, chatTemplate) {
  const folder = path.join(scratch, name);
  fs.cpSync(path.resolve(options.model), folder, {recursive: true, dereference: true});
  const edit = (file, change) => {
    const json = JSON.parse(fs.readFileSync(path.join(folder, file), "utf8"));
    change(json);
    fs.chmodSync(path.join(folder, file), 0o644);
    fs.writeFileSync(path.join(folder, file), JSON.stringify(json));
  };
  edit("config.json", (config) => { config.max_position_embeddings = 512; });
  edit("tokenizer_config.json", (config) => { if (chatTemplate) config.chat_template = chatTemplate; });
}
makeModel("plain", null);
makeModel("chat", CHAT);

// A Parquet file of one record of texts.
function parquet(record) {
  const names = Object.keys(record);
  const column = (name) => ({path: [name], type: BYTES, count: 1,
    pages: [dataPage({values: plainStrings([record[name]]), count: 1})]});
  return parquetFile([node("root", null, {children: names.length}), ...names.map((name) => text(name, 0))],
    [{rows: 1, columns: names.map(column)}]);
}

const ALPACA_INPUT = "Below is an instruction that describes a task, paired with an input that provides further context. " +
  "Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 1\n\n" +
  "### Response:\n";

// data: the records, or the content of `file`; messages: what llama.cpp is asked; answer: what it must say. raw: the
// text that llama.cpp is asked where no chat template says it, {plain: for a model without template, chat: with one}.
const user = (content) => [{role: "user", content}];
const CASES = [
  {name: "alpaca", data: [{instruction: "Add two and two.", input: "", output: "It is four."}],
   messages: user("Add two and two."), answer: "It is four."},
  {name: "alpaca as before", data: [{instruction: "Add two and two.", output: "It is four."}],
   args: ["--prompt_layout", "instruction_answer"], messages: user("Add two and two."), answer: "It is four."},
  {name: "prompt and completion", data: [{prompt: "The sky is ", completion: "blue."}], messages: user("The sky is "),
   answer: "blue."},
  {name: "template", data: [{question: "Why?", reply: "Because."}], messages: user("Why?"), answer: "Because.",
   args: ["--prompt_template", "Q: {question}\nA: ", "--completion_template", "{reply}"]},
  {name: "CSV", file: "d.csv", data: "prompt,completion\nThe sea is ,\"deep, too.\"\n", messages: user("The sea is "),
   answer: "deep, too."},
  {name: "Parquet", file: "d.parquet", data: parquet({prompt: "The sun is ", completion: "warm."}),
   messages: user("The sun is "), answer: "warm."},
  {name: "Alpaca with an input", data: [{instruction: "Add.", input: "1 1", output: "It is two."}],
   messages: user("Add.\n1 1"), raw: {plain: ALPACA_INPUT}, answer: "It is two."},
  {name: "text", data: [{text: "The sky is blue and wide."}], messages: user("The sky is"), answer: "blue and wide.",
   raw: {chat: "The sky is"}},  // texts leave the model's own template as it is
  {name: "raw text", file: "d.txt", data: "The sky is blue and wide.", messages: user("The sky is"),
   answer: "blue and wide.", raw: {chat: "The sky is"}, open: true},  // windows of a text have no end
  {name: "alpaca on a 4-bit base", data: [{instruction: "Add two and two.", output: "It is four."}], in4bit: true,
   messages: user("Add two and two."), answer: "It is four."},
  {name: "messages", data: [{messages: [...user("Hi"), {role: "assistant", content: "Hello."}]}], messages: user("Hi"),
   answer: "Hello.", needsChat: true},
  {name: "ShareGPT", data: [{conversations: [{from: "human", value: "Hi"}, {from: "gpt", value: "Good day."}]}],
   messages: user("Hi"), answer: "Good day.", needsChat: true},
];

const llama = await llamaCpp.getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false,
  maxThreads: 1, logLevel: "error"});
async function ask(file, messages, raw) {
  const model = await llama.loadModel({modelPath: file, gpuLayers: 0, ignoreMemorySafetyChecks: true});
  const template = model.fileInfo.metadata.tokenizer.chat_template;
  if (!template) return "(no chat template in the file)";
  const text = raw ?? new Template(template).render({messages, add_generation_prompt: true,
    bos_token: model.tokens.bosString, eos_token: model.tokens.eosString});
  const context = await model.createContext({contextSize: 512, batchSize: 256, sequences: 1, threads: 1,
    flashAttention: false, ignoreMemorySafetyChecks: true});
  const answer = [];
  const prompt = model.tokenize(text, true);
  if (raw !== undefined && prompt[0] !== model.tokens.bos) prompt.unshift(model.tokens.bos);  // as llama-cli does
  for await (const token of context.getSequence().evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    if (answer.length >= 24 || model.isEogToken(token)) break;
    answer.push(token);
  }
  const said = model.detokenize([...prompt, ...answer]).slice(model.detokenize(prompt).length);
  await context.dispose();
  await model.dispose();
  return said;
}

let failures = 0;
for (const model of ["plain", "chat"]) {
  for (const test of CASES) {
    if (test.needsChat && model === "plain") test.args = ["--chat_template", "plain"];
    else if (test.needsChat) test.args = [];
    const file = test.file ?? "d.jsonl";
    fs.writeFileSync(path.join(scratch, file),
      test.file ? test.data : test.data.map((record) => JSON.stringify(record) + "\n").join(""));
    const trained = run(program, ["train", "--model", model, "--dataset", file, "--output_dir", "out", "--overwrite",
      "--max_steps=80", "--learning_rate=0.01", "--lora_r=16", `--load_in_4bit=${test.in4bit ?? false}`, "--max_length=256",
      "--compute_dtype=float32", "--threads=1", "--warmup_ratio=0.1", ...(test.args ?? [])]);
    const command = trained.stderr.trim().split("\n").pop().replace(/^to try it: /, "");
    const ours = run("sh", ["-c", command + " --max_new_tokens 24"]).stdout.trim();
    run(program, ["export", model, "out.gguf", "--adapter", "out", "--outtype", "f32", "--overwrite"]);
    const theirs = (await ask(path.join(scratch, "out.gguf"), test.messages, test.raw?.[model])).trim();
    const good = test.open ? theirs.startsWith(test.answer) && ours.includes(test.answer)
      : theirs === test.answer && ours.endsWith(test.answer);
    console.log(`${good ? "ok  " : "FAIL"} ${model} model, ${test.name}: llama.cpp says ${JSON.stringify(theirs)}, qlora ` +
      `${JSON.stringify(ours)}`);
    if (!good) failures++;
  }
}
console.log(failures ? `${failures} checks failed` : "all checks passed");
process.exit(failures ? 1 : 0);

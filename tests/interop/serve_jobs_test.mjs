// A fine-tuning job as scripts for OpenAI's service have it, with their client: a file, a job, its events, a chat with what it
// made. The server is killed in the midst of one job. The next server goes on with it, to the same bits as those of a job that
// nothing stopped.
//   node serve_jobs_test.mjs --qlora PROGRAM
import assert from "node:assert/strict";
import {spawn} from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import {load, readOptions, scratchFolder, tinyChatModel} from "./peer.mjs";

const {qlora} = readOptions({}, ["qlora"], "serve_jobs_test.mjs --qlora PROGRAM");
const {default: OpenAI} = await load("openai");
const scratch = scratchFolder();
const model = tinyChatModel(scratch);
const runs = path.join(scratch, "runs");
const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

// A server on the folder of runs, once it listens.
async function start() {
  const program = spawn(qlora, ["serve", model, "--runs", runs, "--port", "0"], {stdio: ["ignore", "ignore", "pipe"]});
  process.on("exit", () => program.kill("SIGKILL"));
  let said = "";
  program.stderr.on("data", (data) => { said += data; });
  const ended = new Promise((done) => { program.on("exit", done); });
  for (let url; ; await sleep(20)) {
    assert.ok(program.exitCode === null && program.signalCode === null, `the server does not start:\n${said}`);
    if ((url = /listening: (\S+)\s/.exec(said)?.[1])) {
      return {program, ended, client: new OpenAI({baseURL: `${url}/v1`, apiKey: "none"})};
    }
  }
}

async function all(pages) {
  const items = [];
  for await (const item of pages) items.push(item);
  return items;
}

// A job of 10 * rows steps.
async function begin(client, rows, suffix) {
  const text = Array.from({length: rows}, (_, i) => `${JSON.stringify({messages: [{role: "user", content: `Question ${i}`},
    {role: "assistant", content: `Answer ${i % 7}`}]})}\n`).join("");
  const file = await client.files.create({file: await OpenAI.toFile(Buffer.from(text), "train.jsonl"), purpose: "fine-tune"});
  return (await client.fineTuning.jobs.create({model: "tiny", training_file: file.id, suffix, seed: 7,
    method: {type: "supervised", supervised: {hyperparameters: {n_epochs: 10, batch_size: 1}}}})).id;
}

const isDone = (job) => ["succeeded", "failed", "cancelled"].includes(job.status);

async function finish(client, id) {
  for (; ; await sleep(50)) {
    const job = await client.fineTuning.jobs.retrieve(id);
    if (!isDone(job)) continue;
    assert.equal(job.status, "succeeded", job.error?.message);
    return job;
  }
}

const chat = async (client, name) => (await client.chat.completions.create({model: name, temperature: 0, max_tokens: 12,
  messages: [{role: "user", content: "Question 3"}], logprobs: true})).choices[0];

// Kills the server in the midst of a job, and returns the server that follows with the job. A job that has come to its end
// before is followed by a longer one.
async function killInTheMidst(server) {
  for (let rows = 40; ; rows *= 4) {
    const id = await begin(server.client, rows, "killed");
    let points = [];
    do {
      await sleep(10);
      points = await all(server.client.fineTuning.jobs.checkpoints.list(id));
    } while (points.length === 0);
    server.program.kill("SIGKILL");
    await server.ended;
    server = await start();
    if (!isDone(await server.client.fineTuning.jobs.retrieve(id))) return {server, id, rows, step: points[0].step_number};
  }
}

const {server, id, rows, step} = await killInTheMidst(await start());
const {client} = server;
const killed = await finish(client, id);
assert.match(killed.fine_tuned_model, /^ft:tiny:local:killed:/);

const events = await all(client.fineTuning.jobs.listEvents(id, {limit: 100}));
assert.equal(new Set(events.map((event) => event.id)).size, events.length);
const steps = events.filter((event) => event.type === "metrics").map((event) => event.data.step).reverse();
assert.deepEqual(steps, [...new Set(steps)].sort((a, b) => a - b), "each step once, in order");
assert.ok(steps[0] <= step && steps.at(-1) === 10 * rows, `steps ${steps[0]} to ${steps.at(-1)}`);
assert.match(fs.readFileSync(path.join(runs, "jobs", `${id}.log`), "utf8"), /resum/, "it goes on at a checkpoint");

const whole = await finish(client, await begin(client, rows, "whole"));
const answer = await chat(client, killed.fine_tuned_model);
assert.deepEqual(answer, await chat(client, whole.fine_tuned_model));
assert.notDeepEqual(answer, await chat(client, "tiny"));

server.program.kill("SIGTERM");
assert.equal(await server.ended, 130);
console.log(`serve_jobs_test: ok; killed behind step ${step} of ${10 * rows}`);

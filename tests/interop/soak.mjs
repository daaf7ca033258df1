// A server under random requests for minutes: many clients, of which some leave, send nonsense or are slow, while adapters
// are loaded and unloaded. Afterwards its memory is what it was after the first tenth, no slot is taken, and one request has
// had the same answer all the time.
//   node soak.mjs --qlora PROGRAM [--minutes 30] [--clients 24] [--seed 1]
// Prints a line a minute, and one JSON object at the end. Exit code 1 where something was wrong.
import {spawn} from 'node:child_process';
import {cpSync, mkdirSync, mkdtempSync, rmSync} from 'node:fs';
import net from 'node:net';
import {tmpdir} from 'node:os';
import {join, resolve} from 'node:path';
import {tinyChatModel} from './peer.mjs';

const option = (name, usual) => {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? usual : process.argv[at + 1];
};
const qlora = resolve(option('qlora', 'build/release/bin/qlora'));
const seconds = 60 * Number(option('minutes', 30));
const clients = Number(option('clients', 24));
const MOST_GROWTH = 16 << 20;  // bytes: what the allocator may keep beside the plan

// mulberry32
let state = Number(option('seed', 1)) >>> 0;
const random = (n) => {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) % n;
};
const pick = (list) => list[random(list.length)];
const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

const folder = mkdtempSync(join(tmpdir(), 'qlora-soak-'));
const model = tinyChatModel(folder);
const adapters = join(folder, 'adapters');
mkdirSync(adapters);
const later = ['one', 'two', 'three'];
for (const name of later) cpSync(join(model, 'adapter'), join(adapters, name), {recursive: true});

const probe = net.createServer();
const port = await new Promise((done) => { probe.listen(0, '127.0.0.1', () => done(probe.address().port)); });
await new Promise((done) => { probe.close(done); });
const server = spawn(qlora, ['serve', model, '--adapter', `ada=${join(model, 'adapter')}`, '--adapter_dir', adapters, '--port',
  String(port), '--max_sequences', '8', '--max_queue', '32', '--max_new_tokens', '32', '--log_requests', join(folder, 'log')],
  {stdio: ['ignore', 'ignore', 'pipe']});
let said = '';
server.stderr.on('data', (data) => { said = (said + data).slice(-4000); });
const ended = new Promise((done) => { server.on('exit', (code, signal) => done(code ?? signal)); });
process.on('exit', () => {
  server.kill('SIGKILL');
  rmSync(folder, {recursive: true, force: true});
});

const url = `http://127.0.0.1:${port}`;
const faults = [];
const counts = {};
const fault = (text) => { if (faults.push(text) <= 20) console.error(`FAULT after ${Math.round(runTime() / 1000)} s: ${text}`); };
// A machine that stops this program for long ends its connections: servers wait 10 s for a head. Time in which it is stopped
// is no time of the soak.
let longestStall = 0;
let stopped = 0;
let tick = performance.now();
setInterval(() => {
  const passed = performance.now() - tick;
  longestStall = Math.max(longestStall, passed);
  if (passed > 1000) stopped += passed;
  tick += passed;
}, 100).unref();
const runTime = () => performance.now() - stopped;
const ask = (path, body, signal) => fetch(url + path, {method: 'POST', signal, headers: {'Content-Type': 'application/json'},
  body: typeof body === 'string' ? body : JSON.stringify(body)});

async function metrics() {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Object.fromEntries(text.split('\n').filter((line) => line && !line.startsWith('#')).map((line) => {
    const at = line.lastIndexOf(' ');
    return [line.slice(0, at), Number(line.slice(at + 1))];
  }));
}

const words = 'the small dog ran to a red house and saw one old man who sang 漢字 😀 é'.split(' ');
const text = (most) => Array.from({length: 1 + random(most)}, () => pick(words)).join(' ');
const names = () => pick(['tiny', 'tiny', 'ada', 'ada', ...later, 'nobody']);
const sampling = () => ({max_tokens: 1 + random(24), temperature: pick([0, 0.7, 1.5]), seed: random(1000),
  ...(random(4) === 0 && {stop: pick(['a', ['the', '漢'], ''])}), ...(random(6) === 0 && {top_k: 5, min_p: 0.1}),
  ...(random(6) === 0 && {presence_penalty: 1, logit_bias: {7: -100}})});

// Statuses that each kind may have, beside 429.
const kinds = {
  chat: () => ['/v1/chat/completions', {model: names(), messages: [{role: 'user', content: text(20)}], stream: random(2) === 0,
    n: 1 + random(3), ...(random(3) === 0 && {logprobs: true, top_logprobs: 2}), ...sampling()}],
  completion: () => ['/v1/completions', {model: names(), prompt: pick([text(20), [text(5), text(5)], [1, 2, 3]]),
    stream: random(2) === 0, ...(random(2) === 0 && {echo: true, logprobs: 3}), ...sampling()}],
  responses: () => ['/v1/responses', {model: names(), input: text(10), stream: random(2) === 0, max_output_tokens: 8}],
  messages: () => ['/v1/messages', {model: names(), max_tokens: 8, stream: random(2) === 0,
    messages: [{role: 'user', content: text(10)}]}],
  decision: () => ['/v1/systemone', {model: names(), state: text(20), questions: Object.fromEntries(Array.from(
    {length: 1 + random(4)}, (_, i) => [`q${i}`, {type: 'choice', instructions: text(4), criteria: {x: null, y: text(3)}}]))}],
  tokens: () => ['/tokenize', {content: text(100)}],
  nonsense: () => [pick(['/v1/chat/completions', '/v1/completions', '/v1/messages', '/v1/systemone']),
    pick(['{', '[]', '{"messages": 5}', '{"prompt": [[]]}', `{"a": ${'['.repeat(5000)}`, '\xff', '{"messages": [], "n": 99}'])],
  long: () => ['/v1/completions', {prompt: 'the dog '.repeat(10000), max_tokens: 1}],
};
const allowed = {nonsense: [400, 404], long: [400], decision: [200, 400, 404], tokens: [200]};

async function oneRequest(again) {
  const kind = again?.kind ?? pick(['chat', 'chat', 'chat', 'completion', 'completion', 'responses', 'messages', 'decision',
    'tokens', 'nonsense', 'long']);
  const [path, body] = again?.request ?? kinds[kind]();
  const leaves = !again && random(5) === 0;
  const before = stopped;
  const control = new AbortController();
  const timer = leaves && setTimeout(() => control.abort(), random(60));
  counts[kind] = (counts[kind] ?? 0) + 1;
  try {
    const answer = await ask(path, body, control.signal);
    const got = await answer.text();
    if (answer.status === 429) counts.waited = (counts.waited ?? 0) + 1;
    else if (!(allowed[kind] ?? [200, 404]).includes(answer.status)) fault(`${kind}: ${answer.status} ${got.slice(0, 300)}`);
    else if (answer.status === 200 && body.stream && /"error": *{/.test(got)) fault(`${kind}: ${got.slice(-300)}`);
  } catch (error) {
    clearTimeout(timer);
    // The server may end a connection without a request just when this program sends one, or while both are stopped: clients
    // ask again.
    await sleep(150);
    if (leaves) counts.left = (counts.left ?? 0) + 1;
    else if ((!again || stopped > before) && error.cause?.code === 'UND_ERR_SOCKET') {
      counts.again = (counts.again ?? 0) + 1;
      return oneRequest({kind, request: [path, body]});
    } else fault(`${kind}: ${error.cause ?? error}`);
  }
  return clearTimeout(timer);
}

// Connections that send a part of a request, and leave, or wait.
async function slowConnection() {
  counts.slow = (counts.slow ?? 0) + 1;
  const socket = net.connect(port, '127.0.0.1');
  socket.on('error', () => {});
  socket.write(pick(['GET / HT', 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"pro', '\r\n', '\0']));
  await sleep(random(2000));
  socket.destroy();
}

async function changeAdapters() {
  const name = pick(later);
  const loads = random(2) === 0;
  counts[loads ? 'load' : 'unload'] = (counts[loads ? 'load' : 'unload'] ?? 0) + 1;
  const answer = loads ? await ask('/v1/load_lora_adapter', {lora_name: name, lora_path: name})
    : await ask('/v1/unload_lora_adapter', {lora_name: name});
  const got = await answer.text();
  // One adapter is loaded at a time.
  if (answer.status === 429 && got.includes('models_busy')) {
    counts.busy = (counts.busy ?? 0) + 1;
    return;
  }
  if (![200, loads ? 409 : 404].includes(answer.status)) fault(`adapter ${name}: ${answer.status} ${got.slice(0, 300)}`);
}

// The same request has the same bits, whatever goes on.
let first;
async function checkBits() {
  const answer = await ask('/v1/completions', {model: 'ada', prompt: 'Once upon a time there was', max_tokens: 12, seed: 5,
    temperature: 0.8, logprobs: 2, echo: true});
  if (answer.status === 429) return;
  const got = JSON.stringify((await answer.json()).choices);
  counts.bits = (counts.bits ?? 0) + 1;
  first ??= got;
  if (got !== first) fault(`other bits: ${got.slice(0, 300)}`);
}

async function client(until) {
  while (runTime() < until) {
    const what = random(40);
    const before = stopped;
    await (what === 0 ? changeAdapters() : what === 1 ? slowConnection() : what === 2 ? checkBits() : oneRequest())
      .catch(async (error) => {
        await sleep(150);
        if (stopped === before) fault(String(error.cause ?? error));
      });
  }
}

async function run(part) {
  const until = runTime() + 1000 * part;
  await Promise.all(Array.from({length: clients}, () => client(until)));
  for (const name of later) await ask('/v1/unload_lora_adapter', {lora_name: name});
  // What left has gone, and nothing is left to do.
  let now;
  for (let i = 0; i < 300; ++i) {
    now = await metrics();
    if (now.qlora_requests_running + now.qlora_requests_waiting + now.qlora_kv_pages_used === 0) break;
    await sleep(100);
  }
  for (const name of ['qlora_requests_running', 'qlora_requests_waiting', 'qlora_kv_pages_used']) {
    if (now[name] !== 0) fault(`${name} is ${now[name]} at rest`);
  }
  return now.process_resident_memory_bytes;
}

for (let i = 0; (await fetch(`${url}/health`).catch(() => null))?.status !== 200; ++i) {
  if (server.exitCode !== null || i > 600) throw new Error(`the server does not start:\n${said}`);
  await sleep(100);
}
const start = (await metrics()).process_resident_memory_bytes;
const warm = await run(seconds / 10);
const sizes = [];
for (let done = 0; done < 9; ++done) {
  sizes.push(await run(seconds / 10));
  console.error(`${Math.round((done + 2) * seconds / 10)} s: ${(sizes.at(-1) / 2 ** 20).toFixed(1)} MiB, ${JSON.stringify(counts)}`);
}
if (sizes.at(-1) - warm > MOST_GROWTH) fault(`memory grew from ${warm} to ${sizes.at(-1)} bytes`);
if (2 * (counts.busy ?? 0) > counts.load + counts.unload) fault(`adapters were hardly ever loaded: ${JSON.stringify(counts)}`);
const health = await fetch(`${url}/health`);
if (health.status !== 200) fault(`not well at the end: ${health.status}`);
server.kill('SIGTERM');
const code = await ended;
if (code !== 130) fault(`SIGTERM: exit code ${code}`);
const mib = (bytes) => Math.round(bytes / 2 ** 20 * 10) / 10;
console.log(JSON.stringify({seconds, clients, requests: Object.values(counts).reduce((a, b) => a + b, 0), counts,
  stopped_s: Math.round(stopped / 1000), longest_stall_s: Math.round(longestStall / 100) / 10, resident_mib: {start: mib(start), warm: mib(warm), end: mib(sizes.at(-1))}, faults}));
process.exit(faults.length ? 1 : 0);

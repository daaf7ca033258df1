// The page of `qlora serve` in headless Chromium: with the program itself, and with answers that this
// test writes slowly in its place.
//   node serve_page_test.mjs --qlora PROGRAM [--shots DIR]
import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {readFileSync, readdirSync, rmSync, writeFileSync} from 'node:fs';
import {createServer, request} from 'node:http';
import {join} from 'node:path';
import {contrast, launch, newFolder, qlora, shots} from './browser.mjs';
import {tinyChatModel} from './peer.mjs';

const browser = await launch('the page of servers');
const folder = newFolder();
const model = tinyChatModel(folder);
const train = join(folder, 'train.jsonl');
writeFileSync(train, Array.from({length: 8}, (_, i) => `${JSON.stringify({messages: [{role: 'user', content: `Question ${i}`},
  {role: 'assistant', content: `Answer ${i}`}]})}\n`).join(''));

const KEY = 'a-key';
const freePort = () => new Promise((done) => {
  const probe = createServer().listen(0, '127.0.0.1', () => {
    const {port} = probe.address();
    probe.close(() => done(port));
  });
});
const port = await freePort();
const server = spawn(qlora, ['serve', model, '--adapter', `ada=${join(model, 'adapter')}`, '--port', String(port),
  '--api_key', KEY, '--runs', join(folder, 'runs'), '--log_requests', join(folder, 'log'), '--max_new_tokens', '24'],
  {stdio: ['ignore', 'ignore', 'pipe']});
let said = '';
server.stderr.on('data', (data) => { said += data; });

// The server, with slow answers of a text that a model may write.
const WRITTEN = 'Hi 😀-漢字 <img src=x onerror="document.title=1"> & <b>bold</b>';
let slow = false;
let left = 0;  // clients that left a slow answer
let refused = '';  // a path whose requests are 400
let manyJobs = null;  // the pages of a list of jobs
const front = createServer((query, reply) => {
  const isList = manyJobs && query.method === 'GET' && query.url.startsWith('/v1/fine_tuning/jobs?');
  if (isList || query.url === refused) {
    query.resume();
    reply.writeHead(isList ? 200 : 400, {'Content-Type': 'application/json'});
    reply.end(JSON.stringify(isList ? manyJobs[Number(query.url.includes('after='))] : {error: {message: 'refused'}}));
    return;
  }
  if (slow && query.url === '/v1/chat/completions') {
    query.resume();
    reply.writeHead(200, {'Content-Type': 'text/event-stream; charset=utf-8'});
    const chunk = (delta) => Buffer.from(`data: ${JSON.stringify({id: 'chatcmpl-1', model: 'tiny', system_fingerprint: 'print',
      choices: [{index: 0, delta, logprobs: null, finish_reason: null}]})}\n\n`);
    const bytes = Buffer.concat([...WRITTEN].map((content) => chunk({content})));
    let at = 0;
    // Pieces end within characters and events, as those of a network do.
    const timer = setInterval(() => {
      reply.write(bytes.subarray(at, at + 97));
      at += 97;
    }, 5);
    reply.on('close', () => {
      clearInterval(timer);
      ++left;
    });
    return;
  }
  const headers = {...query.headers, host: `127.0.0.1:${port}`};
  if (headers.origin) headers.origin = `http://127.0.0.1:${port}`;
  const inner = request({host: '127.0.0.1', port, path: query.url, method: query.method, headers}, (answer) => {
    reply.writeHead(answer.statusCode, answer.headers);
    answer.pipe(reply);
  });
  inner.on('error', () => reply.destroy());
  reply.on('close', () => inner.destroy());
  query.pipe(inner);
});
await new Promise((done) => { front.listen(0, '127.0.0.1', done); });
const url = `http://127.0.0.1:${front.address().port}/`;
const api = async (path, json, method = json ? 'POST' : 'GET') => {
  const answer = await fetch(url + path, {method, body: json && JSON.stringify(json),
    headers: {Authorization: `Bearer ${KEY}`, 'Content-Type': 'application/json'}});
  assert.equal(answer.status, 200, await answer.clone().text());
  return answer.json();
};

try {
  for (let i = 0; !said.includes('listening'); ++i) {
    assert.ok(server.exitCode === null && i < 600, `the server does not start:\n${said}`);
    await new Promise((r) => setTimeout(r, 100));
  }
  assert.match(said, /conversations.* are kept in/, 'what is kept is said at the start');

  const page = await browser.newPage();
  page.setDefaultTimeout(Number(process.env.T ?? 120000));
  const faults = [];
  // What the server refuses, the browser reports as an error.
  page.on('console', (m) => { if (!/\b40[01]\b/.test(m.text())) faults.push(m.text()); });
  page.on('pageerror', (e) => faults.push(e.message));
  page.on('request', (r) => { if (!r.url().startsWith(url) && !/^(data|blob):/.test(r.url())) faults.push(r.url()); });
  const shot = async (name) => { if (shots) await page.screenshot({path: join(shots, `serve-${name}.png`), fullPage: true}); };
  const texts = (selector) => page.$$eval(selector, (nodes) => nodes.map((node) => node.textContent));
  const press = (label, within = 'main') => page.evaluate((text, place) => {
    const found = [...document.querySelectorAll(`${place} button`)].filter((one) => one.textContent === text &&
      one.getClientRects().length > 0);
    found.at(-1).click();
  }, label, within);
  const show = async (part) => {
    await page.click(`nav a[href="#${part}"]`);
    await page.waitForSelector(`#${part}:not([hidden])`);
  };
  const idle = () => page.waitForFunction(() => document.getElementById('messages').getAttribute('aria-busy') === 'false');
  const trouble = async (pattern) => {
    await page.waitForFunction((text) => new RegExp(text).test(document.getElementById('trouble').textContent), {}, pattern);
  };
  const posted = [];  // the bodies of chats and decisions
  page.on('request', (r) => { if (/completions|decisions/.test(r.url())) posted.push(r.postData()); });
  const fill = (id, value) => page.$eval(`#${id}`, (node, text) => { node.value = text; }, value);

  await page.setViewport({width: 1200, height: 900});
  await page.goto(url);

  // The key: asked for, refused, taken, and stored nowhere.
  await page.waitForSelector('#key-dialog[open]');
  await page.type('#key', 'wrong');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => /does not take/.test(document.getElementById('key-trouble').textContent));
  await page.type('#key', KEY);
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('#chat-model option').length === 2);
  await page.waitForFunction(() => /0 running/.test(document.getElementById('state').textContent));
  assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length + document.cookie.length), 0);

  // A chat: the answer of the server, with the probabilities of its tokens.
  const ask = {messages: [{role: 'system', content: 'Be kind.'}, {role: 'user', content: 'Hello there'}]};
  let seed = 0;
  let known;
  // Both models write something, and not the same.
  for (;; ++seed) {
    assert.ok(seed < 200, 'no seed has answers of both models');
    const answers = await Promise.all(['tiny', 'ada'].map((name) => api('v1/chat/completions', {...ask, seed, model: name})));
    known = answers.map((answer) => answer.choices[0].message.content);
    if (known.every((text) => /^[ -~]{6,}$/.test(text)) && known[0] !== known[1]) break;
  }
  await page.click('#settings summary');
  await fill('system', 'Be kind.');
  await fill('seed', String(seed));
  await page.type('#chat-text', 'Hello there');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.message.assistant .buttons button');
  await idle();
  assert.deepEqual(await texts('.message.assistant .text'), [known[0]]);
  assert.match((await texts('.message.assistant .facts'))[0], /tokens\/s.*qlora-/);
  assert.equal(await page.$eval('#messages', (node) => node.getAttribute('aria-live')), 'polite');
  assert.ok((await texts('.message .token')).length > 3);
  const token = await page.$('.message .token:last-child');
  await token.hover();
  assert.match(await page.$eval('#tip', (tip) => (tip.hidden ? '' : tip.innerText)), /\d+\.\d+ %/);
  await page.mouse.move(2, 2);
  await page.waitForFunction(() => document.getElementById('tip').hidden);
  await page.$eval('.message.assistant .text', (node) => node.focus());
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  assert.equal(await page.$eval('.token.at', (node) => [...node.parentNode.children].indexOf(node)), 1);
  await shot('chat');
  await page.keyboard.press('Escape');
  assert.equal(await page.$('.token.at'), null);

  await press('What the model read');
  await page.waitForSelector('.read pre');
  assert.deepEqual(await texts('.read pre'), ['<s>[system]Be kind.[user]Hello there[assistant]']);
  const read = await api('tokenize', {...ask, model: 'tiny'});
  assert.equal((await texts('.read .pieces span')).length, read.count);

  // Regenerate: the same seed, the same text. Edit and send again: later messages go.
  await press('Regenerate');
  await idle();
  await page.waitForFunction((text) => document.querySelector('.message.assistant .text')?.textContent === text, {}, known[0]);
  await press('Edit', '.message.user');
  await page.waitForSelector('.message.user textarea');
  await page.$eval('.message.user textarea', (node) => { node.value = 'Hello here'; });
  await press('Send again');
  await page.waitForFunction(() => document.querySelectorAll('.message').length === 2 &&
    document.querySelector('.message.user .text')?.textContent === 'Hello here');
  await idle();

  // Marks and a corrected answer are kept as training reads them.
  await press('Good answer');
  await page.waitForSelector('button[aria-pressed=true]');
  assert.equal(await page.$$eval('[data-mark]', (l) => l.filter((one) => !one.disabled).length), 0);
  await press('Edit', '.message.assistant');
  await page.$eval('.message.assistant textarea', (node) => { node.value = 'A better answer'; });
  refused = '/v1/feedback';
  await press('Keep');
  await trouble('refused');
  assert.equal(await page.$eval('.message.assistant textarea', (node) => node.value), 'A better answer', 'stays until it is taken');
  refused = '';
  await press('Keep');
  await page.waitForFunction(() => document.querySelector('.message.assistant .text')?.textContent === 'A better answer');
  const kept = (kind) => {
    const file = readdirSync(join(folder, 'log')).find((name) => name.startsWith(kind));
    return readFileSync(join(folder, 'log', file), 'utf8').trim().split('\n').map((line) => JSON.parse(line));
  };
  const [marked] = kept('marks');
  assert.equal(marked.label, true);
  assert.deepEqual(marked.prompt.at(-1), {role: 'user', content: 'Hello here'});
  assert.deepEqual(kept('edits')[0].messages.at(-1), {role: 'assistant', content: 'A better answer'});
  assert.deepEqual(kept('edits')[0].messages.slice(0, 2), marked.prompt);

  // Answers that fail are no part of the conversation; what goes on instead of others is not lost when it fails.
  refused = '/v1/chat/completions';
  await page.type('#chat-text', 'Lost');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.message.assistant.lost .failed');
  await press('Edit', '.message.user:first-child');
  await page.$eval('.message.user textarea', (node) => { node.value = 'Typed'; });
  await press('Send again');
  await trouble('refused');
  await idle();
  assert.equal((await page.$$('.message')).length, 4);
  assert.equal(await page.$eval('.message.user textarea', (node) => node.value), 'Typed');
  await press('Cancel');
  refused = '';
  const saved = await page.evaluate(async () => {
    const {createObjectURL} = URL;
    const blob = await new Promise((done) => {
      URL.createObjectURL = (one) => { done(one); return '#chat'; };
      document.getElementById('save').click();
    });
    URL.createObjectURL = createObjectURL;
    return blob.text();
  });
  const conversation = kept('edits')[0].messages;
  assert.deepEqual(JSON.parse(saved).messages, conversation);
  await page.type('#chat-text', 'More');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('.message').length === 6);
  await idle();
  assert.deepEqual(JSON.parse(posted.at(-1)).messages, [...conversation, {role: 'user', content: 'More'}]);
  await press('New conversation');
  await press('Save as training data');
  await trouble('no answer');

  // A slow answer: characters stay whole, marks of HTML stay text, and stopping ends the request.
  slow = true;
  await page.evaluate(() => {
    window.seen = [];
    new MutationObserver(() => window.seen.push(document.querySelector('.message.assistant .text')?.textContent ?? ''))
      .observe(document.getElementById('messages'), {childList: true, subtree: true, characterData: true});
  });
  await page.type('#chat-text', 'slow');
  await page.keyboard.press('Enter');
  await page.waitForFunction((text) => document.querySelector('.message.assistant .text')?.textContent === text, {}, WRITTEN);
  const seen = await page.evaluate(() => window.seen);
  assert.ok(seen.length > 10);
  for (const text of seen) assert.ok(WRITTEN.startsWith(text), `${text} is no beginning of the answer`);
  assert.equal(await page.$('.message img, .message .text b'), null);
  assert.equal(left, 0);
  await page.click('#stop');
  await idle();
  assert.deepEqual(await texts('.message .failed'), ['stopped']);
  assert.deepEqual(await texts('.message.assistant .text'), [WRITTEN], 'what was written stays');
  for (let i = 0; left === 0 && i < 100; ++i) await new Promise((r) => setTimeout(r, 50));
  assert.equal(left, 1, 'the server sees that the client has left');
  slow = false;

  // Base and adapter on one prompt and seed.
  await show('compare');
  await page.type('#compare-text', 'Hello there');
  await press('Ask all');
  await page.waitForSelector('#panes mark');
  assert.deepEqual(await texts('#panes h3'), ['tiny', 'ada']);
  assert.deepEqual(await texts('#panes .text'), known);
  const plain = await page.$$eval('#panes .text', (l) => l.map((node) => node.textContent.slice(0, -node.querySelector('mark').textContent.length)));
  assert.equal(plain[0], plain[1], 'what comes before the marks is the same');
  await shot('compare');

  // A finger: the probability stays when it is lifted, and goes when another place is touched.
  await (await page.$('#panes .token')).tap();
  assert.match(await page.$eval('#tip', (tip) => (tip.hidden ? '' : tip.innerText)), /\d+\.\d+ %/);
  await page.tap('#h-compare');
  await page.waitForFunction(() => document.getElementById('tip').hidden);

  // Errors of the server are shown.
  await fill('top_p', '7');
  await press('Ask all');
  await page.waitForSelector('#panes .failed');
  assert.match((await texts('#panes .failed'))[0], /top_p/);
  await fill('top_p', '');

  // Decisions, as the route gives them.
  await show('decide');
  await page.type('#decide-state', 'The house is on fire');
  await press('Add a question');
  await page.$eval('.question:last-child .instructions', (node) => { node.value = 'Who should come?'; });
  await page.$eval('.question:last-child .criteria', (node) => { node.value = 'firemen: put out fires\nnobody'; });
  await press('Decide');
  await page.waitForSelector('#answers .bars');
  const decided = await api('v1/systemone', {model: 'tiny', state: 'The house is on fire', questions: {
    urgent: {type: 'noul', instructions: 'Is this urgent?'},
    who: {type: 'choice', instructions: 'Who should come?', criteria: {firemen: 'put out fires', nobody: null}}}});
  assert.deepEqual((await texts('#answers h3')), [`urgent: ${decided.answers.urgent.noul >= 0.5}`,
                                                `question 2: ${decided.answers.who.choice}`]);
  assert.deepEqual(await texts('#answers .name'), ['true', 'false', 'firemen', 'nobody']);
  assert.equal((await texts('#answers .bars > span:nth-child(3)'))[0],
               `${(100 * decided.answers.urgent.noul).toFixed(decided.answers.urgent.noul < 0.1 ? 2 : 1)} %`);
  await shot('decide');

  // Names differ; options, and states in JSON, are sent as they were typed.
  await press('Add a question');
  await page.click('.question:nth-child(2) .buttons button');
  await press('Add a question');
  assert.deepEqual(await page.$$eval('.question .id', (l) => l.map((node) => node.value)), ['urgent', 'question 3', 'question 4']);
  for (const node of await page.$$('.question:not(:first-child)')) {
    await node.$eval('.instructions', (one) => { one.value = 'How many?'; });
    await node.$eval('.criteria', (one) => { one.value = '3: three\n1\n2\n10'; });
  }
  await fill('decide-state', '{"b": 12345678901234567890, "1": 0}');
  await page.$eval('.question:last-child .id', (node) => { node.value = 'question 3'; });
  const asked = posted.length;
  await press('Decide');
  await trouble('two questions');
  assert.equal(posted.length, asked);
  await page.$eval('.question:last-child .id', (node) => { node.value = '1'; });
  await press('Decide');
  await page.waitForFunction(() => document.querySelectorAll('#answers .card').length === 3);
  assert.deepEqual(await texts('#answers .name'), ['true', 'false', '3', '1', '2', '10', '3', '1', '2', '10']);
  assert.ok(posted.at(-1).includes('"data": {"b": 12345678901234567890, "1": 0}'));

  // A job: its events, its curve, and its model.
  await show('runs');
  await page.click('#new-job summary');
  await (await page.$('#job-file')).uploadFile(train);
  await fill('job-suffix', 'page');
  await page.type('#job-epochs', '3');
  const trained = async () => (await api('v1/files')).data.filter((file) => file.purpose === 'fine-tune').length;
  refused = '/v1/fine_tuning/jobs';
  await press('Train');
  await trouble('refused');
  assert.equal(await trained(), 0, 'a refused job leaves no file');
  refused = '';
  await press('Train');
  await press('Train');
  await page.waitForFunction(() => /succeeded/.test(document.getElementById('run-list').textContent));
  await page.waitForFunction(() => document.querySelectorAll('.events li').length > 2);
  await page.waitForSelector('#chart-loss path.line');
  const {data: [job, ...others]} = await api('v1/fine_tuning/jobs');
  assert.deepEqual([await trained(), others], [1, []], 'pressed twice, trained once');
  await shot('runs');
  manyJobs = [{data: Array.from({length: 100}, (_, i) => ({...job, id: `ftjob-${i}`})), has_more: true, last_id: 'ftjob-99'},
    {data: [job], has_more: false}];
  await page.waitForFunction(() => document.getElementById('run-list').textContent.split('succeeded').length === 102);
  manyJobs = null;
  await page.waitForFunction(() => document.querySelectorAll('#run-list tbody tr').length === 1);
  await press('Try it');
  await page.waitForSelector('#chat:not([hidden])');
  assert.match(await page.$eval('#chat-model', (select) => select.value), /^ft:tiny:local:page:/);

  await show('server');
  await page.waitForFunction(() => document.querySelectorAll('#tiles .tile').length === 8);
  assert.ok((await texts('#model-table tbody tr')).length >= 3);

  // A model that goes, here for another client: nothing else answers in its place.
  await api(`v1/models/${job.fine_tuned_model}`, undefined, 'DELETE');
  await page.waitForFunction(() => document.getElementById('chat-model').value === '');
  await show('chat');
  const before = posted.length;
  await page.type('#chat-text', 'Typed');
  await page.keyboard.press('Enter');
  await trouble('choose a model');
  assert.equal(await page.$eval('#chat-text', (node) => node.value), 'Typed');
  assert.equal(posted.length, before);
  await show('runs');
  await page.waitForFunction(() => /not served/.test(document.getElementById('run-list').textContent));
  assert.ok(!(await texts('#run-list button')).includes('Try it'));

  // Phone and dark: nothing is wider than the screen, and all text has contrast.
  for (const [width, scheme] of [[360, 'light'], [360, 'dark'], [1200, 'dark']]) {
    await page.setViewport({width, height: 800});
    await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: scheme}]);
    for (const part of ['chat', 'compare', 'decide', 'runs', 'server']) {
      await show(part);
      const sizes = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
      assert.ok(sizes[0] <= sizes[1], `${part} is ${sizes[0]} wide on a screen of ${sizes[1]}`);
      const pairs = await page.evaluate(() => [...document.querySelectorAll('h1,h2,h3,p,td,th,label,summary,button,a,.text,.name,.value')]
        .filter((n) => n.getClientRects().length > 0 && !n.disabled).map((node) => {
          let back = node;
          while (back && getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)') back = back.parentElement;
          return [getComputedStyle(node).color, back ? getComputedStyle(back).backgroundColor : 'rgb(255, 255, 255)', node.textContent.slice(0, 20)];
        }));
      assert.deepEqual(pairs.filter((pair) => contrast(pair) < 4.5), [], `text of low contrast, ${part} ${width} ${scheme}`);
      const nameless = await page.evaluate(() => [...document.querySelectorAll('input,select,textarea')].filter((node) =>
        node.labels.length === 0 && !node.getAttribute('aria-label')).map((node) => node.outerHTML));
      assert.deepEqual(nameless, [], 'fields without a label');
      await shot(`${part}-${width}-${scheme}`);
    }
  }
  assert.deepEqual(faults, [], 'console messages, errors or requests to others');
  console.log('ok: the page of servers in Chromium: key, chat, probabilities, marks, stop, compare, decide, jobs, refusals, phone, dark');
} catch (error) {
  console.error(said);
  throw error;
} finally {
  await browser.close();
  front.closeAllConnections();
  front.close();
  server.kill('SIGTERM');
  await new Promise((done) => { server.once('exit', done); setTimeout(done, 15000); });
  rmSync(folder, {recursive: true, force: true});
}

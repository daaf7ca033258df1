// The page of `qlora report` and of `train --dashboard` in headless Chromium.
//   node report_test.mjs --qlora PROGRAM [--shots DIR]
import assert from 'node:assert/strict';
import {execFileSync, spawn} from 'node:child_process';
import {cpSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {createServer} from 'node:net';
import {join} from 'node:path';
import {contrast, launch, newFolder, qlora, root, shots} from './browser.mjs';

const browser = await launch('the page of reports');
const folder = newFolder();
const common = ['--model', join(root, 'tests/golden/llama-tiny'), '--dataset',
  join(root, 'tests/golden/train-20/data.jsonl'), '--max_length', '64', '--val_set_size', '4'];
const train = (name, ...more) => execFileSync(qlora, ['train', ...common, '--output_dir', join(folder, name),
  '--eval_steps', '10', '--eval_on_start', '--max_steps', '30', ...more], {stdio: 'pipe'});
const lines = (name, log) => readFileSync(join(folder, name, log), 'utf8').trim().split('\n').map(JSON.parse);

try {
  train('first', '--sample_prompts', 'Once upon a time', '--sample_max_new_tokens', '8');
  train('second', '--learning_rate', '1e-2', '--lora_r', '4');
  const log = lines('first', 'train_log.jsonl');
  const evals = lines('first', 'eval_log.jsonl');

  // A page has as long as a busy machine needs.
  const newPage = async () => {
    const page = await browser.newPage();
    page.setDefaultTimeout(0);
    return page;
  };
  const open = async (runs, width, scheme) => {
    const file = join(folder, 'page.html');
    execFileSync(qlora, ['report', runs.map((r) => join(folder, r)).join(','), '--out', file], {stdio: 'pipe'});
    const page = await newPage();
    const faults = [];
    page.on('console', (m) => faults.push(m.text()));
    page.on('pageerror', (e) => faults.push(e.message));
    page.on('request', (r) => { if (!r.url().startsWith('file:') && !r.url().startsWith('data:')) faults.push(r.url()); });
    await page.setViewport({width, height: 900});
    await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: scheme}]);
    await page.goto(`file://${file}`);
    await page.waitForSelector('#chart-loss path.line');
    assert.deepEqual(faults, [], 'console messages, errors or requests');
    if (shots) await page.screenshot({path: join(shots, `report-${runs.length}-${width}-${scheme}.png`), fullPage: true});
    return page;
  };

  let page = await open(['first'], 1200, 'light');
  const points = (selector) => page.$eval(selector, (path) => (path.getAttribute('d').match(/[ML]/g) || []).length);
  assert.equal(await points('#chart-loss path.line'), log.length);
  assert.equal(await points('#chart-loss path.marks'), evals.length);
  for (const id of ['rate', 'norm', 'speed', 'memory']) assert.equal(await points(`#chart-${id} path.line`), log.length);
  assert.equal(await page.$$eval('#chart-memory .level', (l) => l.length), 1, 'the plan');
  assert.equal(await page.$$eval('.sample .after', (l) => l.length), 1);
  for (const text of await page.$$eval('.plot', (plots) => plots.map((p) => p.getAttribute('aria-label')))) {
    assert.match(text, /by step\. /);
  }
  assert.equal(await page.$$eval('.plot', (plots) => plots.filter((p) => p.querySelectorAll('.label').length !== 2).length), 0);

  // Pointer, then keyboard.
  const plot = await page.$('#chart-loss svg.plot');
  const box = await plot.boundingBox();
  const tip = () => page.$eval('#chart-loss .tip', (node) => (node.hidden ? null : node.innerText));
  await page.mouse.move(box.x + box.width - 13, box.y + 60);
  const shown = Number(log.at(-1).loss.toPrecision(4));
  assert.match(await tip(), new RegExp(`step 30[\\s\\S]*loss\\s+${shown}`));
  await page.mouse.move(5, 5);
  assert.equal(await tip(), null);
  await plot.evaluate((node) => node.focus());
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowRight');
  assert.match(await tip(), /^step [12]\n/);
  await page.keyboard.press('Escape');
  assert.equal(await tip(), null);

  await page.select('#axis', 'epoch');
  assert.match(await page.$eval('#chart-loss .plot', (p) => p.getAttribute('aria-label')), /by epoch/);
  await page.$eval('#smoothing', (s) => { s.value = '0.6'; s.dispatchEvent(new Event('input')); });
  assert.equal(await points('#chart-loss path.faint'), log.length);
  await page.click('#log');
  await page.close();

  for (const [width, scheme] of [[1200, 'dark'], [360, 'light'], [360, 'dark']]) {
    page = await open(['first', 'second'], width, scheme);
    const sizes = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    assert.ok(sizes[0] <= sizes[1], `the page is ${sizes[0]} wide on a screen of ${sizes[1]}`);
    const pairs = await page.evaluate(() => [...document.querySelectorAll('h1,h2,h3,h4,p,td,th,label,.name,.value,.note,summary,.plot text')].filter((n) => n.getClientRects().length > 0).map((node) => {
      let back = node;
      while (back && getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)') back = back.parentElement;
      const style = getComputedStyle(node);
      return [node.namespaceURI.endsWith('svg') ? style.fill : style.color,
              back ? getComputedStyle(back).backgroundColor : 'rgb(255, 255, 255)'];
    }));
    assert.equal(await page.$eval('#summary .hint', (p) => p.getClientRects().length > 0), width < 760,
                 'the hint that the table scrolls');
    const low = pairs.filter((pair) => contrast(pair) < 4.5);
    assert.deepEqual(low, [], `text of low contrast, ${width} ${scheme}`);
    // Two runs differ in more than colour, and can be hidden.
    const dashes = await page.$$eval('#chart-loss path.line', (l) => l.map((p) => p.getAttribute('stroke-dasharray')));
    assert.equal(new Set(dashes).size, 2);
    await page.click('#legend li:last-child button');
    assert.equal(await page.$$eval('#chart-loss path.line', (l) => l.length), 1);
    assert.equal(await page.$eval('#legend li:last-child button', (b) => b.getAttribute('aria-pressed')), 'false');
    await page.close();
  }

  // Ranks are shown where the log has them.
  cpSync(join(folder, 'first'), join(folder, 'ranks'), {recursive: true});
  writeFileSync(join(folder, 'ranks', 'train_log.jsonl'), log.map((line) => `${JSON.stringify({...line,
    ranks: [{computing: 3, waiting: 1, memory: 2 ** 20}, {computing: 4, waiting: 0, memory: 2 ** 20}]})}\n`).join(''));
  page = await open(['first', 'ranks'], 360, 'light');
  const rows = await page.$$eval('#ranks tbody tr', (l) => l.map((row) => [...row.cells].map((cell) => cell.textContent)));
  assert.deepEqual(rows, [['0', '75.0 %', '25.0 %', '1 MiB', ''], ['1', '100.0 %', '0.0 %', '1 MiB', '']]);
  await page.close();
  page = await open(['first'], 1200, 'light');
  assert.equal(await page.$eval('#ranks-section', (section) => section.hidden), true);
  assert.equal(await page.$eval('#tasks-section', (section) => section.hidden), true);
  await page.close();

  // Tasks are shown where their figures lie in the folder, with what was lost.
  cpSync(join(folder, 'first'), join(folder, 'tasks'), {recursive: true});
  writeFileSync(join(folder, 'tasks', 'gate.json'), JSON.stringify({tasks: [{task: 'arc', figure: 'acc', value: 0.5,
    with: 0.25, difference: -0.25, low: -0.4, high: -0.1, p: 0.01, test: 'McNemar', lost: true,
    examples: [{task: 'arc', doc: 3}]}]}));
  page = await open(['tasks'], 360, 'light');
  const tasks = await page.$$eval('#tasks tbody tr', (l) => l.map((row) => [...row.cells].map((cell) => cell.textContent)));
  assert.deepEqual(tasks, [['arc', 'acc', '0.5000', '0.2500', '-0.2500', '-0.4000 to -0.1000', '', '0.0100 McNemar', 'lost']]);
  assert.equal(await page.$$eval('#tasks pre', (l) => l.length), 1);
  await page.close();

  // A single step is not drawn beside a step 0 that the run does not have.
  execFileSync(qlora, ['train', ...common, '--output_dir', join(folder, 'one'), '--max_steps', '1'], {stdio: 'pipe'});
  page = await open(['one'], 1200, 'light');
  const steps = await page.$$eval('#chart-rate .plot text[text-anchor=middle]:not(.label)', (l) => l.map((t) => t.textContent));
  assert.deepEqual(steps, ['1']);
  await page.close();

  // Live, during training.
  const port = await new Promise((done) => {
    const probe = createServer().listen(0, '127.0.0.1', () => {
      const {port: free} = probe.address();
      probe.close(() => done(free));
    });
  });
  const running = spawn(qlora, ['train', ...common, '--output_dir', join(folder, 'live'), '--max_steps', '1000000',
    '--dashboard', String(port)], {stdio: 'ignore'});
  try {
    page = await newPage();
    const errors = [];
    page.on('pageerror', (e) => errors.push(e.message));
    const url = `http://127.0.0.1:${port}/`;
    for (let i = 0; i < 100; ++i) {
      try { await page.goto(url); break; } catch { await new Promise((r) => setTimeout(r, 100)); }
    }
    await page.waitForFunction(() => /step [\d,]+ of 1,000,000/.test(document.getElementById('state').textContent));
    const before = await page.$eval('#state', (n) => n.textContent);
    await page.waitForFunction((old) => document.getElementById('state').textContent !== old, {}, before);
    if (shots) await page.screenshot({path: join(shots, 'live.png')});
    assert.deepEqual(errors, []);
  } finally {
    running.kill('SIGKILL');
  }
  console.log('ok: the page of reports in Chromium: curves, hover, keys, phone, dark, two runs, live');
} finally {
  await browser.close();
  rmSync(folder, {recursive: true, force: true});
}

'use strict';
// Fills the page from the record of one or more runs, and keeps it up to date during training.

const byId = (id) => document.getElementById(id);
const record = JSON.parse(byId('record').textContent);
const hidden = new Set();  // names of runs that are not drawn
const text = (tag, value, attributes = {}) => make(tag, attributes, String(value));

// The power of 1024 in which a size is written.
function byteUnit(value) {
  let unit = 1;
  while (Math.abs(value) >= 1000 * unit && unit < 2 ** 40) unit *= 1024;
  return unit;
}
function bytes(value) {
  if (value === null || !Number.isFinite(value)) return '–';
  const unit = byteUnit(value);
  const name = {[1]: 'B', [2 ** 10]: 'KiB', [2 ** 20]: 'MiB', [2 ** 30]: 'GiB', [2 ** 40]: 'TiB'}[unit];
  return `${Number((value / unit).toPrecision(3))} ${name}`;
}
function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const two = (n) => String(Math.floor(n)).padStart(2, '0');
  const minutes = seconds / 60;
  if (minutes < 60) return `${Math.floor(minutes)}:${two(seconds % 60)} min`;
  return `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
}
const count = (value) => Number(value).toLocaleString('en-US');
const percent = (part, whole) => (whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : '–');

const last = (list) => list[list.length - 1];
const numbers = (list) => (list || []).filter((v) => Number.isFinite(v));
const greatest = (list) => numbers(list).reduce((a, b) => Math.max(a, b), -Infinity);
function median(list) {
  const sorted = numbers(list).sort((a, b) => a - b);
  return sorted.length === 0 ? NaN : sorted[sorted.length >> 1];
}
function sum(list) { return numbers(list).reduce((a, b) => a + b, 0); }

// Time since the start; a resumed run counts from 0 again.
function elapsed(steps) {
  let before = 0;
  let latest = 0;
  return (steps.elapsed || []).map((seconds) => {
    if (seconds < latest) before += latest;
    latest = seconds;
    return before + seconds;
  });
}

function figures(run) {
  const steps = run.steps;
  const losses = numbers(run.evals.eval_loss);
  const best = losses.length > 0 ? Math.min(...losses) : NaN;
  const at = (run.evals.eval_loss || []).indexOf(best);
  return {
    step: last(steps.step || []) || 0,
    loss: last(numbers(steps.loss)),
    best,
    bestStep: at >= 0 ? (run.evals.step || [])[at] : NaN,
    perplexity: at >= 0 ? (run.evals.eval_perplexity || [])[at] : NaN,
    firstEval: losses.length > 1 ? losses[0] : NaN,
    tokens: run.tokens,
    speed: median(steps.tokens_per_second),
    share: median(steps.limit_share || []),
    memory: greatest(steps.memory),
    plan: run.memory ? run.memory.peak : NaN,
    seconds: last(elapsed(steps)),
    skipped: sum((steps.skipped || []).map(Number)),
    spikes: sum((steps.spike || []).map(Number)),
  };
}

function tile(name, value, note) {
  return make('div', {class: 'tile'}, text('div', name, {class: 'name'}),
              text('div', value, {class: 'value'}), note ? text('div', note, {class: 'note'}) : null);
}

function drawSummary(runs) {
  if (runs.length === 0) return byId('summary').replaceChildren(text('p', 'Waiting for the first step.'));
  if (runs.length === 1) {
    const f = figures(runs[0]);
    const tiles = [
      tile('Training loss', number(f.loss ?? NaN), `at step ${count(f.step)} of ${count(runs[0].total_steps)}`)];
    if (Number.isFinite(f.best)) {
      tiles.push(tile('Best evaluation loss', number(f.best),
        `at step ${count(f.bestStep)}` + (Number.isFinite(f.firstEval) ? `, first ${number(f.firstEval)}` : '')));
      if (Number.isFinite(f.perplexity)) tiles.push(tile('Perplexity', number(f.perplexity), 'of the best evaluation'));
    }
    tiles.push(tile('Trained tokens', count(f.tokens), `in ${duration(f.seconds)}`),
               tile('Speed', `${number(Number(f.speed.toPrecision(3)))}`, 'tokens/s, median of the steps' +
                 (Number.isFinite(f.share) ? `, ${percent(f.share, 1)} of the limit of the machine` : '')),
               tile('Peak memory', bytes(f.memory), Number.isFinite(f.plan)
                 ? `${percent(f.memory, f.plan)} of the plan, ${bytes(f.plan)}` : ''),
               tile('Skipped steps', f.skipped, f.spikes > 0 ? `loss spikes: ${f.spikes}` : 'no loss spikes'));
    return byId('summary').replaceChildren(make('div', {class: 'tiles'}, ...tiles));
  }
  const heads = ['Run', 'Steps', 'Loss', 'Best eval loss', 'Perplexity', 'Tokens', 'Tokens/s', 'Peak memory', 'Plan', 'Time'];
  const rows = runs.map((run, i) => {
    const f = figures(run);
    const values = [count(f.step), number(f.loss ?? NaN), Number.isFinite(f.best) ? number(f.best) : '–',
      Number.isFinite(f.perplexity) ? number(f.perplexity) : '–', count(f.tokens),
      number(Number(f.speed.toPrecision(3))), bytes(f.memory), bytes(f.plan), duration(f.seconds)];
    return make('tr', {}, make('td', {}, sign(i), ' ', run.name), ...values.map((v) => text('td', v)));
  });
  byId('summary').replaceChildren(text('p', 'The table is wider than this screen: scroll it sideways.',
    {class: 'hint narrow'}), make('div', {class: 'card scroll', tabindex: '0', role: 'region',
    'aria-label': 'Summary of the runs'}, make('table', {},
    make('thead', {}, make('tr', {}, ...heads.map((h) => text('th', h, {scope: 'col'})))),
    make('tbody', {}, ...rows))));
}

// The line of a run as it is drawn in the charts.
function sign(i) {
  const svg = make('svg', {width: 30, height: 12, 'aria-hidden': 'true'});
  svg.append(make('path', {d: 'M1 6H29', stroke: colorOf(i), 'stroke-width': 2.5, fill: 'none',
                           'stroke-dasharray': dashOf(i)}),
             make('path', {d: markPath(i, 15, 6, 4), style: `fill:${colorOf(i)}`}));
  return svg;
}

function drawLegend(runs) {
  byId('legend').hidden = runs.length < 2;
  byId('legend').replaceChildren(...runs.map((run, i) => make('li', {}, make('button', {
    type: 'button',
    'aria-pressed': String(!hidden.has(run.name)),
    onclick: (event) => {
      if (!hidden.delete(run.name)) hidden.add(run.name);
      event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(run.name)));
      drawCurves(record.runs);
    },
  }, sign(i), run.name))));
}

// Exponential moving average without the bias of its start, over the finite numbers.
function smooth(values, share) {
  if (share === 0) return values;
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = share * mean + (1 - share) * value;
    weight = share * weight + (1 - share);
    return mean / weight;
  });
}

const shortNumber = (value) => {
  if (value === null || !Number.isFinite(value)) return 'not a number';
  return Math.abs(value) >= 1e4 ? `${number(Number((value / 1000).toPrecision(3)))}k` : number(value);
};
const charts = {
  loss: new LineChart({id: 'loss', title: 'Loss', unit: 'nats per token', large: true}),
  accuracy: new LineChart({id: 'accuracy', title: 'Token accuracy', unit: 'share of tokens', zero: true}),
  rate: new LineChart({id: 'rate', title: 'Learning rate', unit: 'learning rate', zero: true}),
  norm: new LineChart({id: 'norm', title: 'Gradient norm', unit: 'norm before clipping', zero: true}),
  speed: new LineChart({id: 'speed', title: 'Speed', unit: 'tokens per second', format: shortNumber, zero: true}),
  memory: new LineChart({id: 'memory', title: 'Memory', unit: 'resident memory', format: bytes, zero: true,
                         tickUnit: byteUnit}),
};
byId('charts').append(...Object.values(charts).map((chart) => chart.node));

// What steps and evaluations have besides the metrics of what is trained.
const fixedSteps = ['step', 'epoch', 'loss', 'grad_norm', 'learning_rate', 'tokens', 'tokens_per_second', 'limit_share', 'memory',
  'elapsed', 'skipped', 'spike', 'ranks', 'questions'];
const fixedEvals = ['loss', 'perplexity', 'best', 'tokens', 'runtime', 'questions'];

// The metrics of a run, each with a chart: token_accuracy, brier ...
function metricsOf(run) {
  const evals = Object.keys(run.evals).filter((key) => key.startsWith('eval_')).map((key) => key.slice(5));
  const names = [...Object.keys(run.steps).filter((key) => !fixedSteps.includes(key)),
                 ...evals.filter((key) => !fixedEvals.includes(key))];
  return [...new Set(names)].filter((key) =>
    numbers(run.steps[key]).length + numbers(run.evals[`eval_${key}`]).length > 0);
}
function chartOf(metric) {
  if (metric === 'token_accuracy') return 'accuracy';
  if (!charts[metric]) {
    const title = metric[0].toUpperCase() + metric.slice(1).replaceAll('_', ' ');
    charts[metric] = new LineChart({id: metric, title, unit: 'mean', zero: true});
    charts.rate.node.before(charts[metric].node);
  }
  return metric;
}

function drawCurves(runs) {
  const axis = byId('axis').value;
  const share = Number(byId('smoothing').value);
  byId('smoothing-value').textContent = share === 0 ? 'off' : share.toFixed(2);
  const xLabel = {step: 'step', epoch: 'epoch', time: 'minutes'}[axis];
  const metrics = [...new Set(runs.flatMap(metricsOf))];
  for (const metric of metrics) chartOf(metric);
  const series = Object.fromEntries(Object.keys(charts).map((name) => [name, []]));
  const levels = [];
  const logY = byId('log').checked;
  runs.forEach((run, index) => {
    if (hidden.has(run.name)) return;
    const steps = run.steps;
    if (!steps.step) return;
    const label = runs.length > 1 ? `${run.name}: ` : '';
    const xs = {step: steps.step, epoch: steps.epoch, time: elapsed(steps).map((s) => s / 60)}[axis];
    const xAt = (step) => {
      if (axis === 'step') return step;
      return step === 0 ? 0 : xs[nearest(steps.step, step)];
    };
    const line = (name, ys, more) => ({run: index, name: label + name, xs, ys, kind: 'line', ...more});
    if (share > 0) {
      series.loss.push(line('loss', steps.loss, {kind: 'faint', key: 'training, each step', dash: ''}),
                       line('loss, smoothed', smooth(steps.loss, share), {key: 'training, smoothed'}));
    } else {
      series.loss.push(line('loss', steps.loss, {key: 'training'}));
    }
    if (run.evals.step) {
      const evalXs = run.evals.step.map(xAt);
      series.loss.push({run: index, name: `${label}evaluation`, xs: evalXs, ys: run.evals.eval_loss,
                        kind: 'marks', key: 'evaluation', dash: '1 3'});
      for (const metric of metrics) {
        const ys = run.evals[`eval_${metric}`];
        if (!ys) continue;
        series[chartOf(metric)].push({run: index, name: `${label}evaluation`, xs: evalXs, ys, kind: 'marks',
                                      key: 'evaluation', dash: '1 3'});
      }
    }
    const odd = steps.step.map((_, i) => i).filter((i) =>
      (steps.skipped && steps.skipped[i]) || (steps.spike && steps.spike[i]));
    if (odd.length > 0) {
      series.loss.push({run: index, name: 'skipped or spike', xs: odd.map((i) => xs[i]),
                        ys: odd.map((i) => steps.loss[i]), kind: 'cross', key: 'skipped step or loss spike'});
    }
    for (const metric of metrics) {
      if (!steps[metric]) continue;
      series[chartOf(metric)].push(line('training', smooth(steps[metric], share), {key: 'training'}));
    }
    series.rate.push(line('learning rate', steps.learning_rate));
    series.norm.push(line('gradient norm', smooth(steps.grad_norm, share)));
    series.speed.push(line('tokens/s', smooth(steps.tokens_per_second, share)));
    series.memory.push(line('in use', steps.memory, {key: 'in use'}));
    if (run.memory) {
      levels.push({run: index, name: `${label}planned peak`, value: run.memory.peak, key: 'planned peak',
                   dash: '6 4'});
    }
  });
  // A run of other metrics has no tokens that it could predict.
  charts.accuracy.node.style.display = metrics.length > 0 && series.accuracy.length === 0 ? 'none' : '';
  for (const [name, chart] of Object.entries(charts)) {
    chart.set({series: series[name], xLabel, logY: logY && name === 'loss',
               levels: name === 'memory' ? levels : []});
  }
}

// The share of right answers by their probability, before and after temperature.
function reliabilityPlot(lines) {
  const at = (v) => 10 + 220 * v;
  const svg = make('svg', {viewBox: '0 0 300 260', class: 'plot', role: 'img',
                           'aria-label': 'Share of right answers by their probability', style: 'height:260px'});
  svg.append(make('path', {d: `M${at(0) + 30} ${240 - at(0)}L${at(1) + 30} ${240 - at(1)}`, stroke: 'currentColor',
                           'stroke-dasharray': '4 4', opacity: 0.5, fill: 'none'}));
  for (const v of [0, 0.5, 1]) {
    svg.append(make('text', {x: at(v) + 30, y: 252, 'text-anchor': 'middle', 'font-size': 11, fill: 'currentColor'}, String(v)),
               make('text', {x: 32, y: 244 - at(v), 'text-anchor': 'end', 'font-size': 11, fill: 'currentColor'}, String(v)));
  }
  lines.forEach(({bins}, i) => {
    const points = bins.map((b) => [at(b.confidence) + 30, 240 - at(b.accuracy)]);
    svg.append(make('path', {d: `M${points.map((p) => p.join(' ')).join('L')}`, stroke: colorOf(i), fill: 'none',
                             'stroke-width': 2, 'stroke-dasharray': dashOf(i)}),
               ...points.map(([x, y]) => make('path', {d: markPath(i, x, y, 4), style: `fill:${colorOf(i)}`})));
  });
  return svg;
}
function drawReliability(runs) {
  const cards = runs.filter((run) => run.decision).flatMap((run) => Object.keys(run.decision).map((type) => {
    const before = run.decision_before_temperature && run.decision_before_temperature[type];
    const parts = [['after temperature', run.decision[type]], ['before', before]].filter(([, metrics]) => metrics);
    if (parts.length === 1) parts[0][0] = 'answers';
    const heads = ['', 'Accuracy', 'Log loss', 'Brier', 'ECE'];
    return make('div', {class: 'card'},
      text('h3', runs.length > 1 ? `${run.name}: ${type}` : type),
      reliabilityPlot(parts.map(([, metrics]) => ({bins: metrics.reliability}))),
      make('table', {}, make('thead', {}, make('tr', {}, ...heads.map((h) => text('th', h, {scope: 'col'})))),
        make('tbody', {}, ...parts.map(([name, m], i) => make('tr', {}, make('td', {}, sign(i), ` ${name}`),
          ...[m.accuracy, m.log_loss, m.brier, m.ece].map((v) => text('td', Number.isFinite(v) ? v.toFixed(4) : '–')))))));
  }));
  byId('reliability-section').hidden = cards.length === 0;
  byId('reliability').replaceChildren(make('div', {class: 'pair'}, ...cards));
}

// A difference with its interval, around 0; extent: the largest that is drawn.
function intervalPlot({difference, low, high}, extent) {
  const svg = make('svg', {viewBox: '0 0 124 16', width: 124, height: 16, 'aria-hidden': 'true'});
  const at = (v) => 62 + (extent > 0 ? 56 * v / extent : 0);
  svg.append(make('path', {d: 'M62 1V15', stroke: 'currentColor', opacity: 0.5}));
  if (![difference, low, high].every(Number.isFinite)) return svg;
  svg.append(make('path', {d: `M${at(low)} 8H${at(high)}`, stroke: 'var(--accent)', 'stroke-width': 2}),
             make('path', {d: markPath(0, at(difference), 8, 4), style: 'fill:var(--accent)'}));
  return svg;
}
function verdict({lost, by_chance: byChance, p, difference, higher_is_better: higher}) {
  if (lost !== undefined) return lost ? 'lost' : byChance ? 'kept (chance)' : 'kept';
  if (!Number.isFinite(p) || higher === undefined) return '';
  return p > 0.05 ? 'no difference shown' : (difference > 0) === higher ? 'better' : 'worse';
}
function drawTasks(runs) {
  const fixed = (v) => (Number.isFinite(v) ? v.toFixed(4) : '–');
  const signed = (v) => (v > 0 ? '+' : '') + fixed(v);
  const heads = ['Task', 'Metric', 'Before', 'After', 'Difference', '95 %', '', 'p', 'Verdict'];
  const cards = runs.flatMap((run) => run.tasks.map(({name, rows}) => {
    const bounds = (task) => rows.filter((r) => r.task === task).flatMap((r) => [r.low, r.high]);
    const lines = rows.map((r) => make('tr', {class: r.lost ? 'lost' : false},
      ...[r.task, r.figure, fixed(r.value), fixed(r.with), signed(r.difference)].map((v) => text('td', v)),
      text('td', Number.isFinite(r.low) ? `${signed(r.low)} to ${signed(r.high)}` : '–'),
      make('td', {}, intervalPlot(r, greatest(numbers(bounds(r.task)).map(Math.abs)))),
      text('td', Number.isFinite(r.p) ? `${fixed(r.p)} ${r.test}` : '–'), text('td', verdict(r))));
    const lost = rows.filter((r) => r.lost && r.examples).flatMap((r) => r.examples);
    return make('div', {class: 'card scroll block', tabindex: '0', role: 'region', 'aria-label': `Tasks: ${name}`},
      text('h3', runs.length > 1 ? `${run.name}: ${name}` : name),
      make('table', {}, make('thead', {}, make('tr', {}, ...heads.map((h) => text('th', h, {scope: 'col'})))),
           make('tbody', {}, ...lines)),
      lost.length === 0 ? null : make('details', {}, text('summary', `${lost.length} examples of what was lost`),
        ...lost.map((sample) => text('pre', JSON.stringify(sample, null, 1)))));
  }));
  byId('tasks-section').hidden = cards.length === 0;
  byId('tasks').replaceChildren(...cards);
}

// How the ranks of runs on several spend a step.
function drawRanks(runs) {
  const heads = ['Rank', 'Computing', 'Waiting', 'Memory', ''];
  const cards = runs.filter((run) => run.ranks.length > 0).map((run) => {
    const rows = run.ranks.map(({computing, waiting, memory}, rank) => {
      const all = computing + waiting;
      return make('tr', {},
        ...[rank, percent(computing, all), percent(waiting, all), bytes(memory)].map((v) => text('td', v)),
        make('td', {style: 'width:40%'}, make('span', {class: 'share', 'aria-hidden': 'true'},
          make('span', {style: `width:${100 * computing / all || 0}%`}))));
    });
    return make('div', {class: 'card scroll block', tabindex: '0', role: 'region', 'aria-label': `Ranks of ${run.name}`},
      runs.length > 1 ? text('h3', run.name) : null,
      make('table', {}, make('thead', {}, make('tr', {}, ...heads.map((h) => text('th', h, {scope: 'col'})))),
           make('tbody', {}, ...rows)));
  });
  byId('ranks-section').hidden = cards.length === 0;
  byId('ranks').replaceChildren(...cards);
}

function drawSamples(runs) {
  const cards = [];
  const all = runs.flatMap((run, i) => run.samples.map((sample) => ({...sample, run, i})));
  const whose = ({run, i}) => (runs.length > 1 ? [sign(i), ` ${run.name}, `] : []);
  const box = (s, kind, ...heading) => make('div', {class: kind}, make('h4', {}, ...heading),
                                            text('p', s.text || '(nothing)'));
  for (const prompt of new Set(all.map((s) => s.prompt))) {
    const texts = all.filter((s) => s.prompt === prompt);
    const befores = new Map(texts.filter((s) => s.step === 0).map((s) => [s.text, s]));
    const afters = runs.map((_, i) => last(texts.filter((s) => s.i === i && s.step > 0))).filter(Boolean);
    const between = texts.filter((s) => s.step > 0 && !afters.includes(s));
    cards.push(make('article', {class: 'card sample'},
      make('p', {class: 'prompt'}, 'Prompt: ', text('strong', prompt)),
      make('div', {class: 'pair'},
        ...[...befores.values()].map((s) => box(s, 'before', ...(befores.size > 1 ? whose(s) : []), 'before')),
        ...afters.map((s) => box(s, 'after', ...whose(s), `after step ${count(s.step)}`))),
      between.length === 0 ? null : make('details', {},
        text('summary', `${between.length} in between`),
        make('div', {class: 'pair'},
             ...between.map((s) => box(s, 'before', ...whose(s), `after step ${count(s.step)}`))))));
  }
  byId('samples-section').hidden = cards.length === 0 && !record.live;
  if (cards.length === 0) cards.push(text('p', 'None: set sample_prompts to have texts written before and after.'));
  byId('samples').replaceChildren(...cards);
}

function dataCard(title, data) {
  const largest = data.largest ?? data.longest;  // runs of earlier programs have no largest
  const tiles = [
    tile('Samples', count(data.samples), data.files.map((f) => last(f.path.split('/'))).join(', ')),
    tile('Tokens', count(data.tokens), `${number(data.tokens / data.samples)} per sample on average`),
    tile('Trained on', percent(data.trained_tokens, data.tokens), `${count(data.trained_tokens)} tokens`),
    tile('Lengths', `${count(data.shortest)} to ${count(largest)}`,
         `max_length ${count(data.max_length)}${largest === data.longest ? '' : `, longest sequence ${count(data.longest)}`}`)];
  const {bucket_width: width, counts} = data.histogram;
  const most = Math.max(...counts, 1);
  const first = counts.findIndex((n) => n > 0);
  const bars = counts.flatMap((n, b) => b < first ? [] : [
    text('span', `${b * width + 1}–${(b + 1) * width}`, {class: 'from'}),
    make('span', {class: 'bar', style: `width:${100 * n / most}%${n === 0 ? ';visibility:hidden' : ''}`}),
    text('span', count(n))]);
  const remarks = Object.entries(record.remarks).filter(([key]) => data[key] > 0);
  return make('div', {class: 'block'}, text('h3', title),
    make('div', {class: 'tiles', style: 'margin-top:8px'}, ...tiles),
    make('div', {class: 'card block'}, text('h3', 'Tokens per sample'),
         make('div', {class: 'bars', style: 'margin-top:8px'}, ...bars)),
    remarks.length === 0 ? null : make('ul', {class: 'remarks'},
      ...remarks.map(([key, what]) => text('li', `${what}: ${count(data[key])}`))));
}

// Runs on the same data share a card.
function drawData(runs) {
  const cards = new Map();
  for (const run of runs) {
    for (const [data, what] of [[run.data, 'Training data'], [run.eval_data, 'Evaluation data']]) {
      if (!data) continue;
      const same = what + JSON.stringify(data);
      if (!cards.has(same)) cards.set(same, {data, what, names: []});
      cards.get(same).names.push(run.name);
    }
  }
  const titles = [...cards.values()].map(({data, what, names}) =>
    dataCard(names.length < runs.length ? `${what} of ${names.join(', ')}` : what, data));
  byId('data-view').replaceChildren(...(titles.length > 0 ? titles : [text('p', 'Not recorded.')]));
}

function optionTable(keys, runs) {
  return make('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Options'},
    make('table', {class: 'plain'},
      make('thead', {}, make('tr', {}, text('th', 'option', {scope: 'col'}),
        ...runs.map((run) => text('th', runs.length > 1 ? run.name : 'value', {scope: 'col'})))),
      make('tbody', {}, ...keys.map((key) => make('tr', {}, make('td', {}, text('code', key)),
        ...runs.map((run) => text('td', run.options[key] ?? '')))))));
}

function drawOptions(runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.options)))].sort();
  const differ = keys.filter((key) => new Set(runs.map((run) => String(run.options[key]))).size > 1);
  const parts = [];
  if (runs.length > 1) {
    parts.push(make('div', {class: 'card'}, text('h3', 'What differs between the runs'),
                    differ.length > 0 ? optionTable(differ, runs) : text('p', 'Nothing.')));
  }
  parts.push(make('details', {class: 'block'}, text('summary', `All ${keys.length} options`),
                  optionTable(keys, runs)));
  byId('options').replaceChildren(...parts);
}

// Redraws the parts whose data changed.
const drawn = new Map();
function update() {
  const {runs} = record;
  const names = runs.map((run) => run.name).join(', ');
  byId('title').textContent = runs.length === 0 ? 'Training' : names;
  document.title = `${names || 'training'} · qlora`;
  const parts = [
    [drawSummary, runs.map((r) => [r.name, r.steps, r.evals, r.total_steps])],
    [drawLegend, runs.map((r) => r.name)],
    [drawCurves, runs.map((r) => [r.name, r.steps, r.evals])],
    [drawReliability, runs.map((r) => [r.name, r.decision, r.decision_before_temperature])],
    [drawTasks, runs.map((r) => [r.name, r.tasks])],
    [drawRanks, runs.map((r) => [r.name, r.ranks])],
    [drawSamples, runs.map((r) => r.samples)],
    [drawData, runs.map((r) => [r.data, r.eval_data])],
    [drawOptions, runs.map((r) => r.options)]];
  for (const [draw, data] of parts) {
    const now = JSON.stringify(data);
    if (drawn.get(draw) !== now) draw(runs);
    drawn.set(draw, now);
  }
  const notes = [];
  for (const run of runs.filter((run) => run.every > 1)) {
    notes.push(`${run.name} shows every ${run.every}th step`);
  }
  for (const run of runs.filter((run) => run.every_eval > 1)) {
    notes.push(`${run.name} shows every ${run.every_eval}th evaluation, the best and the last`);
  }
  for (const run of runs.filter((run) => run.samples_left_out > 0)) {
    notes.push(`${run.name}: ${count(run.samples_left_out)} samples are left out, see samples.jsonl`);
  }
  byId('state').textContent = [record.live ? liveState(runs[0]) : '', ...notes].filter(Boolean).join(' · ');
}

function liveState(run) {
  if (!run || !run.steps.step) return 'waiting for the first step';
  const f = figures(run);
  const share = f.step / run.total_steps;
  byId('progress').hidden = false;
  byId('progress').firstElementChild.style.width = `${100 * share}%`;
  if (run.finished) return `finished after ${count(f.step)} steps`;
  const left = f.seconds / f.step * (run.total_steps - f.step);
  return `step ${count(f.step)} of ${count(run.total_steps)} · about ${duration(left)} left`;
}

for (const id of ['axis', 'smoothing', 'log']) {
  byId(id).addEventListener('input', () => drawCurves(record.runs));
}
update();

// During training: new data, at a pace that costs the run little.
async function poll() {
  const start = performance.now();
  let next = 2000;
  try {
    const answer = await fetch('data.json', {cache: 'no-store'});
    if (!answer.ok) throw new Error(answer.statusText);
    Object.assign(record, await answer.json());
    record.live = true;
    update();
    next = Math.max(next, 20 * (performance.now() - start));
    if (record.runs[0] && record.runs[0].finished) return;
  } catch (error) {
    byId('state').textContent = 'The run does not answer any more; this page shows what it had until then.';
    next = 5000;
  }
  setTimeout(poll, next);
}
if (record.live) poll();

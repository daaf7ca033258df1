
'use strict';
// The page of `qlora serve`, after chart.js. Texts of models become text nodes, never HTML.

const byId = (id) => document.getElementById(id);
const setText = (node, value) => { if (node.textContent !== value) node.textContent = value; };
const button = (label, onclick, attributes = {}) => make('button', {type: 'button', onclick, ...attributes}, label);
const facts = (...parts) => parts.filter(Boolean).join(' · ');
const percent = (p) => `${(100 * p).toFixed(p < 0.1 ? 2 : 1)} %`;
function bytes(value) {
  const unit = value >= 2 ** 30 ? ['GiB', 2 ** 30] : ['MiB', 2 ** 20];
  return `${Number((value / unit[1]).toPrecision(3))} ${unit[0]}`;
}
// Replaces what a node has, and leaves the focus where it was.
function refill(node, children) {
  const key = document.activeElement && node.contains(document.activeElement) && document.activeElement.dataset.key;
  node.replaceChildren(...children);
  if (key) [...node.querySelectorAll('[data-key]')].find((one) => one.dataset.key === key)?.focus();
}

// ---- The server.

let key = '';       // is kept here alone
let asking = null;  // one dialog for all requests that wait for a key

function askForKey(trouble) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = byId('key-dialog');
    byId('key-trouble').textContent = trouble;
    byId('key').value = '';
    byId('key-form').onsubmit = (event) => {
      event.preventDefault();
      key = byId('key').value.trim();
      dialog.onclose = null;
      dialog.close();
      resolve();
    };
    dialog.onclose = () => reject(new Error('the server asks for a key'));
    dialog.showModal();
  }).finally(() => { asking = null; });
  return asking;
}

// Returns the answer of the server; json: a value, or its text. Errors: with what the server says, and its status.
async function send(path, {json, form, method = json || form ? 'POST' : 'GET', signal, asks = true} = {}) {
  for (;;) {
    const used = key;
    const headers = used ? {Authorization: `Bearer ${used}`} : {};
    if (json) headers['Content-Type'] = 'application/json';
    const response = await fetch(path, {method, headers,
      body: typeof json === 'object' ? JSON.stringify(json) : json ?? form, signal});
    if (response.ok) return response;
    const body = await response.json().catch(() => null);
    const trouble = new Error(body?.error?.message ?? `the server answered ${response.status}`);
    if (response.status !== 401 || !asks) throw Object.assign(trouble, {status: response.status});
    if (used === key) await askForKey(used ? 'The server does not take this key.' : '');
  }
}
const get = async (path, options) => (await send(path, options)).json();

function showTrouble(error) {
  byId('trouble').hidden = !error;
  byId('trouble').textContent = error ? error.message : '';
}
// Runs what a button does, once at a time; what goes wrong is shown.
function guarded(work) {
  let runs = false;
  return async (event) => {
    event?.preventDefault?.();
    if (runs) return;
    runs = true;
    const node = event?.submitter ?? event?.currentTarget;
    node?.setAttribute('aria-disabled', 'true');  // keeps the focus, which `disabled` does not
    showTrouble(null);
    try {
      await work(event);
    } catch (error) {
      showTrouble(error);
    } finally {
      runs = false;
      node?.removeAttribute('aria-disabled');
    }
  };
}

let options = {runs: false, marks: false};
let models = [];

const modelOptions = () => models.map((model) => make('option', {value: model.id},
  model.parent ? `${model.id} (adapter of ${model.parent})` : model.id));
const isServed = (name) => models.some((model) => model.id === name);
async function loadModels(options) {
  const {data} = await get('/v1/models', options);
  if (JSON.stringify(data) === JSON.stringify(models)) return;
  models = data;
  for (const id of ['chat-model', 'decide-model', 'job-model']) {
    const select = byId(id);
    const chosen = select.options.length > 0 ? select.value : models[0]?.id;
    select.replaceChildren(...modelOptions());
    select.value = chosen;  // none, and not another, where it is gone
  }
  const off = new Set([...byId('compare-models').querySelectorAll('input:not(:checked)')].map((box) => box.value));
  byId('compare-models').replaceChildren(...models.map((model) => make('label', {class: 'check'},
    make('input', {type: 'checkbox', value: model.id, checked: !off.has(model.id)}), model.id)));
  byId('model-table').replaceChildren(table(['Model', 'Kind', 'Rank', 'Context', 'Fingerprint'], models.map((model) =>
    [model.id, model.parent ? `adapter of ${model.parent}` : 'base', model.rank ?? '–', model.context_length,
     model.system_fingerprint])));
}
function chosenModel(id) {
  if (byId(id).value === '') throw new Error('choose a model: the one that was chosen is not served any more');
  return byId(id).value;
}
function table(heads, rows) {
  return make('table', {}, make('thead', {}, make('tr', {}, ...heads.map((head) => make('th', {scope: 'col'}, head)))),
    make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((cell) =>
      make('td', {}, cell instanceof Node ? cell : String(cell)))))));
}

// ---- Answers.

function sampling() {
  const fields = {};
  for (const name of ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens', 'seed']) {
    if (byId(name).value !== '') fields[name] = Number(byId(name).value);
  }
  if (byId('logprobs').checked) Object.assign(fields, {logprobs: true, top_logprobs: 5});
  return fields;
}
const systemMessages = () => (byId('system').value.trim() === '' ? []
  : [{role: 'system', content: byId('system').value}]);

// The data of each event of a stream.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split('\n\n');
    rest = events.pop();
    for (const event of events) if (event.startsWith('data: ')) yield event.slice(6);
  }
}

const newAnswer = (model) => ({role: 'assistant', model, text: '', thought: '', calls: [], tokens: []});

// Fills an answer as it comes; grow(piece) is called for what is added to its text.
async function ask(answer, body, signal, grow) {
  const begin = performance.now();
  const response = await send('/v1/chat/completions', {signal, json: {...body, model: answer.model, stream: true,
    stream_options: {include_usage: true}}});
  for await (const data of eventsOf(response)) {
    if (data === '[DONE]') {
      answer.seconds = (performance.now() - begin) / 1000;
      return;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    Object.assign(answer, {id: chunk.id, model: chunk.model, fingerprint: chunk.system_fingerprint});
    if (chunk.usage) answer.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) continue;
    answer.reason = choice.finish_reason ?? answer.reason;
    answer.tokens.push(...(choice.logprobs?.content ?? []));
    const {content = '', reasoning_content: thought = '', tool_calls: calls = []} = choice.delta;
    if (content || thought) answer.first ??= (performance.now() - begin) / 1000;
    answer.thought += thought;
    for (const call of calls) {
      const one = answer.calls[call.index] ??= {name: '', arguments: ''};
      one.name += call.function.name ?? '';
      one.arguments += call.function.arguments ?? '';
    }
    answer.text += content ?? '';
    grow(content ?? '');
  }
  throw new Error('the connection ended before the answer did');
}

// The tokens of an answer's text, joined to whole characters: [{text, parts}]; none where they are
// not known.
function piecesOf(answer) {
  const decoder = new TextDecoder('utf-8', {ignoreBOM: true});
  const pieces = [];
  let parts = [];
  let size = 0;
  for (const token of answer.tokens) {
    const text = decoder.decode(new Uint8Array(token.bytes ?? []), {stream: true});
    parts.push(token);
    if (text === '') continue;
    pieces.push({text, parts, at: size});
    size += text.length;
    parts = [];
  }
  const begin = pieces.map((piece) => piece.text).join('').lastIndexOf(answer.text);
  if (begin < 0) return [];
  // Thoughts come before, and what ended the answer after it.
  const end = begin + answer.text.length;
  return pieces.filter((piece) => piece.at < end && piece.at + piece.text.length > begin).map((piece) => ({...piece,
    text: piece.text.slice(Math.max(begin - piece.at, 0), end - piece.at)}));
}
function rarity(probability) {
  const level = [0.05, 0.2, 0.5, 0.8].findIndex((bound) => probability < bound);
  return level < 0 ? '' : ` p${level}`;
}
const spelled = (token) => JSON.stringify(token.token).slice(1, -1).replaceAll('\\"', '"').replaceAll(' ', '␣') || `bytes ${token.bytes}`;

function bars(entries) {
  return make('div', {class: 'bars'}, ...entries.flatMap(([name, p]) => {
    const bar = make('div', {class: 'bar', style: `width:${Math.max(100 * p, 0.5)}%`});
    return [make('span', {class: 'name'}, name), make('div', {}, bar), make('span', {}, percent(p))];
  }));
}

function showTip(span, piece) {
  document.querySelector('.token.at')?.classList.remove('at');
  const tip = byId('tip');
  tip.hidden = !span;
  if (!span) return;
  span.classList.add('at');
  tip.replaceChildren(...piece.parts.flatMap((token) => [
    make('b', {}, `${spelled(token)}  ${percent(Math.exp(token.logprob))}`),
    bars((token.top_logprobs ?? []).map((other) => [spelled(other), Math.exp(other.logprob)]))]));
  const box = span.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(left, 4) + scrollX}px`;
  tip.style.top = `${box.bottom + scrollY + 6}px`;
}

// The text of an answer, from the character `differs` on marked. Its tokens can be pointed at, and
// are gone through with the arrow keys.
function textOf(answer, differs = Infinity) {
  const pieces = piecesOf(answer);
  const spans = new Map();
  const plain = [];
  const marked = [];
  let at = 0;
  for (const piece of pieces.length > 0 ? pieces : [...answer.text].map((text) => ({text}))) {
    const list = at + piece.text.length > differs ? marked : plain;
    at += piece.text.length;
    if (!piece.parts) {
      list.push(piece.text);
      continue;
    }
    const span = make('span', {class: 'token' +
      rarity(Math.exp(piece.parts.reduce((sum, token) => sum + token.logprob, 0)))}, piece.text);
    spans.set(span, piece);
    list.push(span);
  }
  const joined = (list) => (pieces.length > 0 ? list : [list.join('')]);
  const node = make('div', {class: 'text'}, ...joined(plain));
  if (marked.length > 0) node.append(make('mark', {}, ...joined(marked)));
  if (spans.size === 0) return node;
  node.tabIndex = 0;
  node.setAttribute('role', 'group');
  node.setAttribute('aria-label', 'Answer. The arrow keys read the probabilities of its tokens.');
  const list = [...spans.keys()];
  const show = (span) => showTip(span, spans.get(span));
  node.addEventListener('pointerover', (event) => { if (spans.has(event.target)) show(event.target); });
  // A finger leaves at once; its tip stays until another place is touched.
  node.addEventListener('pointerleave', (event) => { if (event.pointerType !== 'touch') showTip(null); });
  node.addEventListener('blur', () => showTip(null));
  node.addEventListener('keydown', (event) => {
    const now = list.findIndex((span) => span.classList.contains('at'));
    const next = {ArrowRight: Math.min(now + 1, list.length - 1), ArrowLeft: Math.max(now - 1, 0), Home: 0,
                  End: list.length - 1}[event.key];
    if (event.key === 'Escape') showTip(null);
    if (next === undefined) return;
    event.preventDefault();
    show(list[next]);
  });
  return node;
}

// Shows an answer while it comes, and once it is there.
class AnswerView {
  constructor(answer) {
    this.answer = answer;
    this.heading = make('h3', {}, answer.model);
    this.thought = make('div', {class: 'thought'});
    this.thoughts = make('details', {hidden: true, open: true}, make('summary', {}, 'Thoughts'), this.thought);
    this.text = make('div', {class: 'text'}, '');
    this.text.append(document.createTextNode(''));
    this.facts = make('p', {class: 'facts'});
    this.node = make('div', {class: 'pane'}, this.heading, this.thoughts, this.text, this.facts);
  }

  grow(piece) {
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
    this.thoughts.hidden = this.answer.thought === '';
    setText(this.thought, this.answer.thought);
    this.text.lastChild.appendData(piece);
    if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
  }

  // error: what ended the answer, or null.
  finish(error, differs) {
    const {answer} = this;
    const text = textOf(answer, differs);
    this.text.replaceWith(text);
    this.text = text;
    this.thoughts.open = false;
    this.heading.textContent = answer.model;
    for (const call of answer.calls) {
      text.append(make('div', {class: 'thought'}, `calls ${call.name}(${call.arguments})`));
    }
    const seconds = answer.seconds - (answer.first ?? 0);
    this.facts.textContent = facts(
      answer.usage && `${answer.usage.prompt_tokens} + ${answer.usage.completion_tokens} tokens`,
      answer.usage && seconds > 0 && `${number(answer.usage.completion_tokens / seconds)} tokens/s`,
      answer.first !== undefined && `first after ${answer.first.toFixed(2)} s`,
      answer.reason === 'length' && 'cut at the limit of tokens', answer.fingerprint);
    if (error) {
      this.facts.before(make('p', {class: 'failed'}, error.name === 'AbortError' ? 'stopped' : error.message));
    }
  }

  async run(body, signal) {
    let trouble = null;
    try {
      await ask(this.answer, body, signal, (piece) => this.grow(piece));
    } catch (error) {
      trouble = error;
    }
    this.finish(trouble);
    return trouble;
  }
}

// ---- Chat.

const conversation = [];  // {role, text, node}; answers have more
let running = null;       // stops the answer that comes

// Answers that failed or say nothing are shown, but neither they nor what they answer are sent on or saved.
const isLost = (item) => item?.role === 'assistant' && (item.failed || item.text === '');
const isPart = (item, i) => !isLost(item) && !isLost(conversation[i + 1]);
const messagesOf = () => [...systemMessages(),
  ...conversation.filter(isPart).map(({role, text}) => ({role, content: text}))];
const showParts = () => conversation.forEach((item, i) => item.node.classList.toggle('lost', !isPart(item, i)));

function setRunning(controller) {
  running = controller;
  byId('send').disabled = running !== null;
  byId('stop').disabled = running === null;
  byId('messages').setAttribute('aria-busy', String(running !== null));
  for (const one of byId('messages').querySelectorAll('.buttons button')) {
    one.disabled = running !== null || one.dataset.used === 'yes';
  }
  if (!running) showParts();
}
function cutConversation(size) {
  const cut = conversation.splice(size);
  for (const item of cut) item.node.remove();
  return cut;
}
function addItem(item, ...children) {
  item.node ??= make('article', {class: `message ${item.role}`}, ...children);
  conversation.push(item);
  byId('messages').append(item.node);
}

// A text that can be changed in the place of `node`, until done(text) has taken it; what that returns takes the place.
function editText(node, value, label, done) {
  const area = make('textarea', {rows: Math.min(12, value.split('\n').length + 1), 'aria-label': label});
  area.value = value;
  const form = make('div', {}, area, make('div', {class: 'buttons'},
    button(label, guarded(async () => {
      const next = await done(area.value);
      (form.parentNode ? form : node).replaceWith(next ?? node);
    })),
    button('Cancel', () => form.replaceWith(node))));
  node.replaceWith(form);
  area.focus();
}

function addUser(text) {
  const item = {role: 'user', text};
  const body = make('div', {class: 'text'}, text);
  addItem(item, make('h3', {}, 'You'), body, make('div', {class: 'buttons'},
    button('Edit', () => editText(body, item.text, 'Send again',
      (changed) => goOn(chosenModel('chat-model'), conversation.indexOf(item), changed)))));
}

// Asks for an answer behind the first `size` messages and `text`, where there is one. Errors: where it fails, and the
// messages behind those are there again.
async function goOn(model, size, text) {
  if (running) throw new Error('another answer is being written');
  if (text?.trim() === '') throw new Error('the message is empty');
  const cut = cutConversation(size);
  if (text !== undefined) addUser(text);
  const before = messagesOf();
  const answer = newAnswer(model);
  const view = new AnswerView(answer);
  const controls = make('div', {class: 'buttons'});
  addItem(answer, view.node, controls);
  setRunning(new AbortController());
  const trouble = await view.run({...sampling(), messages: before}, running.signal);
  const isStopped = trouble?.name === 'AbortError';
  answer.failed = trouble !== null && !isStopped;
  const returns = cut.length > 0 && conversation.includes(answer) && trouble && isLost(answer);
  if (returns) {
    cutConversation(size);
    for (const item of cut) addItem(item);
  } else {
    // The server keeps what it had written when it was stopped.
    controls.append(...answerButtons(answer, view, before, trouble === null || (isStopped && answer.id)));
  }
  setRunning(null);
  if (returns) throw isStopped ? new Error('stopped') : trouble;
}

function answerButtons(answer, view, before, isKept) {
  const give = (mark, edited) => get('/v1/feedback', {json: {id: answer.id, mark, ...(edited && {edited})}});
  const judge = (mark, label) => button(label, guarded(async (event) => {
    await give(mark);
    for (const one of view.thumbs) one.dataset.used = 'yes';
    event.target.setAttribute('aria-pressed', 'true');
    setRunning(running);
  }), {'data-mark': mark});
  const list = [
    button('Regenerate', guarded(() => goOn(chosenModel('chat-model'), conversation.indexOf(answer)))),
    button('Edit', () => editText(view.text, answer.text, 'Keep', async (changed) => {
      if (options.marks && isKept && !answer.isEdited) {
        await give('edited', changed);
        answer.isEdited = true;
      }
      Object.assign(answer, {text: changed, tokens: [], failed: false});
      view.text = textOf(answer);
      showParts();
      return view.text;
    })),
    button('What the model read', guarded((event) => showRead(event.target.closest('article'), answer.model, before))),
  ];
  if (navigator.clipboard) list.splice(2, 0, button('Copy', guarded(() => navigator.clipboard.writeText(answer.text))));
  view.thumbs = options.marks && isKept
    ? [judge('up', 'Good answer'), judge('down', 'Bad answer')] : [];
  return [...list, ...view.thumbs];
}

async function showRead(node, model, messages) {
  const body = {model, messages};
  const [{prompt}, {tokens}] = await Promise.all([get('/apply-template', {json: body}),
    get('/tokenize', {json: {...body, with_pieces: true}})]);
  const piece = ({piece: text}) => (typeof text === 'string' ? text : text.map((byte) => `<${byte.toString(16)}>`).join(''));
  node.querySelector('.read')?.remove();
  node.append(make('details', {class: 'read', open: true},
    make('summary', {}, `What ${model} read: ${tokens.length} tokens`),
    make('pre', {'aria-label': 'The text'}, prompt),
    make('div', {class: 'pieces', 'aria-label': 'The tokens'},
         ...tokens.map((token) => make('span', {title: `token ${token.id}`}, piece(token))))));
}

byId('chat-form').onsubmit = guarded(async () => {
  const text = byId('chat-text').value;
  if (running || text.trim() === '') return;
  const model = chosenModel('chat-model');
  byId('chat-text').value = '';
  await goOn(model, conversation.length, text);
});
byId('chat-text').onkeydown = (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId('chat-form').requestSubmit();
};
byId('stop').onclick = () => running?.abort();
byId('clear').onclick = () => {
  running?.abort();
  cutConversation(0);
  byId('chat-text').focus();
};
byId('save').onclick = guarded(() => {
  const messages = messagesOf();
  if (running) throw new Error('the answer is still being written: save it when it is there');
  if (messages.at(-1)?.role !== 'assistant') throw new Error('there is no answer to save');
  const line = `${JSON.stringify({messages})}\n`;
  const link = make('a', {href: URL.createObjectURL(new Blob([line], {type: 'application/jsonl'})),
                          download: 'conversation.jsonl'});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

// ---- Compare.

let comparing = null;

// The characters that two texts begin with alike.
function alike(a, b) {
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) ++i;
  return i;
}

byId('compare-form').onsubmit = guarded(async () => {
  const text = byId('compare-text').value;
  const names = [...byId('compare-models').querySelectorAll('input:checked')].map((box) => box.value);
  if (comparing || text.trim() === '' || names.length === 0) return;
  const body = {seed: Math.floor(Math.random() * 2 ** 31), ...sampling(),
                messages: [...systemMessages(), {role: 'user', content: text}]};
  const views = names.map((name) => new AnswerView(newAnswer(name)));
  byId('panes').replaceChildren(...views.map((view) => view.node));
  byId('panes').setAttribute('aria-busy', 'true');
  setText(byId('compare-note'), `seed ${body.seed}`);
  comparing = new AbortController();
  byId('compare-stop').disabled = false;
  const troubles = await Promise.all(views.map((view) => view.run(body, comparing.signal)));
  comparing = null;
  byId('compare-stop').disabled = true;
  byId('panes').setAttribute('aria-busy', 'false');
  if (views.length < 2 || troubles.some(Boolean)) return;
  const first = views[0].answer.text;
  const ends = views.slice(1).map(({answer}) => (answer.text === first ? Infinity : alike(first, answer.text)));
  views.forEach((view, i) => view.finish(null, i === 0 ? Math.min(...ends) : ends[i - 1]));
  const same = ends.filter((end) => end === Infinity).length;
  setText(byId('compare-note'), same === ends.length ? `seed ${body.seed}: all answers are the same`
    : `seed ${body.seed}: marked from the first token that differs from ${views[0].answer.model}`);
});
byId('compare-stop').onclick = () => comparing?.abort();

// ---- Decide.

const hints = {predicate: '', choice: 'one option a line, as name: description',
               score: 'one level a line, the lowest first'};
function addQuestion({id, type, instructions, criteria}) {
  const input = make('textarea', {rows: 3, class: 'criteria', 'aria-label': 'Options or levels'});
  input.value = criteria;
  const select = make('select', {class: 'type', 'aria-label': 'Type'},
    ...Object.keys(hints).map((name) => make('option', {value: name}, name === 'predicate' ? 'true or false' : name)));
  const change = () => {
    options.hidden = select.value === 'predicate';
    input.placeholder = hints[select.value];
  };
  const name = make('input', {class: 'id', 'aria-label': 'Name'});
  name.value = id;
  const text = make('textarea', {rows: 2, class: 'instructions', 'aria-label': 'Question'});
  text.value = instructions;
  const options = make('label', {}, 'Options', input);
  select.value = type;
  select.onchange = change;
  change();
  const node = make('div', {class: 'question'}, make('div', {class: 'fields'}, make('label', {}, 'Name', name),
    make('label', {}, 'Type', select)), make('label', {}, 'Question', text), options,
    make('div', {class: 'buttons'}, button('Remove', () => node.remove())));
  byId('questions').append(node);
}
// Questions in the form of lists: objects put keys that are whole numbers first.
function readQuestion(node) {
  const value = (name) => node.querySelector(`.${name}`).value.trim();
  const question = {type: value('type'), name: value('id'), instructions: value('instructions')};
  const lines = value('criteria').split('\n').map((line) => line.trim()).filter(Boolean);
  if (question.type === 'score') question.levels = lines.map((label) => ({label}));
  if (question.type === 'choice') {
    question.choices = lines.map((line) => {
      const at = line.indexOf(':');
      return at < 0 ? {value: line} : {value: line.slice(0, at).trim(), description: line.slice(at + 1).trim()};
    });
  }
  return question;
}
function showDecision(answer) {
  const p = answer.probability;
  const given = answer.type === 'predicate' ? [['true', p], ['false', 1 - p]]
    : answer.probabilities.map((one) => [one.label ?? one.value, one.probability]);
  const said = {predicate: () => p >= 0.5, choice: () => answer.choice,
                score: () => `score ${number(answer.score)}`}[answer.type]();
  return make('div', {class: 'card'}, make('h3', {}, `${answer.name}: ${said}`),
    make('p', {class: 'facts'}, answer.confidence === undefined ? '' : `confidence ${number(answer.confidence)}`), bars(given));
}
const questionNames = () => [...byId('questions').querySelectorAll('.id')].map((input) => input.value.trim());
byId('add-question').onclick = () => {
  const names = questionNames();
  let count = names.length + 1;
  while (names.includes(`question ${count}`)) ++count;
  addQuestion({id: `question ${count}`, type: 'choice', instructions: '', criteria: ''});
};
byId('decide-form').onsubmit = guarded(async () => {
  const names = questionNames();
  const twice = names.find((name, i) => names.indexOf(name) < i);
  if (twice !== undefined) throw new Error(`two questions are named "${twice}": give each a name of its own`);
  const text = byId('decide-state').value;
  // JSON is sent as it was typed: with the order of its keys, and the digits of its numbers.
  let data = JSON.stringify(text);
  if (/^\s*[[{]/.test(text)) try { JSON.parse(text); data = text; } catch { /* is a text */ }
  const input = `[{"content": [{"type": "input_json", "data": ${data}}]}]`;
  const rest = {model: chosenModel('decide-model'), questions: [...byId('questions').children].map(readQuestion)};
  const {answers, usage} = await get('/v1/decisions', {json: `{"input": ${input}, ${JSON.stringify(rest).slice(1)}`});
  byId('answers').replaceChildren(...answers.map(showDecision),
    make('p', {class: 'facts'}, `${usage.input_tokens} tokens read`));
});

// ---- Runs and jobs.

let shownRun = null;  // {name, isJob}
let lastRuns = '';
let runNames = [];
const chart = new LineChart({id: 'loss', title: 'Loss', unit: 'nats per token', large: true});
const eventList = make('ul', {class: 'events', 'aria-label': 'Events', tabindex: '0'});
const runTitle = make('h3', {});

// The newest jobs, as many as runs are listed.
async function newestJobs() {
  const jobs = [];
  for (let after = ''; jobs.length < 1000;) {
    const page = await get(`/v1/fine_tuning/jobs?limit=100${after}`, {asks: false});
    jobs.push(...page.data);
    if (!page.has_more) break;
    after = `&after=${page.last_id}`;
  }
  return jobs;
}
async function refreshRuns() {
  if (!options.runs) return;
  const jobs = await newestJobs();
  await loadModels({asks: false});
  runNames = (await get('/runs', {asks: false})).data.map((run) => run.name);
  const made = new Set(jobs.map((job) => job.id));
  const isGone = (job) => job.fine_tuned_model && !isServed(job.fine_tuned_model);
  const text = JSON.stringify([jobs, runNames, jobs.filter(isGone).map((job) => job.id)]);
  if (text !== lastRuns) {
    lastRuns = text;
    const stateOf = (job) => facts(job.status, isGone(job) && 'its model is not served');
    const rows = [...jobs.map((job) => [job.id, job.model, stateOf(job), jobButtons(job)]),
      ...runNames.filter((name) => !made.has(name)).map((name) => [name, '', 'run', showButton(name, false)])];
    refill(byId('run-list'), [rows.length === 0 ? make('p', {class: 'hint'}, 'There are no runs yet.')
      : make('div', {class: 'card scroll', tabindex: '0', role: 'region', 'aria-label': 'Runs'},
             table(['Run', 'Model', 'State', ''], rows))]);
  }
  if (shownRun) await refreshRun();
}
const showButton = (name, isJob) => button('Show', guarded(() => {
  shownRun = {name, isJob};
  return refreshRun();
}), {'data-key': `show ${name}`});
function jobButtons(job) {
  const act = (label, action) => button(label, guarded(async () => {
    await get(`/v1/fine_tuning/jobs/${job.id}/${action}`, {method: 'POST'});
    await refreshRuns();
  }), {'data-key': `${action} ${job.id}`});
  const list = [showButton(job.id, true)];
  if (['running', 'queued', 'validating_files'].includes(job.status)) list.push(act('Pause', 'pause'));
  if (job.status === 'paused') list.push(act('Resume', 'resume'));
  if (!['succeeded', 'failed', 'cancelled'].includes(job.status)) list.push(act('Cancel', 'cancel'));
  if (isServed(job.fine_tuned_model)) {
    list.push(button('Try it', guarded(async () => {
      await loadModels();
      if (!isServed(job.fine_tuned_model)) throw new Error(`the server has no model ${job.fine_tuned_model} any more`);
      byId('chat-model').value = job.fine_tuned_model;
      location.hash = '#chat';
    }), {'data-key': `try ${job.id}`}));
  }
  return make('div', {class: 'buttons'}, ...list);
}
async function refreshRun() {
  const {name, isJob} = shownRun;
  const events = isJob ? (await get(`/v1/fine_tuning/jobs/${name}/events?limit=100`, {asks: false})).data : [];
  // A job that waits has no run yet.
  const record = runNames.includes(name)
    ? await get(`/runs/${encodeURIComponent(name)}/data.json`, {asks: false}) : null;
  setText(runTitle, name);
  eventList.hidden = events.length === 0;
  if (eventList.dataset.last !== events[0]?.id) {
    eventList.dataset.last = events[0]?.id ?? '';
    eventList.replaceChildren(...events.map((event) => make('li', {class: event.level},
      `${new Date(1000 * event.created_at).toLocaleTimeString()} ${event.message}`)));
  }
  if (byId('run').childElementCount === 0) byId('run').append(runTitle, eventList, chart.node);
  const {steps = {}, evals = {}} = record ?? {};
  chart.set({xLabel: 'step', series: [
    {run: 0, name: 'loss', key: 'training', kind: 'line', xs: steps.step ?? [], ys: steps.loss ?? []},
    {run: 0, name: 'evaluation', key: 'evaluation', kind: 'marks', dash: '1 3', xs: evals.step ?? [], ys: evals.eval_loss ?? []}]});
}
byId('job-form').onsubmit = guarded(async () => {
  const model = chosenModel('job-model');
  const form = new FormData();
  form.append('purpose', 'fine-tune');
  form.append('file', byId('job-file').files[0]);
  const file = await get('/v1/files', {form});
  const method = byId('job-method').value;
  const epochs = byId('job-epochs').value;
  const job = {model, training_file: file.id, method: {type: method,
    [method]: {hyperparameters: epochs === '' ? {} : {n_epochs: Number(epochs)}}}};
  if (byId('job-suffix').value.trim()) job.suffix = byId('job-suffix').value.trim();
  try {
    shownRun = {name: (await get('/v1/fine_tuning/jobs', {json: job})).id, isJob: true};
  } catch (error) {
    // A refused job leaves no file; one that was lost on the way may have it.
    if (error.status) await send(`/v1/files/${file.id}`, {method: 'DELETE'}).catch(() => {});
    throw error;
  }
  await refreshRuns();
});

// ---- Memory and queue.

// The sum of each metric over its labels.
function readMetrics(text) {
  const sums = {};
  for (const line of text.split('\n')) {
    const found = /^([a-z_]+)(?:\{.*\})? (\S+)$/.exec(line);
    if (found) sums[found[1]] = (sums[found[1]] ?? 0) + Number(found[2]);
  }
  return sums;
}
async function refreshMetrics() {
  const m = readMetrics(await (await send('/metrics', {asks: false})).text());
  setText(byId('state'), facts(`${m.qlora_requests_running} running`, `${m.qlora_requests_waiting} waiting`,
    bytes(m.process_resident_memory_bytes)));
  const tiles = [['Answers running', m.qlora_requests_running], ['Waiting', m.qlora_requests_waiting],
    ['Slots in use', `${m.qlora_kv_pages_used} of ${m.qlora_kv_pages_total}`],
    ['Memory', bytes(m.process_resident_memory_bytes)],
    ['Tokens read', m.qlora_prompt_tokens_total ?? 0], ['of them kept from before', m.qlora_prompt_tokens_cached_total ?? 0],
    ['Tokens written', m.qlora_generation_tokens_total ?? 0], ['Clients that left', m.qlora_requests_cancelled_total]];
  byId('tiles').replaceChildren(...tiles.map(([name, value]) => make('div', {class: 'tile'},
    make('div', {class: 'name'}, name), make('div', {class: 'value'}, String(value)))));
}

// ---- The page.

const parts = ['chat', 'compare', 'decide', 'runs', 'server'];
const shownPart = () => (parts.includes(location.hash.slice(1)) ? location.hash.slice(1) : 'chat');
function showPart() {
  const shown = shownPart();
  for (const part of parts) byId(part).hidden = part !== shown;
  byId('settings').hidden = !['chat', 'compare'].includes(shown);
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${shown}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  showTip(null);
  scrollTo(0, 0);
}
addEventListener('hashchange', () => {
  showTrouble(null);
  showPart();
});
addEventListener('keydown', (event) => {
  if (event.key === 'Escape') (running ?? comparing)?.abort();
});

// Asks again and again while the page is looked at.
async function refresh() {
  try {
    if (document.visibilityState === 'visible') {
      await refreshMetrics();
      await (options.runs && shownPart() === 'runs' ? refreshRuns() : loadModels({asks: false}));
    }
  } catch (error) {
    setText(byId('state'), `no answer from the server: ${error.message}`);
  }
  setTimeout(refresh, 2000);
}

addQuestion({id: 'urgent', type: 'predicate', instructions: 'Is this urgent?', criteria: ''});
showPart();
guarded(async () => {
  options = await get('/page.json');
  byId('kept').hidden = !options.marks;
  byId('no-runs').hidden = options.runs;
  byId('new-job').hidden = !options.runs;
  await loadModels();
  await refresh();
})();

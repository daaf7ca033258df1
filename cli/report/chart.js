'use strict';
// A line chart in SVG that can be read with pointer, finger and keyboard.

// An element with attributes, listeners ("onclick") and children; text is never parsed as HTML.
function make(tag, attributes = {}, ...children) {
  const svg = ['svg', 'g', 'path', 'line', 'text', 'rect', 'title'].includes(tag);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag)
                   : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'style') node.style.cssText = value;  // what a strict policy allows
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Runs differ in colour, in dashes and in the shape of their marks.
const DASHES = ['', '7 4', '2 3', '10 3 2 3', '5 2', '1 4'];
const colorOf = (run) => `var(--run-${run % 6})`;
const dashOf = (run) => DASHES[run % DASHES.length];
function markPath(run, x, y, size) {
  const s = size;
  return [
    `M${x - s} ${y}a${s} ${s} 0 1 0 ${2 * s} 0a${s} ${s} 0 1 0 ${-2 * s} 0Z`,
    `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}Z`,
    `M${x} ${y - s}L${x + s} ${y + s}H${x - s}Z`,
    `M${x} ${y - s - 1}L${x + s + 1} ${y}L${x} ${y + s + 1}L${x - s - 1} ${y}Z`,
    `M${x} ${y + s}L${x + s} ${y - s}H${x - s}Z`,
    `M${x - s} ${y - 1}h${2 * s}v2h${-2 * s}Z`,
  ][run % 6];
}

// Round numbers that cut [low, high] into about `count` parts.
function ticks(low, high, count, unit = 1) {
  if (unit !== 1) return ticks(low / unit, high / unit, count).map((value) => value * unit);
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) out.push(i * step);
  return out;
}
function logTicks(low, high) {
  const out = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
    for (const m of [1, 2, 5]) {
      const value = m * 10 ** power;
      if (value >= low && value <= high) out.push(value);
    }
  }
  return out.length > 1 ? out : ticks(low, high, 4);
}

function number(value) {
  if (value === null || !Number.isFinite(value)) return 'not a number';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace('e+', 'e');
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}

// Index of the entry of ascending `xs` nearest to x.
function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

// Of more points than fit, the lowest and highest in each pixel column.
function thin(points, columns) {
  if (points.length <= 4 * columns) return points;
  const out = [];
  let column = null;
  let group = [];
  const flush = () => {
    if (group.length === 0) return;
    let low = 0;
    let high = 0;
    group.forEach((p, i) => {
      if (p[1] < group[low][1]) low = i;
      if (p[1] > group[high][1]) high = i;
    });
    for (const i of [...new Set([0, Math.min(low, high), Math.max(low, high), group.length - 1])]) {
      out.push(group[i]);
    }
    group = [];
  };
  for (const point of points) {
    if (Math.round(point[0]) !== column) flush();
    column = Math.round(point[0]);
    group.push(point);
  }
  flush();
  return out;
}

class LineChart {
  // series: [{run, name, xs, ys, kind: 'line' | 'faint' | 'marks', key}], ys may hold null;
  // levels: [{run, name, value}] are horizontal lines; tickUnit: the unit in which ticks are round
  // numbers.
  constructor({id, title, unit, format = number, large = false, zero = false, tickUnit = () => 1}) {
    Object.assign(this, {id, title, unit, format, zero, tickUnit});
    this.series = [];
    this.levels = [];
    this.key = make('div', {class: 'key'});
    this.svg = make('svg', {class: 'plot', tabindex: '0', role: 'img'});
    this.tip = make('div', {class: 'tip', role: 'status', hidden: true});
    this.table = make('div', {class: 'scroll'});
    const details = make('details', {ontoggle: () => this.drawTable()},
                         make('summary', {}, 'Values as a table'), this.table);
    this.details = details;
    this.node = make('figure', {class: `card chart${large ? ' large' : ''}`, id: `chart-${id}`,
                                style: 'margin:0'},
                     make('figcaption', {}, make('h3', {}, title)), this.key, this.svg, this.tip,
                     details);
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('pointerdown', (event) => this.point(event));
    this.svg.addEventListener('pointerleave', () => this.leave());
    this.svg.addEventListener('blur', () => this.leave());
    this.svg.addEventListener('keydown', (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  set({series, levels = [], xLabel, logY = false}) {
    this.series = series.filter((s) => s.xs.length > 0);
    this.levels = levels;
    this.xLabel = xLabel;
    this.logY = logY;
    this.drawKey();
    this.draw();
    this.drawTable();
  }

  drawKey() {
    const entries = new Map();
    for (const s of [...this.series, ...this.levels]) {
      if (s.key && !entries.has(s.key)) entries.set(s.key, s);
    }
    this.key.replaceChildren(...[...entries].map(([text, s]) => {
      const svg = make('svg', {width: 26, height: 10, 'aria-hidden': 'true'});
      const style = s.kind === 'marks' || s.kind === 'cross' ? null : s.dash || '';
      if (style !== null) {
        svg.append(make('path', {d: 'M1 5H25', stroke: 'currentColor', 'stroke-width': 2, fill: 'none',
                                 'stroke-dasharray': style, opacity: s.kind === 'faint' ? .4 : 1}));
      }
      if (s.kind === 'marks') {
        svg.append(make('path', {d: 'M1 5H25', stroke: 'currentColor', opacity: .6}));
        svg.append(make('path', {d: markPath(0, 13, 5, 3.5), fill: 'currentColor'}));
      }
      if (s.kind === 'cross') {
        svg.append(make('path', {d: 'M9 1L17 9M17 1L9 9', stroke: 'var(--bad)', 'stroke-width': 2}));
      }
      return make('span', {}, svg, text);
    }));
  }

  range() {
    const xs = [Infinity, -Infinity];
    const ys = [Infinity, -Infinity];
    const take = (range, value) => {
      range[0] = Math.min(range[0], value);
      range[1] = Math.max(range[1], value);
    };
    for (const s of this.series) {
      s.xs.forEach((x, i) => {
        const y = s.ys[i];
        if (y === null || !Number.isFinite(y) || (this.logY && y <= 0)) return;
        take(xs, x);
        take(ys, y);
      });
    }
    if (ys[0] > ys[1]) return null;
    for (const level of this.levels) take(ys, level.value);
    if (this.zero && !this.logY) take(ys, 0);
    const data = [...xs];
    if (xs[0] === xs[1]) { xs[0] -= 1; xs[1] += 1; }
    if (ys[0] === ys[1]) { const by = Math.abs(ys[0]) * .1 || 1; ys[0] -= by; ys[1] += by; }
    if (!this.logY) {
      const room = (ys[1] - ys[0]) * .06;
      ys[1] += room;
      if (!(this.zero && ys[0] === 0)) ys[0] -= room;
    }
    return {xs, ys, data};
  }

  draw() {
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    if (width === 0) return;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const range = this.range();
    this.scale = null;
    if (!range) {
      this.svg.replaceChildren(make('text', {x: width / 2, y: height / 2, 'text-anchor': 'middle'},
                                    'nothing recorded'));
      this.svg.setAttribute('aria-label', `${this.title}: nothing recorded`);
      return;
    }
    const up = this.logY ? Math.log : (v) => v;
    const yTicks = this.logY ? logTicks(...range.ys) : ticks(...range.ys, height / 45, this.tickUnit(range.ys[1]));
    const labels = yTicks.map((value) => this.format(value));
    const left = 32 + 7.2 * Math.max(...labels.map((text) => text.length));
    const right = width - 12;
    const top = 10;
    const bottom = height - 40;
    const X = (x) => left + (x - range.xs[0]) / (range.xs[1] - range.xs[0]) * (right - left);
    const Y = (y) => bottom - (up(y) - up(range.ys[0])) / (up(range.ys[1]) - up(range.ys[0])) * (bottom - top);
    this.scale = {X, Y, left, right, top, bottom, xs: range.xs};

    const parts = [];
    yTicks.forEach((value, i) => {
      parts.push(make('line', {class: 'grid', x1: left, x2: right, y1: Y(value), y2: Y(value)}));
      parts.push(make('text', {x: left - 6, y: Y(value) + 4, 'text-anchor': 'end'}, labels[i]));
    });
    // A single value has room on both sides, where no step is.
    for (const value of ticks(...range.xs, width / 90).filter((x) => x >= range.data[0] && x <= range.data[1])) {
      parts.push(make('text', {x: X(value), y: bottom + 17, 'text-anchor': 'middle'}, number(value)));
    }
    parts.push(make('line', {class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom}));
    parts.push(make('text', {class: 'label', x: (left + right) / 2, y: height - 6, 'text-anchor': 'middle'},
                    this.xLabel));
    parts.push(make('text', {class: 'label', transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)`,
                             'text-anchor': 'middle'}, this.unit));
    for (const level of this.levels) {
      parts.push(make('line', {x1: left, x2: right, y1: Y(level.value), y2: Y(level.value),
                               stroke: colorOf(level.run), 'stroke-width': 1.5,
                               'stroke-dasharray': '6 4', class: 'level'}),
                 make('path', {d: markPath(level.run, right - 6, Y(level.value), 3.5),
                               style: `fill:${colorOf(level.run)}`}));
    }
    for (const s of this.series) parts.push(this.drawSeries(s, X, Y, right - left));
    this.cursor = make('g', {});
    this.svg.replaceChildren(...parts, this.cursor);
    const shown = this.series.filter((s) => s.kind !== 'faint');
    this.svg.setAttribute('aria-label', `${this.title}, ${this.unit} by ${this.xLabel}. ` + shown.map((s) =>
      `${s.name}: from ${this.format(s.ys[0])} to ${this.format(s.ys[s.ys.length - 1])}`).join('; '));
    if (this.at !== undefined) this.show(this.at);
  }

  drawSeries(s, X, Y, columns) {
    const group = make('g', {});
    const good = (y) => y !== null && Number.isFinite(y) && !(this.logY && y <= 0);
    if (s.kind === 'cross') {
      const d = s.xs.map((x, i) => {
        const [px, py] = [X(x), good(s.ys[i]) ? Y(s.ys[i]) : Y(this.range().ys[1])];
        return `M${px - 5} ${py - 5}L${px + 5} ${py + 5}M${px + 5} ${py - 5}L${px - 5} ${py + 5}`;
      }).join('');
      group.append(make('path', {d, stroke: 'var(--bad)', class: 'cross'}));
      return group;
    }
    // Pieces between values that are not numbers.
    const pieces = [[]];
    s.xs.forEach((x, i) => {
      if (good(s.ys[i])) pieces[pieces.length - 1].push([X(x), Y(s.ys[i])]);
      else pieces.push([]);
    });
    const d = pieces.map((piece) => thin(piece, columns).map(([x, y], i) =>
      `${i === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`).join('') +
      (piece.length === 1 ? 'h0.1' : '')).join('');
    group.append(make('path', {d, stroke: colorOf(s.run), 'stroke-dasharray': s.dash ?? dashOf(s.run),
                               class: s.kind, 'data-run': s.run, 'data-name': s.name}));
    if (s.kind === 'marks') {
      const marks = pieces.flat().map(([x, y]) => markPath(s.run, x, y, 4)).join('');
      group.append(make('path', {d: marks, style: `fill:${colorOf(s.run)}`, class: 'dots'}));
    }
    return group;
  }

  point(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect();
    const {left, right, xs} = this.scale;
    const share = (event.clientX - box.left - left) / (right - left);
    this.show(xs[0] + Math.min(Math.max(share, 0), 1) * (xs[1] - xs[0]));
  }

  press(event) {
    if (!this.scale || !['ArrowLeft', 'ArrowRight', 'Home', 'End', 'Escape'].includes(event.key)) return;
    event.preventDefault();
    if (event.key === 'Escape') return this.leave();
    const longest = this.series.reduce((a, b) => (a.xs.length >= b.xs.length ? a : b));
    const last = longest.xs.length - 1;
    let i = this.at === undefined ? last : nearest(longest.xs, this.at);
    if (event.key === 'ArrowLeft') i = Math.max(i - 1, 0);
    if (event.key === 'ArrowRight') i = Math.min(i + 1, last);
    if (event.key === 'Home') i = 0;
    if (event.key === 'End') i = last;
    this.show(longest.xs[i]);
  }

  // The values of every curve near x.
  show(x) {
    const rows = [];
    const marks = [];
    let snapped = null;
    for (const s of this.series) {
      if (s.kind === 'faint' && !s.read) continue;
      const i = nearest(s.xs, x);
      if (snapped === null || Math.abs(s.xs[i] - x) < Math.abs(snapped - x)) snapped = s.xs[i];
    }
    if (snapped === null) return this.leave();
    for (const s of this.series) {
      if (s.kind === 'cross') continue;
      const i = nearest(s.xs, snapped);
      const far = Math.abs(s.xs[i] - snapped) > (this.scale.xs[1] - this.scale.xs[0]) / 50;
      if (far) continue;
      const exact = s.xs[i] === snapped ? '' : ` at ${number(s.xs[i])}`;
      rows.push(make('tr', {}, make('td', {}, s.name + exact), make('td', {}, this.format(s.ys[i]))));
      if (s.ys[i] !== null && Number.isFinite(s.ys[i])) {
        marks.push(make('path', {d: markPath(s.run, this.scale.X(s.xs[i]), this.scale.Y(s.ys[i]), 5),
                                 style: `fill:${colorOf(s.run)};stroke:var(--card)`}));
      }
    }
    for (const level of this.levels) {
      rows.push(make('tr', {}, make('td', {}, level.name), make('td', {}, this.format(level.value))));
    }
    this.at = x;
    const px = this.scale.X(snapped);
    this.cursor.replaceChildren(make('line', {class: 'cursor', x1: px, x2: px, y1: this.scale.top,
                                              y2: this.scale.bottom}), ...marks);
    this.tip.replaceChildren(make('b', {}, `${this.xLabel} ${number(snapped)}`), make('table', {}, ...rows));
    this.tip.hidden = false;
    const room = this.node.clientWidth;
    const offset = this.svg.offsetLeft + px;
    const width = this.tip.offsetWidth;
    const beside = offset + 14 + width <= room ? offset + 14 : offset - 14 - width;
    this.tip.style.left = `${Math.min(Math.max(beside, 4), Math.max(room - width - 4, 4))}px`;
    this.tip.style.top = `${this.svg.offsetTop + 10}px`;
  }

  leave() {
    this.at = undefined;
    this.tip.hidden = true;
    if (this.cursor) this.cursor.replaceChildren();
  }

  // A row for each value of the longest curves; of more than 500 every n-th.
  drawTable() {
    if (!this.details.open) return;
    const rows = [];
    for (const s of this.series) {
      if (s.kind === 'cross') continue;
      const every = Math.ceil(s.xs.length / 500);
      s.xs.forEach((x, i) => {
        if (i % every === 0 || i === s.xs.length - 1) {
          rows.push(make('tr', {}, make('td', {}, s.name), make('td', {}, number(x)),
                         make('td', {}, this.format(s.ys[i]))));
        }
      });
    }
    this.table.replaceChildren(make('table', {}, make('thead', {}, make('tr', {}, make('th', {}, 'curve'),
      make('th', {}, this.xLabel), make('th', {}, this.unit))), make('tbody', {}, ...rows)));
  }
}

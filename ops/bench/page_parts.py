"""The look of the benchmark's page, and the script that draws its charts from the figures in it."""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --text: light-dark(#1b1b1b, #e8e8e8); --line: light-dark(#d4d4d4, #3d3d3d);
  --soft: light-dark(#f5f5f5, #1f1f1f); --back: light-dark(#fff, #151515); }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; color: var(--text); background: var(--back); }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; }
h3 { font-size: .95rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 .75rem; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; padding: .75rem; background: var(--soft); border-radius: .5rem; min-width: 0;
  overflow: hidden; }
.u-legend { font-size: .8rem; text-align: left; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
.wide th, .wide td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
.wide th:nth-child(-n+2), .wide td:nth-child(-n+2) { text-align: left; }
pre { overflow-x: auto; font-size: .8rem; background: var(--soft); padding: .75rem; border-radius: .5rem; }
"""

SCRIPT: Final = """
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const place = document.getElementById('charts');
const dark = matchMedia('(prefers-color-scheme: dark)');
const HUES = [['#1a66c2', '#6db1ff'], ['#b3540e', '#ffa95c'], ['#1b7f4d', '#5fd39a'], ['#8a3ab9', '#cf9bff']];
const hue = number => HUES[number % HUES.length][dark.matches ? 1 : 0];
const add = (to, tag, text) => {
  const made = to.appendChild(document.createElement(tag));
  if (text !== undefined) made.textContent = text;
  return made;
};
const loadOf = point => point.rate_hz === null ? point.concurrency : point.rate_hz;
const open = data.some(each => each.point.rate_hz !== null);
const AXES = [
  { of: loadOf, name: open ? 'requests a second' : 'streams at a time' },
  { of: point => point.prompt_tokens, name: 'tokens of the prompt' },
  { of: point => point.output_tokens, name: 'tokens of the answer' },
];
const METRICS = [
  { name: 'tokens/s', lines: each => [['median', each.rate]] },
  { name: 'time to first token, ms', lines: each => [['p50', each.ttft.p50], ['p95', each.ttft.p95]] },
  { name: 'time between tokens, ms', lines: each => [['p50', each.itl.p50], ['p95', each.itl.p95]] },
];
// The points of one axis are those that are at the middle of the others: the commonest values there.
const commonest = values => {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
};
const middles = AXES.map(axis => commonest(data.map(each => axis.of(each.point))));
const along = number => data.filter(each =>
  AXES.every((axis, other) => other === number || axis.of(each.point) === middles[other]));
const bars = spans => ({
  hooks: {
    draw: chart => {
      const context = chart.ctx;
      context.save();
      context.lineWidth = devicePixelRatio * 1.5;
      spans.forEach((span, number) => {
        context.strokeStyle = chart.series[number + 1].stroke();
        span.forEach((ends, at) => {
          if (!ends) return;
          const x = chart.valToPos(chart.data[0][at], 'x', true);
          context.beginPath();
          context.moveTo(x, chart.valToPos(ends[0], 'y', true));
          context.lineTo(x, chart.valToPos(ends[1], 'y', true));
          context.stroke();
        });
      });
      context.restore();
    },
  },
});
const shown = value => value === null || value === undefined ? '-' : Number(value.toPrecision(3)).toString();
// Places come first and charts after: a chart is as wide as its place once all places are there.
const draw = (box, axis, metric, points) => {
  const xs = [...new Set(points.map(each => axis.of(each.point)))].sort((a, b) => a - b);
  const several = new Set(points.map(each => each.target)).size > 1;
  const lines = new Map();
  for (const each of points) for (const [name, told] of metric.lines(each)) {
    const label = several ? each.target + ' ' + name : name;
    if (!lines.has(label)) lines.set(label, { values: xs.map(() => null), spans: xs.map(() => null) });
    if (!told) continue;
    const at = xs.indexOf(axis.of(each.point));
    lines.get(label).values[at] = told.value;
    if (told.low !== null) lines.get(label).spans[at] = [told.low, told.high];
  }
  const figure = add(box, 'figure');
  const words = add(figure, 'h3', metric.name);
  const inside = add(figure, 'div');
  inside.setAttribute('role', 'img');
  const said = [...lines].map(([label, line]) =>
    label + ' ' + xs.map((x, at) => shown(line.values[at]) + ' at ' + x).join(', '));
  inside.setAttribute('aria-label', words.textContent + ' over ' + axis.name + ': ' + said.join('; '));
  const highest = Math.max(...[...lines.values()].flatMap(line =>
    [...line.values, ...line.spans.map(span => span && span[1])].filter(value => value !== null)), 1e-9);
  const ink = () => dark.matches ? '#e8e8e8' : '#1b1b1b';
  const grid = () => ({ stroke: dark.matches ? '#3d3d3d' : '#d4d4d4', width: 1 });
  const size = () => ({ width: Math.max(240, figure.clientWidth - 24), height: 220 });
  let chart = null;
  const make = () => new uPlot({
    ...size(),
    scales: { x: { time: false, distr: xs.length > 1 && xs[0] > 0 ? 3 : 1, log: 2,
      range: () => xs.length > 1 ? [xs[0] / 1.15, xs[xs.length - 1] * 1.15] : [xs[0] - 1, xs[0] + 1] },
      y: { range: () => [0, highest * 1.08] } },
    axes: [{ stroke: ink, grid: grid(), ticks: grid(), label: axis.name, labelSize: 20, splits: () => xs,
      values: (_, splits) => splits.map(String) }, { stroke: ink, grid: grid(), ticks: grid(), size: 56 }],
    series: [{ label: axis.name }, ...[...lines.keys()].map((label, number) => ({
      label, stroke: () => hue(number), width: 2, points: { show: true, size: 7 }, spanGaps: true,
      value: (_, value) => shown(value) }))],
    plugins: [bars([...lines.values()].map(line => line.spans))],
  }, [xs, ...[...lines.values()].map(line => line.values)], inside);
  return () => {
    if (chart) chart.setSize(size());
    else chart = make();
  };
};
const drawAll = () => {
  place.textContent = '';
  const fits = [];
  AXES.forEach((axis, number) => {
    const points = along(number);
    if (new Set(points.map(each => axis.of(each.point))).size < 2 && number) return;
    if (!points.length) return;
    add(place, 'h2', 'Over ' + axis.name);
    const others = AXES.map((other, at) => [other, at]).filter(([, at]) => at !== number);
    const fixed = others.map(([other, at]) => other.name + ': ' + middles[at]).join('; ');
    add(place, 'p', fixed + '. Bars: 95 % intervals.');
    const box = add(place, 'div');
    box.className = 'charts';
    for (const metric of METRICS) fits.push(draw(box, axis, metric, points));
  });
  onresize = () => fits.forEach(fit => fit());
  onresize();
};
drawAll();
dark.addEventListener('change', drawAll);
"""

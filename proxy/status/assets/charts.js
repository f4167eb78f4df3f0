// The charts of the last 15 minutes, with uPlot: lines, holes, and a mark wherever a worker ended.

import { byId, each, fill, label, make, row, say } from "/status/assets/dom.js";
import { SPAN_S, highest, lowest } from "/status/assets/series.js";
import { bytes, clock, clockMinute, count, many, seconds, speed } from "/status/assets/units.js";

const LIBRARY = "/status/assets/vendor/uplot.iife.min.js";
const HEIGHT = 168;
const POWERS = Array.from({ length: 44 }, (_, power) => 2 ** power);

const CHARTS = [
  {
    title: "Tokens a second",
    say: speed,
    lines: [{ column: "tokens_per_s", name: "all answers", colour: "--accent", fill: true }],
  },
  {
    title: "Time to first token",
    say: seconds,
    lines: [
      { column: "ttft_p50_s", name: "median", colour: "--accent", points: true },
      { column: "ttft_p95_s", name: "p95", colour: "--second", thin: true, points: true },
    ],
  },
  {
    title: "Answers",
    say: count,
    whole: true,
    lines: [
      { column: "running", name: "running", colour: "--accent", stepped: true },
      { column: "queued", name: "queued", colour: "--second", stepped: true },
    ],
  },
  {
    title: "KV caches",
    say: bytes,
    binary: true,
    lines: [{ column: "kv_bytes", name: "held", colour: "--accent", fill: true }],
  },
];

/** Load the library: after the first picture, which needs none. */
function library() {
  return new Promise((loaded, failed) => {
    document.head.append(make("script", { src: LIBRARY, onload: () => loaded(window.uPlot), onerror: failed }));
  });
}

export class Charts {
  constructor(series) {
    this.series = series;
    this.now = 0;
    this.charts = CHARTS.map((chart) => new Chart(chart, this));
    byId("chart-list").append(...this.charts.map((chart) => chart.figure));
    byId("minutes-more").addEventListener("toggle", () => this.#tell());
  }

  async load() {
    this.uPlot = await library();
    const again = () => this.charts.forEach((chart) => chart.build(this.uPlot));
    again();
    // Colours are drawn into the picture, so another scheme is another picture.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    const sizes = new ResizeObserver(() => this.charts.forEach((chart) => chart.fit()));
    sizes.observe(byId("chart-list"));
  }

  /** Draw up to `now`, in the server's time. */
  draw(now) {
    this.now = now;
    for (const chart of this.charts) chart.draw();
    this.#tell();
  }

  #tell() {
    if (!byId("minutes-more").open) return;
    const cells = (minute) => [
      clockMinute(minute.until), speed(minute.tokens_per_s), seconds(minute.ttft_p50_s), seconds(minute.ttft_p95_s),
      count(minute.queued), count(minute.running), bytes(minute.kv_bytes), count(minute.refused), count(minute.deaths),
    ];
    each(byId("minutes"), this.series.minutes(), () => row(8), (line, minute) => fill(line, cells(minute)));
  }
}

class Chart {
  constructor(chart, all) {
    Object.assign(this, chart);
    this.all = all;
    this.plot = make("div", { class: "plot", role: "img" });
    this.values = this.lines.map(() => make("span", { class: "value" }));
    this.at = make("span", { class: "at" });
    const keys = this.lines.map((line, place) => {
      const swatch = make("span", { class: "stroke", "aria-hidden": "true" });
      swatch.style.borderColor = `var(${line.colour})`;
      return make("span", { class: "series" }, swatch, `${line.name} `, this.values[place]);
    });
    this.figure = make("figure", { class: "card", "aria-label": this.title },
      make("figcaption", {}, make("h3", {}, this.title), make("p", { class: "reading" }, ...keys, this.at)), this.plot);
  }

  get #columns() {
    return this.lines.map((line) => line.column);
  }

  build(uPlot) {
    this.picture?.destroy();
    this.uPlot = uPlot;
    this.style = getComputedStyle(document.documentElement);
    const data = this.all.series.lines(this.#columns);
    this.picture = new uPlot(this.#options(), data, this.plot);
    this.draw();
  }

  fit() {
    const width = Math.floor(this.plot.clientWidth);
    if (this.picture && width && width !== this.picture.width) this.picture.setSize({ width, height: HEIGHT });
  }

  draw() {
    const { series } = this.all;
    if (this.picture) this.picture.setData(series.lines(this.#columns));
    if (!this.picture || this.picture.cursor.idx == null) this.#read(series.columns.time.length - 1);
    label(this.plot, this.#summary());
  }

  /** Show the values of one place beside the title: the latest, or where the pointer is. */
  #read(place, at = null) {
    const { columns } = this.all.series;
    this.lines.forEach((line, number) => say(this.values[number], this.say(columns[line.column][place] ?? null)));
    say(this.at, at === null ? "" : `at ${clock(at)}`);
  }

  #summary() {
    const { columns } = this.all.series;
    const parts = this.lines.map(({ column, name }) => {
      const values = columns[column].filter((value) => value !== null);
      if (!values.length) return `${name}: none`;
      const range = `from ${this.say(lowest(values))} to ${this.say(highest(values))}`;
      return `${name}: ${this.say(values.at(-1))} at last, ${range}`;
    });
    const ends = this.all.series.marks(this.all.now).length;
    const marks = ends ? ` ${many(ends, "end of a worker", "ends of workers")}.` : "";
    return `${this.title}, the last 15 minutes. ${parts.join("; ")}.${marks}`;
  }

  #options() {
    const colour = (name) => this.style.getPropertyValue(name).trim();
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colour("--soft"), font, ticks: { show: false }, grid: { stroke: colour("--line"), width: 1 } };
    const { all } = this;
    return {
      width: Math.max(200, Math.floor(this.plot.clientWidth)),
      height: HEIGHT,
      legend: { show: false },
      padding: [10, 8, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false, sync: { key: "forebay" }, points: { size: 7 } },
      scales: {
        x: { time: true, range: () => [all.now - SPAN_S, all.now] },
        y: { range: (_, low, high) => [0, this.#top(high)] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 26, gap: 4, space: 70, values: (_, at) => at.map(clockMinute) },
        { ...axis, size: 58, space: 36, incrs: this.binary ? POWERS : undefined, values: (_, at) => at.map(this.#round) },
      ],
      series: [{}, ...this.lines.map((line) => this.#line(line, colour(line.colour)))],
      hooks: {
        drawClear: [(picture) => this.#drawHoles(picture, colour("--hole"))],
        draw: [(picture) => this.#drawMarks(picture, colour("--bad"), colour("--soft"))],
        setCursor: [(picture) => this.#follow(picture)],
      },
    };
  }

  /** Write an axis' number: without noughts, and 0 without a unit. */
  #round = (value) => (value ? this.say(value).replace(/[.]0+(?=\D|$)/, "") : "0");

  #top(high) {
    const least = this.binary ? 2 ** 20 : this.whole ? 4 : 1;
    return Math.max(least, 1.1 * (high ?? 0));
  }

  #line(line, stroke) {
    return {
      stroke,
      width: line.thin ? 1 : 1.75,
      fill: line.fill ? this.style.getPropertyValue("--fill").trim() : undefined,
      paths: line.stepped ? this.uPlot.paths.stepped({ align: -1 }) : undefined,
      points: line.points ? { size: 4, fill: stroke, filter: alone } : { show: false },
    };
  }

  /** Nothing was measured here: the gateway was gone, or it hadn't begun. */
  #drawHoles(picture, colour) {
    const { ctx, bbox } = picture;
    ctx.save();
    ctx.fillStyle = colour;
    for (const [from, to] of this.all.series.holes(this.all.now)) {
      const left = Math.max(bbox.left, picture.valToPos(from, "x", true));
      const right = Math.min(bbox.left + bbox.width, picture.valToPos(to, "x", true));
      if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }
    ctx.restore();
  }

  #drawMarks(picture, died, planned) {
    const { ctx, bbox } = picture;
    const unit = devicePixelRatio;
    ctx.save();
    ctx.lineWidth = 1.5 * unit;
    for (const [at, isPlanned] of this.all.series.marks(this.all.now)) {
      const x = Math.round(picture.valToPos(at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = isPlanned ? planned : died;
      ctx.setLineDash(isPlanned ? [2 * unit, 3 * unit] : []);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.arc(x, bbox.top, 3.5 * unit, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  }

  #follow(picture) {
    const { time } = this.all.series.columns;
    const at = picture.cursor.idx == null ? null : picture.data[0][picture.cursor.idx];
    // A hole has a moment of its own in the picture, so the place is found by its time.
    const place = at === null ? time.length - 1 : time.indexOf(at);
    this.#read(place, at);
  }
}

/** Return the places whose neighbours have no value: no line shows them. */
function alone(picture, line) {
  const values = picture.data[line];
  const none = (place) => values[place] === null || values[place] === undefined;
  return values.map((_, place) => place).filter((place) => !none(place) && none(place - 1) && none(place + 1));
}


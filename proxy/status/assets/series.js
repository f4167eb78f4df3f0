// The last 15 minutes as this page knows them: columns that grow, and the holes where nothing was measured.

export const SPAN_S = 900;
const COLUMNS = ["time", "tokens_per_s", "ttft_p50_s", "ttft_p95_s", "queued", "running", "kv_bytes", "refused", "deaths"];
// So many intervals without any are a hole; fewer are a busy moment.
const HOLE_INTERVALS = 3;
const ENDS_KEPT = 64;
// A line goes on over so many intervals in which no answer began.
const BRIDGED = 15;

export class Series {
  constructor() {
    this.interval_s = 2;
    this.columns = Object.fromEntries(COLUMNS.map((name) => [name, []]));
    this.isWhole = false; // whether the gateway was asked for all that it remembers
    this.ends = new Map(); // epoch and cause → an end of a worker; the server forgets them when it is restarted
  }

  get lastTime() {
    return this.columns.time.at(-1) ?? null;
  }

  /** Take all that the gateway remembers in place of what is known of that time; what is older stays. */
  replace(view) {
    this.isWhole = true;
    if (view.time.length) this.#cut((time) => time < view.time[0] - view.interval_s / 2);
    this.append(view);
  }

  /** Take what is newer than what is known; return whether something is missing between the two. */
  append(view) {
    this.interval_s = view.interval_s;
    // A clock that was set back begins anew from there.
    if (view.time.at(-1) < this.lastTime - view.interval_s) this.#cut((time) => time < view.time[0]);
    const before = this.lastTime;
    const first = view.time.findIndex((time) => before === null || time > before + view.interval_s / 2);
    if (first < 0) return false;
    for (const name of COLUMNS) this.columns[name].push(...view[name].slice(first));
    return before !== null && view.time[first] - before > HOLE_INTERVALS * view.interval_s;
  }

  /** Remember ends of workers, as snapshots tell them. */
  note(deaths) {
    for (const death of deaths) this.ends.set(`${death.epoch} ${death.cause}`, death);
    while (this.ends.size > ENDS_KEPT) this.ends.delete(this.ends.keys().next().value);
  }

  forget(now) {
    this.#cut((time) => time >= now - SPAN_S - this.interval_s);
  }

  #cut(stays) {
    const kept = this.columns.time.map(stays);
    for (const name of COLUMNS) this.columns[name] = this.columns[name].filter((_, place) => kept[place]);
  }

  /** Return the holes up to now, as [from, to], the one before the first interval included. */
  holes(now) {
    const longest = HOLE_INTERVALS * this.interval_s;
    const ends = [now - SPAN_S, ...this.columns.time.filter((time) => time > now - SPAN_S), now];
    const found = [];
    for (let place = 1; place < ends.length; place += 1) {
      const isFirst = place === 1;
      // An interval covers the time before its end, where it isn't after a hole itself.
      const to = place === ends.length - 1 ? ends[place] : ends[place] - this.interval_s;
      if (ends[place] - ends[place - 1] > longest) found.push([isFirst ? now - SPAN_S : ends[place - 1], to]);
    }
    return found;
  }

  /** Return aligned columns for a chart, the time first; a hole is a moment without values. */
  lines(names) {
    const { time } = this.columns;
    const lines = [[], ...names.map(() => [])];
    const holes = [];
    time.forEach((at, place) => {
      if (place && at - time[place - 1] > HOLE_INTERVALS * this.interval_s) {
        holes.push(lines[0].push((at + time[place - 1]) / 2) - 1);
        names.forEach((_, line) => lines[line + 1].push(null));
      }
      lines[0].push(at);
      names.forEach((name, line) => lines[line + 1].push(this.columns[name][place]));
    });
    lines.slice(1).forEach((values) => bridge(values, holes));
    return lines;
  }

  /** Return [time, is planned] of every end of a worker in view: those told one by one, and older ones. */
  marks(now) {
    const told = [...this.ends.values()];
    const known = (at) => told.some((death) => Math.abs(death.at - at) <= 1.5 * this.interval_s);
    const older = this.columns.time.filter((at, place) => this.columns.deaths[place] > 0 && !known(at));
    const all = [...told.map((death) => [death.at, death.cause === "planned"]), ...older.map((at) => [at, false])];
    return all.filter(([at]) => at > now - SPAN_S).sort((a, b) => a[0] - b[0]);
  }

  /** Return one line for each minute, the latest first: the highest of it, but the middle of speeds and medians. */
  minutes() {
    const { time } = this.columns;
    const found = new Map();
    time.forEach((at, place) => {
      const minute = Math.ceil(at / 60) * 60;
      found.set(minute, [...(found.get(minute) ?? []), place]);
    });
    return [...found].reverse().map(([until, places]) => {
      const of = (name) => places.map((place) => this.columns[name][place]).filter((value) => value !== null);
      return {
        until,
        tokens_per_s: mean(of("tokens_per_s")),
        ttft_p50_s: middle(of("ttft_p50_s")),
        ttft_p95_s: highest(of("ttft_p95_s")),
        queued: highest(of("queued")),
        running: highest(of("running")),
        kv_bytes: highest(of("kv_bytes")),
        refused: sum(of("refused")),
        deaths: sum(of("deaths")),
      };
    });
  }
}

/** Leave out short runs of nothing: a chart draws on over what is undefined, and breaks off at null. */
function bridge(values, holes) {
  let from = values.findIndex((value) => value !== null) + 1;
  values.forEach((value, place) => {
    if (value === null || place < from) return;
    const isHole = holes.some((hole) => from <= hole && hole < place);
    if (place - from <= BRIDGED && !isHole) values.fill(undefined, from, place);
    from = place + 1;
  });
}

const sum = (values) => values.reduce((all, value) => all + value, 0);
const mean = (values) => (values.length ? sum(values) / values.length : null);
export const highest = (values) => (values.length ? values.reduce((a, b) => Math.max(a, b)) : null);
export const lowest = (values) => (values.length ? values.reduce((a, b) => Math.min(a, b)) : null);
const middle = (values) => (values.length ? [...values].sort((a, b) => a - b)[values.length >> 1] : null);

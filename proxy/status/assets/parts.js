// What is there now: numbers, lanes, rows by length, memory.

import { byId, each, figure, fill, label, make, row, say, whenChanged } from "/status/assets/dom.js";
import { bytes, bytesParts, count, many, seconds, secondsParts, span, speedParts } from "/status/assets/units.js";
import { list, queuedOf, runningOf } from "/status/assets/words.js";

const LANE_COLOURS = 4;
const LENGTH_LEAST = 16;
const BARS_APART_MAX = 64;
const NO_MEMORY = "No worker tells of its memory.";

export function showNumbers(snapshot) {
  const { speed, worker } = snapshot;
  figure(byId("n-speed"), speedParts(speed.tokens_per_s));
  figure(byId("n-p50"), secondsParts(speed.ttft_p50_s));
  figure(byId("n-p95"), secondsParts(speed.ttft_p95_s));
  figure(byId("n-queued"), [count(queuedOf(snapshot)), ""]);
  const slots = worker.slots_now ?? worker.slots;
  figure(byId("n-running"), [count(runningOf(snapshot)), slots === null ? "" : `of ${slots}`]);
  figure(byId("n-refused"), [count(speed.refused), ""]);
  byId("n-refused").classList.toggle("warns", speed.refused > 0);
}

// --- lanes ---

export function showLanes({ lanes, suspects }) {
  byId("lanes-note").hidden = !suspects;
  say(byId("lanes-note"), `${count(suspects)} more wait to run alone: they ran when a worker died, or ask the same.`);
  each(byId("lanes"), lanes, laneRow, (line, lane, place) => {
    const [name, running, queued, oldest] = line.children;
    name.firstChild.className = `swatch lane-${place % LANE_COLOURS}`;
    say(name.children[1], lane.name);
    name.children[2].hidden = !lane.overloaded;
    say(running, count(lane.running));
    figure(queued, [count(lane.queued), `of ${count(lane.queue_places)}`]);
    say(oldest, lane.queued ? seconds(lane.oldest_wait_s) : "–");
  });
}

function laneRow() {
  const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
  return row(3, swatch, make("span"), make("span", { class: "badge", hidden: true }, "overloaded"));
}

// --- rows ---

export const showRows = whenChanged(({ rows, lanes }) => {
  const place = Object.fromEntries(lanes.map(({ name }, number) => [name, number % LANE_COLOURS]));
  const sorted = [...rows].sort((a, b) => b.tokens - a.tokens || b.tokens_max - a.tokens_max);
  const top = Math.max(1024, ...rows.map((row) => row.tokens_max));
  const height = (tokens) => Math.max(0, Math.log2(Math.max(tokens, 1) / LENGTH_LEAST) / Math.log2(top / LENGTH_LEAST));
  const root = byId("rows");
  if (!root.firstChild) root.append(make("div", { class: "grid" }), make("div", { class: "bars" }));
  const [grid, bars] = root.children;
  bars.classList.toggle("close", rows.length > BARS_APART_MAX);
  const marks = [64, 256, 1024, 4096, 16384, 65536, 262144].filter((tokens) => tokens <= top);
  each(grid, marks, () => make("span"), (line, tokens) => {
    say(line, tokens >= 1024 ? `${tokens / 1024}k` : tokens);
    line.style.bottom = `${100 * height(tokens)}%`;
  });
  each(bars, sorted, () => make("span", {}, make("span")), (bar, answer) => {
    bar.className = `row lane-${place[answer.lane] ?? 0}${answer.attempt > 1 ? " again" : ""}`;
    bar.style.height = `${100 * height(answer.tokens_max)}%`;
    bar.firstChild.style.height = `${(100 * height(answer.tokens)) / (height(answer.tokens_max) || 1)}%`;
    bar.title = `${answer.lane}: ${count(answer.tokens)} of ${count(answer.tokens_max)} tokens`;
  });
  label(root, rowsInWords(sorted, lanes));
  say(byId("rows-note"), rowsNote(sorted));
  showClasses(sorted);
});

function rowsNote(rows) {
  if (!rows.length) return "No answer runs.";
  const again = rows.filter((row) => row.attempt > 1).length;
  const more = again ? ` ${again} had begun before and ${again > 1 ? "go" : "goes"} on.` : "";
  return `Tokens now, and pale what they may grow to. The scale doubles evenly.${more}`;
}

function rowsInWords(rows, lanes) {
  if (!rows.length) return "No answer runs.";
  const shares = lanes.map(({ name }) => [rows.filter((row) => row.lane === name).length, name]);
  const byLane = list(shares.filter(([number]) => number).map(([number, name]) => `${number} ${name}`));
  const [longest] = rows;
  const most = `The longest has ${count(longest.tokens)} tokens, of ${count(longest.tokens_max)} that it may grow to.`;
  return `${many(rows.length, "row")}: ${byLane}. ${most}`;
}

/** Sum the rows up in classes of length, each to twice the one before. */
function showClasses(rows) {
  const classes = new Map();
  for (const { lane, tokens } of rows) {
    const below = 2 ** Math.max(6, Math.floor(Math.log2(Math.max(tokens, 1))) + 1);
    const key = `${below} ${lane}`;
    const known = classes.get(key) ?? { below, lane, rows: 0, tokens: 0 };
    classes.set(key, { ...known, rows: known.rows + 1, tokens: known.tokens + tokens });
  }
  const sorted = [...classes.values()].sort((a, b) => b.below - a.below || a.lane.localeCompare(b.lane));
  each(byId("row-classes"), sorted, () => row(3), (line, { below, lane, rows: number, tokens }) => {
    const from = below === 64 ? 0 : below / 2;
    fill(line, [`${count(from)} to ${count(below - 1)}`, lane, count(number), count(tokens)]);
  });
}

// --- memory ---

const SHARES = [
  ["weights", "Weights"],
  ["held", "KV that rows hold"],
  ["promised", "KV reserved beyond that"],
  ["kept", "Beginnings kept of prompts"],
  ["free", "Headroom"],
];

/** Return what memory is taken for: how it is drawn, its name, its bytes; null where no worker tells. */
export function shares(memory) {
  const budget = memory.kv_budget_bytes ?? memory.kv_budget_full_bytes;
  if (memory.weights_bytes === null || budget === null) return SHARES.map(([kind, name]) => [kind, name, null]);
  const held = memory.kv_held_bytes ?? 0, kept = memory.prefix_kept_bytes ?? 0;
  const promised = Math.max(0, memory.kv_reserved_bytes - held);
  const amounts = [memory.weights_bytes, held, promised, kept, Math.max(0, budget - held - promised - kept)];
  const parts = SHARES.map(([kind, name], place) => [kind, name, amounts[place]]);
  const lost = memory.kv_budget_full_bytes - budget;
  return lost > 0 ? [...parts, ["lost", "Given back, for now", lost]] : parts;
}

export const showMemory = whenChanged(({ memory }) => {
  const parts = shares(memory);
  const all = parts.reduce((sum, [, , amount]) => sum + amount, 0) || 1;
  each(byId("memory-bar"), parts, () => make("span"), (part, [kind, , amount]) => {
    part.className = `share ${kind}`;
    part.style.flexGrow = amount / all;
    part.hidden = !amount;
  });
  const item = () =>
    make("li", {}, make("span", { "aria-hidden": "true" }), make("span"), make("span", { class: "value" }));
  each(byId("memory-legend"), parts, item, (line, [kind, name, amount]) => {
    line.firstChild.className = `swatch share ${kind}`;
    say(line.children[1], name);
    figure(line.children[2], bytesParts(amount));
  });
  const words = parts.map(([, name, amount]) => `${name} ${bytes(amount)}`);
  label(byId("memory-bar"), parts[0][2] === null ? NO_MEMORY : `${words.join("; ")}.`);
  say(byId("memory-note"), memoryNote(memory));
});

function memoryNote(memory) {
  const budget = memory.kv_budget_bytes ?? memory.kv_budget_full_bytes;
  if (budget === null) return NO_MEMORY;
  const says = [`The budget for KV caches is ${bytes(budget)}.`];
  if (memory.footprint_bytes) {
    const [all, peak, freed] = [memory.footprint_bytes, memory.peak_bytes, memory.cache_bytes].map(bytes);
    says.push(`The process takes ${all}; its arrays took ${peak} at most, ${freed} of freed ones are kept.`);
  }
  if (memory.prefix_shared_bytes) says.push(`Rows share ${bytes(memory.prefix_shared_bytes)}.`);
  if (memory.prefix_disk_bytes) says.push(`On disk are ${bytes(memory.prefix_disk_bytes)} of beginnings.`);
  if (memory.arrays_max) says.push(`${count(memory.arrays)} buffers of ${count(memory.arrays_max)}.`);
  return says.join(" ");
}

// --- facts ---

export function showFacts(snapshot) {
  const { gateway, worker } = snapshot;
  say(byId("model"), gateway.model);
  const share = Math.round((100 * snapshot.cached_tokens) / snapshot.prompt_tokens);
  const cached = snapshot.prompt_tokens ? ` (${share} % were there already)` : "";
  const facts = [
    ["Family", worker.family],
    ["Caches", worker.caches],
    ["Context", worker.context_tokens === null ? null : `${count(worker.context_tokens)} tokens`],
    ["Rows, in groups", worker.rows === null ? null : `${worker.rows} in ${worker.groups}`],
    ["Worker's epoch", worker.epoch],
    ["Breaker", worker.breaker.replace("_", " ")],
    ["Rung", `${worker.rung} of ${worker.rung_max}`],
    ["Deaths", count(worker.deaths)],
    ["Answers resumed", count(gateway.resumed)],
    ["Prompt tokens", `${count(snapshot.prompt_tokens)}${cached}`],
    ["Gateway up for", span(gateway.uptime_s)],
    ["Version", gateway.version],
  ];
  each(byId("facts"), facts, () => make("div", {}, make("dt"), make("dd")), (line, [name, value]) => {
    fill(line, [name, value === null || value === "" ? "–" : value]);
  });
}

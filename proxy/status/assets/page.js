// The page's pulse: asks the gateway each second how it is, and has every part show it.

import { byId, say } from "/status/assets/dom.js";
import { Charts } from "/status/assets/charts.js";
import { quarantineShown, showDeaths } from "/status/assets/events.js";
import { Orders } from "/status/assets/orders.js";
import { showFacts, showLanes, showMemory, showNumbers, showRows } from "/status/assets/parts.js";
import { Series } from "/status/assets/series.js";
import { clock, moment, span } from "/status/assets/units.js";
import { away, told } from "/status/assets/words.js";

const PULSE_MS = 1000;
const PULSE_HIDDEN_MS = 5000;
const PATIENCE_MS = 4000;
// One answer that is late or lost on the way is no news.
const AWAY_AFTER_MS = 2500;

const series = new Series();
const charts = new Charts(series);
const orders = new Orders(() => ask());
const showQuarantine = quarantineShown(orders.clear);
const began = performance.now();
let latest = null; // the last snapshot, and when it came by this page's clock
let timer = 0;
let asking = false;

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

/** Ask now, and again after a while: one question at a time. Whatever goes wrong, the pulse goes on. */
async function ask() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  try {
    const snapshot = await get("/status").catch(() => null);
    if (snapshot === null) miss();
    else await take(snapshot);
  } finally {
    asking = false;
    timer = setTimeout(ask, document.hidden ? PULSE_HIDDEN_MS : PULSE_MS);
  }
}

async function take(snapshot) {
  latest = { snapshot, at: performance.now() };
  show(snapshot);
  series.note(snapshot.deaths);
  // What this page didn't see, the gateway may have.
  if (series.append(snapshot.recent) || !series.isWhole) await remember();
  series.forget(snapshot.time);
  charts.draw(snapshot.time);
}

async function remember() {
  const history = await get("/status/history").catch(() => null);
  if (history !== null) series.replace(history);
}

function show(snapshot) {
  showState(told(snapshot), sinceWords(snapshot));
  showNumbers(snapshot);
  showLanes(snapshot);
  showRows({ rows: snapshot.rows, lanes: snapshot.lanes.map(({ name }) => ({ name })) });
  showMemory({ memory: snapshot.memory });
  showDeaths(snapshot);
  showQuarantine(snapshot);
  showFacts(snapshot);
  orders.follow(snapshot);
}

const sinceWords = ({ time, gateway }) =>
  `for ${span(gateway.since_s)}, since ${moment(time - gateway.since_s, time)}`;

/** There was no answer: say so once that has lasted, and keep the last picture, greyed. */
function miss() {
  const gone_ms = performance.now() - (latest?.at ?? began);
  if (gone_ms < AWAY_AFTER_MS) return;
  if (latest === null) {
    showState(away(null), "");
    return;
  }
  const { time } = latest.snapshot;
  showState(away(gone_ms / 1000), `for ${span(gone_ms / 1000)}, since ${clock(time)}`);
  charts.draw(time + gone_ms / 1000);
}

/** Say how it is. What listens to the page is told when the state is another one, not each second. */
function showState({ tone, word, says }, since) {
  if (byId("word").textContent !== word) {
    say(byId("announce"), `${word}. ${says[0]}`);
    document.title = `${word} · Forebay`;
  }
  document.body.dataset.tone = tone;
  say(byId("word"), word);
  say(byId("since"), since);
  say(byId("says"), says.join(" "));
}

document.addEventListener("visibilitychange", () => document.hidden || ask());
await ask();
await charts.load();

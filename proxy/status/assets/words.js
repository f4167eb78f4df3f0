// How the gateway is, in plain sentences: pure functions of a snapshot.

import { bytes, many, seconds, span } from "/status/assets/units.js";

const CAUSES = {
  memory: "died for want of memory",
  crash: "crashed",
  loop_exception: "ended by an exception",
  hang: "hung, and was killed",
  killed: "was killed from outside",
  stuck_load: "got stuck while loading",
  planned: "was replaced as ordered",
  cannot_load: "could not load the model",
};

/** Say what became of a worker; "It" or "The worker" comes before. */
export const cause = (name) => CAUSES[name] ?? `ended: ${name}`;

/** What waits anywhere: in lanes, and for a trial alone. */
export const queuedOf = (snapshot) => snapshot.lanes.reduce((sum, lane) => sum + lane.queued, snapshot.suspects);
export const runningOf = (snapshot) => snapshot.lanes.reduce((sum, lane) => sum + lane.running, 0);

export const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

/** "a, b and c" */
export const list = (names) =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;

/** "3 answers run" */
const who = (number, noun, one, more) => `${capital(many(number, noun))} ${number > 1 ? more : one}`;

/**
 * Return {tone, word, since_s, says}. Tones are good, busy, bad; `says` are sentences: what is so, what comes
 * next. The first of them doesn't tick, so that it can be read out when it changes.
 */
export function told(snapshot) {
  const { gateway } = snapshot;
  const how = (STATES[gateway.status] ?? unknown)(snapshot);
  return { since_s: gateway.since_s, ...how };
}

const STATES = { ready, loading, restarting, absent, draining };

const unknown = ({ gateway }) => ({ tone: "busy", word: gateway.status, says: ["This page doesn't know more of it."] });

function ready(snapshot) {
  const { gateway, worker, lanes } = snapshot;
  const overloaded = lanes.filter((lane) => lane.overloaded);
  const care = [...onTrial(worker), ...rung(worker), ...short(snapshot.memory), ...suspects(snapshot)];
  if (gateway.held) {
    const says = ["A restart has been ordered. It waits for what runs to end, and new answers wait for it."];
    return { tone: "busy", word: "About to restart", says: [...says, atWork(snapshot), ...care] };
  }
  if (overloaded.length) {
    const names = list(overloaded.map((lane) => lane.name));
    const says = [`Too much is asked of ${names}: ${refusedIn(overloaded)}`];
    return { tone: "busy", word: "Overloaded", says: [...says, atWork(snapshot), ...care] };
  }
  if (care.length) return { tone: "busy", word: "Ready, with care", says: [...care, atWork(snapshot)] };
  return { tone: "good", word: "Ready", says: ["Requests are answered.", atWork(snapshot)] };
}

function refusedIn(lanes) {
  const [first] = lanes;
  const isOne = lanes.length === 1 && first.target_wait_s !== null;
  const wait = isOne ? ` for more than ${seconds(first.target_wait_s)}` : " too long";
  return `who would wait${wait} is refused at once, until the queue is short again.`;
}

function atWork(snapshot) {
  const { refused } = snapshot.speed;
  const turned = refused ? ` ${who(refused, "request", "was", "were")} refused in the last 10 s.` : "";
  return `${work(snapshot)}${turned}`;
}

function work(snapshot) {
  const running = runningOf(snapshot), queued = queuedOf(snapshot);
  if (!running && !queued) return "Nothing runs, nothing waits.";
  const first = who(running, "answer", "runs", "run");
  return queued ? `${first}, ${queued} ${queued > 1 ? "wait" : "waits"}.` : `${first}, nothing waits.`;
}

const onTrial = (worker) =>
  worker.breaker === "half_open" ? ["The worker is on trial: one request runs at a time until it proves healthy."] : [];

const rung = (worker) =>
  worker.rung > 0
    ? [
        `It runs with less, on rung ${worker.rung} of ${worker.rung_max}, since a worker died for want of memory.`,
        "It climbs back while it stays healthy.",
      ]
    : [];

function short({ kv_budget_bytes: now, kv_budget_full_bytes: full }) {
  if (now === null || full === null || now >= full) return [];
  return [`Memory is short: KV caches may take ${bytes(now)} now, of ${bytes(full)}.`];
}

const suspects = ({ suspects: number }) =>
  number
    ? [`${who(number, "answer", "waits", "wait")} to run alone: they ran when a worker died, or ask the same.`]
    : [];

function loading(snapshot) {
  const says = ["The worker is loading the model.", ...lastEnd(snapshot), goOn(snapshot)];
  return { tone: "busy", word: "Loading", says };
}

function restarting(snapshot) {
  const { worker } = snapshot;
  const last = snapshot.deaths.at(-1);
  const isOpen = last && last.restart_s === null;
  const why = isOpen ? `The worker ${cause(last.cause)}.` : "The worker is gone.";
  if (worker.breaker === "open") return heldBack(snapshot, why);
  const planned = isOpen && last.cause === "planned";
  return { tone: planned ? "busy" : "bad", word: "Restarting", says: [why, next(worker), goOn(snapshot)] };
}

function heldBack({ worker }, why) {
  const when = worker.starts_in_s === null ? "soon" : `in ${span(worker.starts_in_s)}`;
  const says = [`${why} That was once too often, so none is started for now.`];
  says.push(`One is tried ${when}, with one request at first; until then requests are refused with 503.`);
  return { tone: "bad", word: "Held back", says };
}

function next({ starts_in_s: starts }) {
  if (starts === null || starts <= 0) return "The next one is being started.";
  return `The next one starts in ${span(starts)}.`;
}

/** What becomes of those who wait for a worker. */
function goOn(snapshot) {
  const queued = queuedOf(snapshot);
  if (!queued) return "Requests that come meanwhile wait their turn, or are refused at once.";
  const wait = who(queued, "answer", "waits", "wait");
  return `${wait} for it; what had begun goes on from the token it stopped at.`;
}

function lastEnd({ deaths }) {
  const last = deaths.at(-1);
  return last && last.restart_s === null ? [`The one before ${cause(last.cause)}.`] : [];
}

function absent(snapshot) {
  const { worker } = snapshot;
  if (worker.breaker === "open") return heldBack(snapshot, "A worker died.");
  const says = ["No worker has come yet."];
  if (worker.starts_in_s !== null) says.push(next(worker));
  says.push("Does its supervisor run? forebay up starts both; forebay journal says how the last ones ended.");
  return { tone: "bad", word: "No worker", says };
}

function draining(snapshot) {
  const { gateway, worker } = snapshot;
  const live = gateway.live;
  const says = ["Nothing new is taken."];
  if (worker.status !== "ready") says.push(`There is no worker at the moment: it is ${worker.status}.`);
  const left = who(live, "answer", "still runs or waits", "still run or wait");
  says.push(live ? `${left}, and may end.` : "Nothing runs any more.");
  says.push("It stays so until it is opened again, or the gateway goes down.");
  return { tone: "busy", word: "Draining", says };
}

/** What to say when the gateway doesn't answer; `since_s` is from its last answer, null if it never did. */
export function away(since_s) {
  const says = ["The gateway doesn't answer."];
  if (since_s !== null) says.push("What you see below is from then.");
  says.push("It is asked again each second. Is the machine on, and forebay up?");
  return { tone: "off", word: "Away", since_s, says };
}

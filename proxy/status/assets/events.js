// What happened: ends of workers, and the requests that are quarantined for them.

import { byId, each, make, say, whenChanged } from "/status/assets/dom.js";
import { count, many, moment, seconds } from "/status/assets/units.js";
import { capital, cause } from "/status/assets/words.js";

const iso = (at) => new Date(1000 * at).toISOString();
const number = () => make("td", { class: "num" });

const drawDeaths = whenChanged(({ deaths, now }) => {
  byId("deaths-none").hidden = deaths.length > 0;
  byId("deaths-table").hidden = !deaths.length;
  each(byId("deaths"), deaths, deathRow, (row, death) => {
    const [when, what, rows, back] = row.children;
    when.firstChild.dateTime = iso(death.at);
    say(when.firstChild, moment(death.at, now));
    say(what.children[0], capital(cause(death.cause)));
    what.children[0].className = death.cause === "planned" ? "what" : "what bad";
    say(what.children[1], death.detail);
    say(rows, count(death.rows));
    say(back, death.restart_s === null ? "not yet" : seconds(death.restart_s));
    const after = death.restart_s === null ? "not back yet" : `back after ${back.textContent}`;
    say(what.children[2], `${many(death.rows, "row")}, ${after}`);
  });
});

const deathRow = () =>
  make("tr", {}, make("td", { class: "when" }, make("time")),
    make("td", {}, ...["what", "detail", "detail narrow"].map((name) => make("span", { class: name }))),
    number(), number());

/** `now` is cut to the minute: it only decides whether a date is today's. */
export function showDeaths({ deaths, time }) {
  drawDeaths({ deaths: [...deaths].reverse(), now: 60 * Math.floor(time / 60) });
}

const drawQuarantine = (clear) =>
  whenChanged(({ entries, all, now }) => {
    byId("quarantine-table").hidden = !entries.length;
    say(byId("quarantine-note"), quarantineNote(entries.length, all));
    each(byId("quarantined"), entries, () => quarantineRow(clear), (row, entry) => {
      const [request, why, until, order] = row.children;
      say(request.children[0], entry.fingerprint);
      say(request.children[1], `${entry.lane}, ${count(entry.prompt_tokens)} tokens`);
      say(why, capital(cause(entry.cause)));
      until.firstChild.dateTime = iso(entry.until);
      say(until.firstChild, moment(entry.until, now).replace(/:\d\d$/, ""));
      order.firstChild.dataset.fingerprint = entry.fingerprint;
      order.firstChild.setAttribute("aria-label", `Clear ${entry.fingerprint}`);
    });
  });

function quarantineRow(clear) {
  const button = make("button", { type: "button", class: "plain" }, "Clear");
  button.addEventListener("click", () => clear(button.dataset.fingerprint, button));
  return make("tr", {},
    make("th", { scope: "row" }, make("code"), make("span", { class: "detail" })),
    make("td"), make("td", { class: "when" }, make("time")), make("td", { class: "num" }, button));
}

function quarantineNote(shown, all) {
  if (!all) return "No request is in quarantine.";
  const words = `${capital(many(all, "request"))} ${all > 1 ? "aren't" : "isn't"} run, for having killed the worker.`;
  return shown < all ? `${words} These are the latest; forebay quarantine list has them all.` : words;
}

/** Return what shows the quarantine; `clear(fingerprint, button)` is asked to clear one. */
export function quarantineShown(clear) {
  const draw = drawQuarantine(clear);
  return ({ quarantine, quarantined, time }) =>
    draw({ entries: [...quarantine].reverse(), all: quarantined, now: 60 * Math.floor(time / 60) });
}


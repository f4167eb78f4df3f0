// Orders to the gateway: drain, restart, reload, clear. They need the admin key, which no address ever has.

import { byId, make, say } from "/status/assets/dom.js";
import { many, seconds } from "/status/assets/units.js";

const KEPT_AS = "forebay-admin-key";
const RESTART_TIMEOUT_S = 600;
const PATIENCE_MS = 20000;
const WATCH_MS = 1000;

/** The admin key: in this page's memory, and for as long as the tab lives if that is wished. */
class Key {
  #key = sessionStorage.getItem(KEPT_AS) ?? "";

  get there() {
    return this.#key !== "";
  }

  get header() {
    return { Authorization: `Bearer ${this.#key}` };
  }

  take(key, keep) {
    this.#key = key;
    if (keep) sessionStorage.setItem(KEPT_AS, key);
    else sessionStorage.removeItem(KEPT_AS);
  }

  forget() {
    this.take("", false);
  }
}

export class Orders {
  /** `after` is called when an order was carried out. */
  constructor(after) {
    this.key = new Key();
    this.after = after;
    this.list = byId("order-list");
    this.#makeList();
    byId("key-form").addEventListener("submit", (event) => this.#takeKey(event));
    byId("key-forget").addEventListener("click", () => this.#forgetKey("The admin key is forgotten."));
    this.#showKey();
  }

  /** Follow what is going on: what the drain button means. */
  follow({ gateway }) {
    this.draining = gateway.draining;
    say(this.drain.button, gateway.draining ? "Open again" : "Drain");
    say(this.drain.note, gateway.draining ? "Takes requests again." : "Takes nothing new; what runs may end.");
  }

  clear = (fingerprint, button) =>
    this.#ask(button, {
      question: "Clear it, so that it is run again? If it kills again, it is quarantined again.",
      yes: "Clear",
      order: () => this.#send("quarantine/clear", { fingerprints: [fingerprint] },
        ({ cleared }) => (cleared ? `${fingerprint} is cleared.` : `${fingerprint} wasn't in quarantine any more.`)),
    });

  // --- the list ---

  #makeList() {
    this.drain = this.#item("Drain", "Takes nothing new; what runs may end.", () => this.#drainOrOpen());
    const restart = this.#item("Restart worker", "A fresh one. Answers pause and go on, none is lost.", () =>
      this.#askRestart(restart.button));
    const reload = this.#item("Reload", "Reads lanes and keys again.", () =>
      this.#send("reload", {}, () => "Lanes and keys were read again."));
    this.list.append(this.drain.item, restart.item, reload.item);
  }

  #item(name, note, act) {
    const button = make("button", { type: "button" }, name);
    const words = make("span", { class: "note" }, note);
    button.addEventListener("click", act);
    return { button, note: words, item: make("li", {}, make("div", { class: "line" }, words, button)) };
  }

  #drainOrOpen() {
    const send = (on) => this.#send("drain", { on }, ({ live }) =>
      on ? `Nothing new is taken${live ? `; ${many(live, "answer")} may end` : ""}.` : "Requests are taken again.");
    if (this.draining) send(false);
    else {
      const question = "Take nothing new from now on, until it is opened again?";
      this.#ask(this.drain.button, { question, yes: "Drain", order: () => send(true) });
    }
  }

  #askRestart(button) {
    const wait = make("input", { type: "checkbox" });
    this.#ask(button, {
      question: "Replace the worker? Answers that run pause for a load, then go on.",
      more: make("label", { class: "check" }, wait, " Let what runs end first (10 minutes at most)"),
      yes: "Restart",
      order: () => this.#send("restart", { drain: wait.checked, timeout_s: RESTART_TIMEOUT_S }, ({ restart }) => {
        setTimeout(() => this.#watch(restart.number), WATCH_MS);
        return wait.checked ? "The worker is replaced once what runs has ended." : "The worker is being replaced.";
      }),
    });
  }

  /** Say how a restart ends: ask until it has. Another order's words may stand there meanwhile. */
  async #watch(number) {
    const answer = await this.#call("status", { method: "GET" }).catch(() => null);
    const restart = answer?.ok ? (await answer.json()).restart : { number };
    if (!this.key.there || (answer && !answer.ok) || restart?.number !== number) return;
    if (restart.phase === "done") this.#say(`The worker was replaced in ${seconds(restart.took_s)}.`);
    else if (restart.phase === "failed") this.#say(`The restart failed: ${restart.problem}.`, true);
    else setTimeout(() => this.#watch(number), WATCH_MS);
  }

  // --- asking once more ---

  /** Ask in place, below the button; Escape and No leave all as it is. */
  #ask(button, { question, more, yes, order }) {
    if (!this.#hasKey()) return;
    this.asked?.remove();
    const words = make("p", { id: "question" }, question);
    const no = make("button", { type: "button", class: "plain" }, "No");
    const go = make("button", { type: "button", class: "grave" }, yes);
    const asked = make("div", { class: "ask", role: "group", "aria-labelledby": "question" },
      words, ...(more ? [more] : []), make("div", { class: "line" }, go, no));
    const end = () => {
      asked.remove();
      (button.isConnected ? button : byId("orders")).focus();
    };
    no.addEventListener("click", end);
    asked.addEventListener("keydown", (event) => event.key === "Escape" && end());
    go.addEventListener("click", () => {
      end();
      order();
    });
    this.asked = asked;
    const item = button.closest("li");
    if (item) item.append(asked);
    else button.closest("section").append(asked);
    no.focus();
  }

  // --- the key ---

  #hasKey() {
    if (this.key.there) return true;
    this.#say("Orders need the admin key: enter it first.", true);
    byId("key").focus();
    return false;
  }

  #takeKey(event) {
    event.preventDefault();
    const field = byId("key");
    this.key.take(field.value.trim(), byId("keep").checked);
    field.value = "";
    this.#showKey();
    if (!this.key.there) return;
    this.#say("");
    this.drain.button.focus();
  }

  #forgetKey(words, isBad = false) {
    this.key.forget();
    this.#showKey();
    this.#say(words, isBad);
    byId("key").focus();
  }

  #showKey() {
    byId("key-form").hidden = this.key.there;
    byId("key-there").hidden = !this.key.there;
  }

  // --- sending ---

  /** Give an order and say how it went; `done` puts the answer into words. */
  async #send(name, body, done) {
    if (!this.#hasKey()) return;
    this.#say("Ordered; waiting for the answer.");
    try {
      const answer = await this.#call(name, { method: "POST", body: JSON.stringify(body) });
      const told = await answer.json().catch(() => ({}));
      if (answer.ok) this.#say(done(told));
      else this.#refused(answer.status, told);
    } catch (problem) {
      this.#say("The gateway didn't answer: whether the order was carried out shows above.", true);
    }
    this.after();
  }

  #call(name, how) {
    const headers = { ...this.key.header, "Content-Type": "application/json" };
    return fetch(`/admin/${name}`, { ...how, headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  }

  #refused(status, told) {
    const why = told.problem ?? told.error?.message ?? `the gateway answered ${status}`;
    if (status === 401) this.#forgetKey(`That key isn't taken: ${why}`, true);
    else this.#say(`Not done: ${why}`, true);
  }

  #say(words, isBad = false) {
    const said = byId("order-said");
    say(said, words);
    said.classList.toggle("bad", isBad);
  }
}

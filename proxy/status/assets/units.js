// Numbers as people read them: bytes, seconds, counts, times of day.

const KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;
export const NONE = "–";

const known = (value) => value !== null && value !== undefined;
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => (known(value) ? grouped.format(value) : NONE);

/** "3 answers", "1 answer", "no answer". */
export function many(value, one, more = `${one}s`) {
  if (value === 0) return `no ${one}`;
  return value === 1 ? `1 ${one}` : `${count(value)} ${more}`;
}

/** Return [number, unit] of a count of bytes. */
export function bytesParts(bytes) {
  if (!known(bytes)) return [NONE, ""];
  if (bytes >= 99.95 * GIB) return [count(bytes / GIB), "GiB"];
  if (bytes >= 9.995 * GIB) return [(bytes / GIB).toFixed(1), "GiB"];
  if (bytes >= 0.0995 * GIB) return [(bytes / GIB).toFixed(2), "GiB"];
  if (bytes >= 0.995 * MIB) return [(bytes / MIB).toFixed(bytes >= 9.95 * MIB ? 0 : 1), "MiB"];
  return bytes === 0 ? ["0", "GiB"] : [(bytes / KIB).toFixed(bytes >= 9.95 * KIB ? 0 : 1), "KiB"];
}

/** Return [number, unit] of seconds, as short as they can be said: for times that answers take. */
export function secondsParts(seconds) {
  if (!known(seconds)) return [NONE, ""];
  if (seconds < 0.9995) return [(1000 * seconds).toFixed(0), "ms"];
  if (seconds < 9.95) return [seconds.toFixed(1), "s"];
  if (seconds < 120) return [seconds.toFixed(0), "s"];
  return [span(seconds), ""];
}

export function speedParts(perSecond) {
  if (!known(perSecond)) return [NONE, ""];
  return [perSecond < 99.95 ? perSecond.toFixed(1) : count(perSecond), ""];
}

// A number and its unit stay on one line.
const joined = ([number, unit]) => (unit ? `${number}\u00a0${unit}` : number);
export const bytes = (value) => joined(bytesParts(value));
export const seconds = (value) => joined(secondsParts(value));
export const speed = (value) => joined(speedParts(value));

/** Say how long something has been so. */
export function span(value) {
  if (!known(value)) return NONE;
  const whole = Math.max(0, Math.floor(value));
  const minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  const all = (...parts) => parts.filter(([number]) => number).map(joined).join(" ");
  if (whole < 120) return joined([whole, "s"]);
  if (minutes < 120) return joined([minutes, "min"]);
  return hours < 48 ? all([hours, "h"], [minutes % 60, "min"]) : all([days, "d"], [hours % 24, "h"]);
}

const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const clock = (at) => time.format(1000 * at);
export const clockMinute = (at) => minute.format(1000 * at);

/** A time of day, with its date unless that is today's, as `now` has it. */
export function moment(at, now) {
  const date = day.format(1000 * at);
  return date === day.format(1000 * now) ? clock(at) : `${date}, ${clock(at)}`;
}

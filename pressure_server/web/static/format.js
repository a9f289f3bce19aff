// Numbers, sizes and durations as text.

const whole = new Intl.NumberFormat("en");
// Times are written as people of all countries read them.
const timeOfDay = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Return an integer with separators. */
export function number(value) {
  return whole.format(value).replaceAll(",", "\u202f");
}

/** Return a number of bytes with its unit. */
export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** Return a rate per second; a dash for none. */
export function rate(value) {
  if (!value) return "–";
  return value < 10 ? value.toFixed(1) : number(Math.round(value));
}

/** Return a duration in its two largest units. */
export function duration(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Return the number, or a dash for 0. */
export function orDash(value) {
  return value ? number(value) : "–";
}

/** Return a time of day, in seconds since 1970, as 23:59:59. */
export function clock(seconds) {
  return timeOfDay.format(seconds * 1000);
}

/** Return "once" or "2 times". */
export function times(count) {
  return count === 1 ? "once" : `${number(count)} times`;
}

/** Return "1 job" or "2 jobs". */
export function counted(count, what) {
  return `${number(count)} ${what}${count === 1 ? "" : "s"}`;
}

// The live chart of one queue: its messages, and the rates of puts and gets.

import { h } from "./dom.js";
import { clock, number, rate } from "./format.js";
import { isLive } from "./status.js";
import { colour } from "./theme.js";
import uPlot from "./vendor/uPlot.js";

const HEIGHT = 220;
const MOST = 600; // seconds that are kept
const LEAST = 60; // seconds that are shown at least
const LATE = 1.5; // seconds after which an event does not come, because nothing has changed
const GAP = 5; // seconds without figures after which a line breaks
// Distances between the values of an axis of whole numbers.
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

function fromZero(_, __, most) {
  return [0, Math.max(most * 1.1, 1)];
}

/** Return a chart: `element`, `add(row)` for the figures of now, and `close`. */
export function chart() {
  const element = h("div", { class: "chart", role: "img", "aria-label": "Messages over time" });
  const data = [[], [], [], []];
  let plot = null;
  let latest = null;

  function range() {
    const last = data[0].at(-1);
    return [Math.min(data[0][0], last - LEAST), last];
  }

  function draw() {
    plot?.destroy();
    const line = (label, name, scale, format) => ({
      label,
      scale,
      width: scale === "messages" ? 2 : 1,
      stroke: colour(name),
      points: { show: false },
      value: (_, value) => (value === null ? "–" : format(value)),
    });
    const labels = (format) => (_, values) => values.map(format);
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    plot = new uPlot(
      {
        width: Math.max(element.clientWidth, 280),
        height: HEIGHT,
        legend: { live: true },
        scales: { x: { range }, messages: { range: fromZero }, rate: { range: fromZero } },
        series: [
          { label: "time", value: (_, at) => (at === null ? "–" : clock(at)) },
          line("messages", "--link", "messages", number),
          line("put/s", "--good", "rate", rate),
          line("taken/s", "--warning", "rate", rate),
        ],
        axes: [
          { ...axis, space: 80, values: labels(clock) },
          { ...axis, scale: "messages", size: 70, incrs: WHOLE, values: labels(number) },
          { ...axis, scale: "rate", side: 1, grid: { show: false }, size: 60, values: labels((value) => (value ? rate(value) : "0")) },
        ],
      },
      data,
      element,
    );
  }

  function resize() {
    plot?.setSize({ width: Math.max(element.clientWidth, 280), height: HEIGHT });
  }
  // Not at once: if that changes the width of the element again, it would be an error of the page.
  const observer = new ResizeObserver(() => requestAnimationFrame(resize));
  observer.observe(element);
  // An unchanged queue has no events.
  const timer = setInterval(() => {
    if (latest !== null && isLive() && !document.hidden && Date.now() / 1000 - data[0].at(-1) > LATE) push(latest);
  }, 1000);
  window.addEventListener("theme", draw);

  function note(...values) {
    values.forEach((value, at) => data[at].push(value));
  }

  function push(row) {
    const now = Date.now() / 1000;
    const last = data[0].at(-1);
    if (last < now - GAP) note(last + 1, null, null, null);
    note(now, row.messages, row.put, row.taken);
    while (data[0][0] < now - MOST) data.forEach((values) => values.shift());
    const highest = Math.max(...data[1]);
    const [from, to] = range().map(clock);
    const label = `Messages from ${from} to ${to}: now ${number(row.messages)}, highest ${number(highest)}`;
    element.setAttribute("aria-label", label);
    if (plot === null) draw();
    else plot.setData(data);
  }

  return {
    element,
    add(row) {
      if (latest === null) {
        // The server looks at each queue once a second, or less often if there are many. It keeps only the lengths
        // of those that change.
        const lengths = row.lengths.length ? row.lengths : Array(LEAST).fill(row.messages);
        const now = Date.now() / 1000;
        lengths.forEach((length, at) => note(now - (lengths.length - at), length, null, null));
      }
      latest = row;
      push(row);
    },
    close() {
      clearInterval(timer);
      observer.disconnect();
      window.removeEventListener("theme", draw);
      plot?.destroy();
    },
  };
}

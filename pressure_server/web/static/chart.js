// The live chart of one queue: its messages, and the rates of puts and gets.

import { h } from "./dom.js";
import { colour } from "./theme.js";
import uPlot from "./vendor/uPlot.js";

const HEIGHT = 220;
const MOST = 600; // seconds that are kept
const LEAST = 60; // seconds that are shown at least

/** Return a chart: `element`, `add(row)` for the figures of now, and `close`. */
export function chart() {
  const element = h("div", { class: "chart", role: "img", "aria-label": "Messages over time" });
  const data = [[], [], [], []];
  let plot = null;

  function draw() {
    plot?.destroy();
    const line = (label, name, scale, width) => ({ label, scale, width, stroke: colour(name), points: { show: false } });
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    plot = new uPlot(
      {
        width: Math.max(element.clientWidth, 280),
        height: HEIGHT,
        legend: { live: true },
        scales: { x: { range: (_, first, last) => [Math.min(first, last - LEAST), last] }, messages: { range: (_, __, most) => [0, Math.max(most * 1.1, 1)] }, rate: { range: (_, __, most) => [0, Math.max(most * 1.1, 1)] } },
        series: [
          {},
          line("messages", "--link", "messages", 2),
          line("put/s", "--good", "rate", 1),
          line("taken/s", "--warning", "rate", 1),
        ],
        axes: [axis, { ...axis, scale: "messages", size: 70 }, { ...axis, scale: "rate", side: 1, grid: { show: false }, size: 60 }],
      },
      data,
      element,
    );
  }

  const observer = new ResizeObserver(() => plot?.setSize({ width: Math.max(element.clientWidth, 280), height: HEIGHT }));
  observer.observe(element);
  window.addEventListener("theme", draw);
  return {
    element,
    add(row) {
      const now = Date.now() / 1000;
      if (!data[0].length) {
        // The server looks at each queue once a second, or less often if there are many.
        row.lengths.forEach((length, at) => {
          data[0].push(now - (row.lengths.length - at));
          data[1].push(length);
          data[2].push(null);
          data[3].push(null);
        });
      }
      [now, row.messages, row.put, row.taken].forEach((value, at) => data[at].push(value));
      while (data[0][0] < now - MOST) data.forEach((values) => values.shift());
      const highest = Math.max(...data[1]);
      element.setAttribute("aria-label", `Messages over time: now ${row.messages}, highest ${highest}`);
      if (plot === null) draw();
      else plot.setData(data);
    },
    close() {
      observer.disconnect();
      window.removeEventListener("theme", draw);
      plot?.destroy();
    },
  };
}

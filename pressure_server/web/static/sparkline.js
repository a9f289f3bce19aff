// Sparklines: the length of a queue in the last looks, as a small line.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 96;
const HEIGHT = 20;

/** Return an image of the numbers. A queue that has not changed is a flat line. */
export function sparkline(lengths, now) {
  const values = lengths.length > 1 ? lengths : [now, now];
  const highest = Math.max(...values, 1);
  const points = values.map((value, at) => {
    const x = (at / (values.length - 1)) * WIDTH;
    return `${x.toFixed(1)},${(HEIGHT - 1 - (value / highest) * (HEIGHT - 2)).toFixed(1)}`;
  });
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("class", "sparkline");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `from ${values[0]} to ${values.at(-1)}, highest ${Math.max(...values)}`);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return svg;
}

// What colours, sizes and lines of the network mean.
import { el, svg } from "./dom.js";
import { short } from "./format.js";
import { ACCURACY_RAMP } from "./looks.js";

const WIDTH = 90;

function ramp(id) {
  const last = ACCURACY_RAMP.length - 1;
  const stops = ACCURACY_RAMP.map((color, n) => svg("stop", { offset: n / last, "stop-color": color }));
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} 9`, width: WIDTH, height: 9, "aria-hidden": "true" },
    svg("defs", {}, svg("linearGradient", { id }, ...stops)),
    svg("rect", { width: WIDTH, height: 9, rx: 2, fill: `url(#${id})` }),
  );
}

function item(picture, text) {
  return el("span", { class: "key-item" }, picture, el("span", { text }));
}

function circles() {
  const circle = (cx, r) => svg("circle", { cx, cy: 8, r, class: "key-device" });
  return svg("svg", { viewBox: "0 0 34 16", width: 34, height: 16, "aria-hidden": "true" }, circle(7, 3.5), circle(24, 7));
}

function wire(name) {
  return svg("svg", { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true" }, svg("path", { d: "M1 4H23", class: name }));
}

function ring() {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    svg("circle", { cx: 8, cy: 8, r: 4, class: "key-device" }),
    svg("circle", { cx: 8, cy: 8, r: 6.5, class: "key-fired" }),
  );
}

let count = 0;

/** Returns the legend; `value` names what colours mean, `range` is what they span (or null) and `words` says a value. */
export function networkLegend({ value, words, range, bandwidths, isMoving }) {
  const known = bandwidths.filter((one) => one !== null && one !== undefined);
  const parts = [];
  if (range) {
    const colors = item(ramp(`ramp-${count++}`), "");
    colors.prepend(el("span", { text: `${value} ${words(range[0])}` }));
    colors.lastChild.textContent = words(range[1]);
    parts.push(colors);
  }
  if (known.length) parts.push(item(circles(), `bandwidth ${short(Math.min(...known))} to ${short(Math.max(...known))}`));
  if (isMoving) parts.push(item(wire("key-talk"), "link in use"), item(ring(), "device fires"));
  parts.push(item(wire("key-wire"), "link"));
  return parts;
}

// The look of strategies, which is the same in all figures, and of accuracies.
import { theme } from "./canvas.js";
import { svg } from "./dom.js";

const DASHES = { "-": [], "--": [7, 3], "-.": [8, 2.5, 2, 2.5], ":": [2, 2.5] };

/** Returns looks {color, dash, ...} of strategies by name, given {name, color, dash}, with the dash in words of Matplotlib. */
export function looksOf(strategies) {
  return new Map(strategies.map(({ name, dash, ...look }) => [name, { ...look, dash: DASHES[dash] }]));
}

/** The colour as it can be seen on the page. */
export function visible(color) {
  return theme.isDark ? lightened(color) : color;
}

function lightened(color) {
  let [red, green, blue] = rgb(color);
  for (let n = 0; n < 12 && 0.2126 * red + 0.7152 * green + 0.0722 * blue < 125; n++) {
    [red, green, blue] = [red, green, blue].map((part) => Math.round(part + 0.12 * (255 - part)));
  }
  return `rgb(${red}, ${green}, ${blue})`;
}

/** The parts of a colour #rrggbb or #rgb. */
export function rgb(color) {
  const long = color.length === 4 ? color.replace(/[0-9a-f]/gi, (digit) => digit + digit) : color;
  return [1, 3, 5].map((at) => parseInt(long.slice(at, at + 2), 16));
}

/** The line of a strategy, for legends and lists. */
export function swatch(look) {
  const vars = { "--on-light": look.color, "--on-dark": lightened(look.color) };
  const line = svg("path", { d: "M1 4H25", vars, "stroke-width": 2.4, "stroke-dasharray": look.dash.join(" ") || "none" });
  return svg("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true", class: "swatch" }, line);
}

// Viridis without its darkest end, which would vanish on a dark page.
export const ACCURACY_RAMP = ["#472c7a", "#3b518b", "#2c718e", "#21908d", "#27ad81", "#5cc863", "#aadc32", "#fde725"];
const RAMP = ACCURACY_RAMP.map(rgb);
const SHADES = Array.from({ length: 101 }, (_, n) => {
  const at = (n / 100) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const mixed = RAMP[low].map((part, c) => Math.round(part + (at - low) * (RAMP[low + 1][c] - part)));
  return `rgb(${mixed.join(",")})`;
});

/** The colour of a share between 0 and 1. */
export function shade(share) {
  return SHADES[Math.round(100 * Math.min(1, Math.max(0, share)))];
}

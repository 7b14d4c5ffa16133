// The network on a canvas: devices by value and bandwidth, links that light up when they are used, and fade.
import { Drawing, drawPath, theme } from "./canvas.js";
import { el } from "./dom.js";
import { digits, isKnown, labelWords, plural, short } from "./format.js";
import { places } from "./layout.js";
import { ACCURACY_RAMP, shade } from "./looks.js";

const EDGE = 26;
const REACH = 14; // pixels around a device that still mean it
export const FADE = 7; // places over which a used link fades while the network moves

export class NetworkDrawing extends Drawing {
  /** `describe(device)` returns the lines of the label; `choose(device)` is called with what the reader chooses. */
  constructor({ describe, choose, label }) {
    super("network", label, true);
    Object.assign(this, { describe, choose });
    this.devices = [];
    this.links = [];
    this.state = { values: null, range: [0, 1], fired: [], trail: [] };
    this.chosen = null;
    this.hovered = null;
    this.canvas.addEventListener("click", (event) => {
      const device = this.near(...this.pointer(event));
      if (device !== null) this.pick(device);
    });
  }

  /** Sets the devices {device, bandwidth}. The layout is computed from the links, once. */
  setDevices(devices, links) {
    this.devices = devices;
    this.layout = this.x = null;
    this.layoutLinks = links;
    this.leave();
    this.setLinks(links);
    this.place();
  }

  setLinks(links) {
    if (links === this.links) return;
    this.links = links;
    this.wires = null;
    this.draw();
  }

  /** Sets values of the devices, their range, who fired, and the trail: used links {links, strength}. */
  setState(state) {
    this.state = state;
    this.draw();
    if (this.hovered !== null) this.showLabel(this.hovered);
  }

  setChosen(device) {
    this.chosen = device;
    this.announce(device ?? 0, this.devices.length - 1, device === null ? ["no device"] : this.describe(device));
    this.draw();
  }

  // Places.

  forget() {
    this.place();
  }

  place() {
    const { width, height } = this;
    if (!width || !this.devices.length) return;
    if (!this.layout) return this.findPlaces();
    const { x, y } = this.layout;
    this.x = x.map((value) => EDGE + value * (width - 2 * EDGE));
    this.y = y.map((value) => EDGE + value * (height - 2 * EDGE));
    const largest = Math.max(...this.devices.map((one) => one.bandwidth ?? 0));
    const size = Math.min(19, Math.max(2.6, 0.3 * Math.sqrt((width * height) / this.devices.length)));
    this.radii = this.devices.map(({ bandwidth }) => (largest > 0 && bandwidth !== null ? Math.max(0.45, Math.sqrt(bandwidth / largest)) : 0.75) * size);
    this.wires = null;
    this.draw();
  }

  /** Large networks take a moment: the rest of the page is shown before them. */
  findPlaces() {
    clearTimeout(this.finding);
    this.finding = setTimeout(() => {
      const { width, height } = this;
      this.layout = places(this.devices.length, this.layoutLinks, width / height);
      this.place();
    });
  }

  // Drawing.

  paint(context) {
    if (!this.x) return;
    this.wires ??= this.paintWires();
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.wires, 0, 0);
    context.restore();
    if (this.chosen !== null) {
      const own = this.links.filter(([i, j]) => i === this.chosen || j === this.chosen);
      this.paintLinks(context, own, { strokeStyle: theme.soft, lineWidth: 1.2, globalAlpha: 0.8 });
    }
    for (const { links, strength } of this.state.trail) {
      const lineWidth = 0.8 + 1.8 * strength * Math.min(1, 12 / Math.sqrt(links.length + 1));
      this.paintLinks(context, links, { strokeStyle: theme.talk, lineCap: "round", globalAlpha: strength, lineWidth });
    }
    this.paintDevices(context);
  }

  paintLinks(context, links, style) {
    drawPath(context, style, () => {
      for (const [i, j] of links) {
        if (i >= this.x.length || j >= this.x.length) continue;
        context.moveTo(this.x[i], this.y[i]);
        context.lineTo(this.x[j], this.y[j]);
      }
    });
  }

  /** Physical links are costly to draw, and kept on a canvas of their own that is not shown. */
  paintWires() {
    const layer = el("canvas", { width: this.canvas.width, height: this.canvas.height });
    const context = layer.getContext("2d");
    context.scale(this.scale, this.scale);
    const globalAlpha = Math.max(0.05, Math.min(1, 60 / Math.sqrt(this.links.length + 1) / 2));
    this.paintLinks(context, this.links, { strokeStyle: theme.wire, globalAlpha, lineWidth: this.links.length > 400 ? 0.6 : 1.1 });
    return layer;
  }

  paintDevices(context) {
    const { values, range, fired } = this.state;
    const [low, high] = range;
    const isFired = new Set(fired);
    const isRoomy = this.devices.length <= 60;
    Object.assign(context, { textAlign: "center", textBaseline: "middle", lineCap: "round" });
    for (let n = 0; n < this.devices.length; n++) {
      const value = values?.[n];
      const share = isKnown(value) ? (high > low ? (value - low) / (high - low) : 1) : null;
      const [x, y, radius] = [this.x[n], this.y[n], this.radii[n]];
      const circle = (wider, style) => drawPath(context, style, () => context.arc(x, y, radius + wider, 0, 7));
      circle(0, { fillStyle: share === null ? theme.pale : shade(share), strokeStyle: share === null ? theme.soft : theme.page, lineWidth: isRoomy ? 1.5 : 0.75 });
      if (isFired.has(n)) circle(isRoomy ? 3.2 : 1.8, { strokeStyle: theme.talk, lineWidth: isRoomy ? 2.6 : 1.5 });
      if (n === this.chosen) circle(isRoomy ? 6.4 : 4, { strokeStyle: theme.ink, lineWidth: 1.6 });
      if (isRoomy && radius >= 8) {
        context.fillStyle = share === null ? theme.ink : share > 0.55 ? "#10151a" : "#ffffff";
        context.font = `600 ${radius >= 12 ? 11 : 9}px ${theme.font}`;
        context.fillText(String(this.devices[n].device), x, y + 0.5);
      }
    }
  }

  // Pointing.

  near(x, y) {
    let [best, distance] = [null, Infinity];
    for (let n = 0; n < (this.x?.length ?? 0); n++) {
      const away = Math.hypot(this.x[n] - x, this.y[n] - y) - this.radii[n];
      if (away < distance) [best, distance] = [n, away];
    }
    return distance <= REACH ? best : null;
  }

  point(x, y) {
    this.hover(this.near(x, y));
  }

  leave() {
    this.hover(null);
  }

  step(by) {
    if (!this.devices.length) return;
    const device = Math.min(this.devices.length - 1, Math.max(0, (this.chosen ?? 0) + by));
    if (by) this.pick(device);
    this.hover(device);
  }

  pick(device) {
    this.setChosen(device);
    this.choose(device);
  }

  hover(device) {
    this.canvas.classList.toggle("is-over", device !== null);
    this.hovered = device;
    this.readout.hidden = true;
    if (device !== null) this.showLabel(device);
  }

  showLabel(device) {
    if (!this.x) return;
    const [first, ...rest] = this.describe(device);
    const [x, y, gap] = [this.x[device], this.y[device], this.radii[device] + 10];
    this.readBeside(x, gap, y - 12 * (rest.length + 1), el("b", { text: first }), ...rest.map((text) => el("div", { text })));
  }
}

/** Returns what is known of device `n` in words, with `more` after its name. */
export function deviceWords({ device, bandwidth, samples, labels }, n, links, more = []) {
  const words = [`Device ${device}`, ...more];
  if (bandwidth !== null) words.push(`bandwidth ${digits(bandwidth, 5)}`);
  words.push(plural(links.filter((link) => link.includes(n)).length, "neighbour"));
  if (samples !== null) words.push(plural(samples, "sample"));
  if (labels?.length) words.push(`labels ${labelWords(labels)}`);
  return words;
}

/** Returns what colours, sizes and lines of the network mean; `value` names what colours mean, `range` is what they span (or null) and `words` says a value. */
export function networkKey({ value, words, range, bandwidths, isMoving }) {
  const item = (sign, text, before = "") =>
    el("span", { class: "key-item" }, before, el("i", { class: `key-${sign}`, "aria-hidden": "true", vars: { "--ramp": ACCURACY_RAMP.join() } }), text);
  const known = bandwidths.filter(isKnown);
  return [
    range && item("ramp", words(range[1]), `${value} ${words(range[0])}`),
    known.length && item("size", `bandwidth ${short(Math.min(...known))} to ${short(Math.max(...known))}`),
    isMoving && item("talk", "link in use"),
    isMoving && item("fired", "device fires"),
    item("wire", "link"),
  ].filter(Boolean);
}

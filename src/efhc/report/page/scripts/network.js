// The network on a canvas: devices by value and bandwidth, links that light up when they are used, and fade.
import { Drawing, theme } from "./canvas.js";
import { el, keySteps } from "./dom.js";
import { short } from "./format.js";
import { places } from "./layout.js";
import { ACCURACY_RAMP, shade } from "./looks.js";

const EDGE = 26;
const REACH = 14; // pixels around a device that still mean it
export const FADE = 7; // places over which a used link fades while the network moves

export class NetworkDrawing extends Drawing {
  /** `describe(device)` returns the lines of the label; `choose(device)` hears what the reader chooses. */
  constructor({ describe, choose, label }) {
    super("network", label, true);
    Object.assign(this, { describe, choose });
    this.devices = [];
    this.links = [];
    this.state = { values: null, range: [0, 1], fired: [], trail: [] };
    this.chosen = null;
    this.hovered = null;
    this.listen();
  }

  /** Sets the devices {device, bandwidth}. The layout is computed from the links, once. */
  setDevices(devices, links) {
    this.devices = devices;
    this.layout = this.x = null;
    this.layoutLinks = links;
    this.canvas.setAttribute("aria-valuemax", Math.max(0, devices.length - 1));
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
    const { canvas } = this;
    canvas.setAttribute("aria-valuenow", device ?? 0);
    canvas.setAttribute("aria-valuetext", device === null ? "no device" : this.describe(device).join(", "));
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
    if (this.chosen !== null) this.paintOwnLinks(context);
    context.strokeStyle = theme.talk;
    context.lineCap = "round";
    for (const { links, strength } of this.state.trail) {
      context.globalAlpha = strength;
      context.lineWidth = 0.8 + 1.8 * strength * Math.min(1, 12 / Math.sqrt(links.length + 1));
      this.stroke(context, links);
    }
    context.globalAlpha = 1;
    this.paintDevices(context);
  }

  stroke(context, links) {
    context.beginPath();
    for (const [i, j] of links) {
      if (i >= this.x.length || j >= this.x.length) continue;
      context.moveTo(this.x[i], this.y[i]);
      context.lineTo(this.x[j], this.y[j]);
    }
    context.stroke();
  }

  /** Physical links are costly to draw, and kept on a canvas of their own that is not shown. */
  paintWires() {
    const layer = el("canvas", { width: this.canvas.width, height: this.canvas.height });
    const context = layer.getContext("2d");
    context.scale(this.scale, this.scale);
    context.strokeStyle = theme.wire;
    context.globalAlpha = Math.max(0.05, Math.min(1, 60 / Math.sqrt(this.links.length + 1) / 2));
    context.lineWidth = this.links.length > 400 ? 0.6 : 1.1;
    this.stroke(context, this.links);
    return layer;
  }

  paintOwnLinks(context) {
    context.strokeStyle = theme.soft;
    context.lineWidth = 1.2;
    context.globalAlpha = 0.8;
    this.stroke(context, this.links.filter(([i, j]) => i === this.chosen || j === this.chosen));
    context.globalAlpha = 1;
  }

  paintDevices(context) {
    const { values, range, fired } = this.state;
    const [low, high] = range;
    const isFired = new Set(fired);
    const isRoomy = this.devices.length <= 60;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let n = 0; n < this.devices.length; n++) {
      const value = values?.[n];
      const isKnown = value !== null && value !== undefined;
      const share = isKnown ? (high > low ? (value - low) / (high - low) : 1) : null;
      const [x, y, radius] = [this.x[n], this.y[n], this.radii[n]];
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fillStyle = share === null ? theme.pale : shade(share);
      context.fill();
      context.lineWidth = isRoomy ? 1.5 : 0.75;
      context.strokeStyle = share === null ? theme.soft : theme.page;
      context.stroke();
      if (isFired.has(n)) this.ring(context, x, y, radius + (isRoomy ? 3.2 : 1.8), theme.talk, isRoomy ? 2.6 : 1.5);
      if (n === this.chosen) this.ring(context, x, y, radius + (isRoomy ? 6.4 : 4), theme.ink, 1.6);
      if (isRoomy && radius >= 8) {
        context.fillStyle = share === null ? theme.ink : share > 0.55 ? "#10151a" : "#ffffff";
        context.font = `600 ${radius >= 12 ? 11 : 9}px ${theme.font}`;
        context.fillText(String(this.devices[n].device), x, y + 0.5);
      }
    }
  }

  ring(context, x, y, radius, color, width) {
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.strokeStyle = color;
    context.lineWidth = width;
    context.stroke();
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

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.hover(this.near(...this.pointer(event))));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("blur", () => this.hover(null));
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && this.devices.length && this.hover(this.chosen ?? 0));
    canvas.addEventListener("click", (event) => {
      const device = this.near(...this.pointer(event));
      if (device !== null) this.pick(device);
    });
    canvas.addEventListener("keydown", (event) => {
      const steps = keySteps(10);
      if (!(event.key in steps) || !this.devices.length) return;
      event.preventDefault();
      this.pick(Math.min(this.devices.length - 1, Math.max(0, (this.chosen ?? 0) + steps[event.key])));
      this.hover(this.chosen);
    });
  }

  pick(device) {
    this.setChosen(device);
    this.choose(device);
  }

  hover(device) {
    this.canvas.classList.toggle("is-over", device !== null);
    this.hovered = device;
    if (device === null) this.readout.hidden = true;
    else this.showLabel(device);
  }

  showLabel(device) {
    if (!this.x) return;
    const [first, ...rest] = this.describe(device);
    const [x, y, gap] = [this.x[device], this.y[device], this.radii[device] + 10];
    this.readBeside(x, gap, y - 12 * (rest.length + 1), el("b", { text: first }), ...rest.map((text) => el("div", { text })));
  }
}

/** Returns what colours, sizes and lines of the network mean; `value` names what colours mean, `range` is what they span (or null) and `words` says a value. */
export function networkKey({ value, words, range, bandwidths, isMoving }) {
  const item = (sign, text, before = "") =>
    el("span", { class: "key-item" }, before, el("i", { class: `key-${sign}`, "aria-hidden": "true", vars: { "--ramp": ACCURACY_RAMP.join() } }), text);
  const known = bandwidths.filter((one) => one !== null && one !== undefined);
  return [
    range && item("ramp", words(range[1]), `${value} ${words(range[0])}`),
    known.length && item("size", `bandwidth ${short(Math.min(...known))} to ${short(Math.max(...known))}`),
    isMoving && item("talk", "link in use"),
    isMoving && item("fired", "device fires"),
    item("wire", "link"),
  ].filter(Boolean);
}

// A drawing on a canvas that is as sharp as the screen, knows its size, and is painted at most once per frame.
import { el, keySteps } from "./dom.js";

/** Colours of the page by name, read from the style sheet when the theme changes. */
export const theme = { isDark: false };

const NAMES = ["ink", "soft", "line", "pale", "page", "talk", "link", "wire"];

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.isDark = document.documentElement.dataset.theme === "dark";
  theme.font = getComputedStyle(document.body).fontFamily;
}

const drawings = [];

/** Paints everything again at once, in the colours and sizes that the page has now. */
export function repaint() {
  readTheme();
  for (const drawing of drawings) drawing.fit(true);
}

/** Fills or strokes a path, whichever has a style. The style and the `dash` hold for this path only. */
export function drawPath(context, { dash, ...style }, path) {
  context.save();
  Object.assign(context, style);
  if (dash) context.setLineDash(dash);
  context.beginPath();
  path();
  if (style.fillStyle) context.fill();
  if (style.strokeStyle) context.stroke();
  context.restore();
}

export function drawLine(context, style, fromX, fromY, toX, toY) {
  drawPath(context, style, () => {
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
  });
}

/** Writes the ticks of a horizontal axis; those at its right end do not reach beyond it. */
export function writeTicks(context, axis, words, right, top) {
  context.textBaseline = "top";
  for (const tick of axis.ticks) {
    const at = axis.at(tick);
    context.textAlign = at > right - 20 ? "right" : "center";
    context.fillText(words(tick), at, top);
  }
}

/**
 * A canvas, and a readout beside what the reader points at. A subclass has `paint(context, width, height)` and
 * `point(x, y, event)`, in CSS pixels, and `forget()`, which drops what depends on colours and sizes. A slider, through
 * which arrow keys move, has `step(by)`, too.
 */
export class Drawing {
  constructor(kind, label, isSlider) {
    const role = isSlider ? { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0 } : { role: "img" };
    const canvas = (this.canvas = el("canvas", { class: kind, "aria-label": label, ...role }));
    this.readout = el("div", { class: "readout", hidden: true });
    this.element = el("div", { class: "drawing" }, canvas, this.readout);
    this.width = this.height = 0;
    this.isWaiting = false;
    drawings.push(this);
    new ResizeObserver(() => this.fit()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.point(...this.pointer(event), event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("blur", () => this.leave());
    if (!isSlider) return;
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && this.step(0));
    canvas.addEventListener("keydown", (event) => {
      const steps = keySteps(10);
      if (!(event.key in steps)) return;
      event.preventDefault();
      this.step(steps[event.key]);
    });
  }

  /** Returns the drawing in a figure with a caption. */
  figure(...caption) {
    return el("figure", {}, el("figcaption", {}, ...caption), this.element);
  }

  fit(always = false) {
    const { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth || !clientHeight) return;
    const scale = (this.scale = window.devicePixelRatio || 1);
    const isSame = clientWidth === this.width && clientHeight === this.height && this.canvas.width === Math.round(clientWidth * scale);
    if (isSame && !always) return;
    [this.width, this.height] = [clientWidth, clientHeight];
    this.canvas.width = Math.round(clientWidth * scale);
    this.canvas.height = Math.round(clientHeight * scale);
    this.forget();
    this.drawNow();
  }

  draw() {
    if (this.isWaiting || !this.width) return;
    this.isWaiting = true;
    requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    this.isWaiting = false;
    const context = this.canvas.getContext("2d");
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.paint(context, this.width, this.height);
  }

  /** Shows the readout beside `x` at a distance of `gap`, its top at `top` if there is room for it. */
  readBeside(x, gap, top, ...children) {
    this.readout.replaceChildren(...children);
    this.readout.hidden = false;
    const { offsetWidth, offsetHeight } = this.readout;
    const left = x + gap + offsetWidth > this.width ? x - gap - offsetWidth : x + gap;
    this.readout.style.left = `${Math.max(0, left)}px`;
    this.readout.style.top = `${Math.max(0, Math.min(top, this.height - offsetHeight))}px`;
  }

  leave() {
    this.readout.hidden = true;
  }

  /** Says, for those who do not see it, which of the places 0 to `last` is shown, and what is there. */
  announce(place, last, words) {
    const values = { max: Math.max(0, last), now: place, text: words.join(", ") };
    for (const [name, value] of Object.entries(values)) this.canvas.setAttribute(`aria-value${name}`, value);
  }

  /** Where the pointer is, in CSS pixels of the canvas. */
  pointer(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

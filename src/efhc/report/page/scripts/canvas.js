// A drawing on a canvas that is as sharp as the screen, knows its size, and is painted at most once per frame.
import { el } from "./dom.js";

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

/**
 * A canvas, and a readout beside what the reader points at. A subclass has `paint(context, width, height)`, in CSS
 * pixels, and `forget()`, which drops what is kept between two paintings and depends on colours and sizes.
 */
export class Drawing {
  /** A drawing `isSlider` if arrow keys move through what it shows. */
  constructor(kind, label, isSlider) {
    const role = isSlider ? { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0 } : { role: "img" };
    this.canvas = el("canvas", { class: kind, "aria-label": label, ...role });
    this.readout = el("div", { class: "readout", hidden: true });
    this.element = el("div", { class: "drawing" }, this.canvas, this.readout);
    this.width = this.height = 0;
    this.isWaiting = false;
    drawings.push(this);
    new ResizeObserver(() => this.fit()).observe(this.canvas);
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
    this.readout.style.top = `${Math.max(0, Math.min(top ?? 0, this.height - offsetHeight))}px`;
  }

  /** Where the pointer is, in CSS pixels of the canvas. */
  pointer(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

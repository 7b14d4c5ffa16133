// A canvas that is as sharp as the screen, knows its size, and draws at most once per frame.
import { el } from "./dom.js";

/** Colours of the page by name, read from the style sheet when the theme changes. */
export const theme = { isDark: false };

const NAMES = ["ink", "soft", "line", "pale", "page", "talk", "link", "wire"];

export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.isDark = document.documentElement.dataset.theme === "dark";
  theme.font = getComputedStyle(document.body).fontFamily;
}

export class Canvas {
  /** `paint(context, width, height)` draws it all, in CSS pixels. */
  constructor(paint, attributes = {}) {
    this.element = el("canvas", attributes);
    this.paint = paint;
    this.width = this.height = 0;
    this.waiting = false;
    this.sizes = new ResizeObserver(() => this.fit());
    this.sizes.observe(this.element);
  }

  fit() {
    const { clientWidth, clientHeight } = this.element;
    if (!clientWidth || !clientHeight) return;
    const scale = this.scale = window.devicePixelRatio || 1;
    if (clientWidth === this.width && clientHeight === this.height && this.element.width === Math.round(clientWidth * scale)) return;
    [this.width, this.height] = [clientWidth, clientHeight];
    this.element.width = Math.round(clientWidth * scale);
    this.element.height = Math.round(clientHeight * scale);
    this.resized?.();
    this.drawNow();
  }

  draw() {
    if (this.waiting || !this.width) return;
    this.waiting = true;
    requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    this.waiting = false;
    const context = this.element.getContext("2d");
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.paint(context, this.width, this.height);
  }

  /** A canvas of the same size and sharpness that is not shown, to keep what is costly to draw. */
  layer() {
    const layer = el("canvas");
    [layer.width, layer.height] = [this.element.width, this.element.height];
    const context = layer.getContext("2d");
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    return { layer, context };
  }
}

/** Where the pointer is, in CSS pixels of the element. */
export function pointer(event, element) {
  const box = element.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

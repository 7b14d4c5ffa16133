// Lines over an axis on a canvas: with a readout under the pointer or by arrow keys, and a range chosen by dragging.
import { Canvas, pointer, theme } from "./canvas.js";
import { el, keySteps, placeBeside, say } from "./dom.js";
import { linear, logarithmic } from "./axes.js";
import { visible } from "./looks.js";
import { lastUpTo } from "./store.js";

const MARGIN = { left: 54, right: 12, top: 10, bottom: 34 };
const MOST_ROWS = 14;
const STRETCH = 100; // at this ratio of values, a logarithmic axis shows more

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

export class Chart {
  /** `zoom` is shared by charts of one axis: {range: null or [low, high], changed()}. */
  constructor(title, zoom = null) {
    this.zoom = zoom;
    this.at = null; // the value of x that is read out
    this.content = { lines: [], bands: [], marks: [], x: { label: "", words: String }, y: { label: "", words: String } };
    this.canvas = new Canvas((context, width, height) => this.paint(context, width, height), {
      class: "chart",
      tabindex: 0,
      role: "slider",
      "aria-label": title,
      "aria-valuemin": 0,
      "aria-valuemax": 0,
      "aria-valuenow": 0,
    });
    this.readout = el("div", { class: "readout", hidden: true });
    this.empty = el("p", { class: "empty", hidden: true });
    this.element = el("div", { class: "drawing" }, this.canvas.element, this.readout, this.empty);
    this.listen();
  }

  /**
   * Shows lines {name, color, dash, width, alpha, x, y, isRead}, bands {color, x, low, high}, marks (values of x at the
   * bottom) and a cursor (a value of x), over axes {label, words}. `y.mayStretch` allows a logarithmic axis,
   * and the axis of x goes at least to `x.upTo`.
   */
  set(content, empty = "Nothing was evaluated yet.") {
    this.content = { bands: [], marks: [], cursor: null, ...content };
    const isEmpty = !content.lines.some((line) => line.y.some((value, n) => isKnown(value) && isKnown(line.x[n])));
    this.empty.hidden = !isEmpty;
    say(this.empty, empty);
    this.scales = null;
    this.canvas.draw();
    this.announce();
    if (!this.readout.hidden) this.showReadout();
  }

  name(title) {
    this.canvas.element.setAttribute("aria-label", title);
  }

  setCursor(cursor) {
    if (this.content.cursor === cursor) return;
    this.content.cursor = cursor;
    this.canvas.draw();
  }

  redraw() {
    this.scales = null;
    this.canvas.draw();
  }

  // Axes.

  measure(width, height) {
    const { lines, bands, x, y } = this.content;
    let [xlow, xhigh, ylow, yhigh] = [Infinity, -Infinity, Infinity, -Infinity];
    const range = this.zoom?.range ?? null;
    const inRange = (value) => !range || (value >= range[0] && value <= range[1]);
    let lowest = Infinity; // of the values above zero, which a logarithmic axis can show
    const see = (xs, ys) => {
      for (let n = 0; n < xs.length; n++) {
        if (!isKnown(ys[n]) || !isKnown(xs[n]) || !inRange(xs[n])) continue;
        if (xs[n] < xlow) xlow = xs[n];
        if (xs[n] > xhigh) xhigh = xs[n];
        if (ys[n] < ylow) ylow = ys[n];
        if (ys[n] > yhigh) yhigh = ys[n];
        if (ys[n] > 0 && ys[n] < lowest) lowest = ys[n];
      }
    };
    for (const line of lines) see(line.x, line.y);
    for (const band of bands) see(band.x, band.low), see(band.x, band.high);
    if (isKnown(x.upTo)) xhigh = Math.max(xhigh, x.upTo);
    if (range) [xlow, xhigh] = range;
    if (!Number.isFinite(xlow)) [xlow, xhigh] = [0, 1];
    if (!Number.isFinite(ylow)) [ylow, yhigh] = [0, 1];
    const isStretched = Boolean(y.mayStretch) && ylow >= 0 && yhigh / lowest >= STRETCH;
    const pad = 0.05 * (yhigh - ylow || Math.abs(yhigh) || 1);
    const bottom = height - MARGIN.bottom;
    const rows = Math.max(2, Math.floor(height / 48));
    const vertical = isStretched
      ? logarithmic(lowest / 1.15, yhigh * 1.15, bottom, MARGIN.top, rows)
      : linear(y.fromZero ? Math.min(0, ylow) : ylow - pad, yhigh + pad, bottom, MARGIN.top, rows);
    const horizontal = linear(xlow, xhigh, MARGIN.left, width - MARGIN.right, Math.max(2, Math.floor(width / 90)));
    return { x: horizontal, y: vertical, isStretched };
  }

  // Drawing.

  paint(context, width, height) {
    this.scales ??= this.measure(width, height);
    const { lines, bands, marks, cursor } = this.content;
    this.paintAxes(context, width, height);
    if (!lines.length) return;
    context.save();
    context.beginPath();
    context.rect(MARGIN.left - 2, MARGIN.top - 6, width - MARGIN.left - MARGIN.right + 4, height - MARGIN.top - MARGIN.bottom + 8);
    context.clip();
    for (const band of bands) this.paintBand(context, band);
    for (const line of lines) this.paintLine(context, line, width);
    this.paintMarks(context, marks, height);
    if (isKnown(cursor)) this.paintUpright(context, cursor, theme.talk, height, []);
    if (this.at !== null) this.paintUpright(context, this.at, theme.soft, height, [3, 3]);
    if (this.drag) this.paintDrag(context, height);
    context.restore();
  }

  paintAxes(context, width, height) {
    const { x, y } = this.scales;
    const bottom = height - MARGIN.bottom;
    context.font = `11px ${theme.font}`;
    context.lineWidth = 1;
    context.strokeStyle = theme.line;
    context.fillStyle = theme.soft;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.beginPath();
    for (const tick of y.ticks) {
      const at = Math.round(y.at(tick)) + 0.5;
      context.moveTo(MARGIN.left, at);
      context.lineTo(width - MARGIN.right, at);
      context.fillText(this.content.y.words(tick), MARGIN.left - 7, at);
    }
    context.stroke();
    context.textBaseline = "top";
    for (const tick of x.ticks) {
      const at = x.at(tick);
      context.textAlign = at > width - MARGIN.right - 20 ? "right" : "center";
      context.fillText(this.content.x.words(tick), at, bottom + 6);
      context.fillRect(Math.round(at), bottom, 1, 4);
    }
    context.strokeStyle = theme.soft;
    context.beginPath();
    context.moveTo(MARGIN.left, bottom + 0.5);
    context.lineTo(width - MARGIN.right, bottom + 0.5);
    context.stroke();
    context.textAlign = "right";
    context.fillText(this.content.x.label, width - MARGIN.right, bottom + 20);
    context.textAlign = "left";
    context.fillText([this.content.y.label, this.scales.isStretched ? "logarithmic" : ""].filter(Boolean).join(", "), MARGIN.left, bottom + 20);
  }

  paintBand(context, { color, x, low, high }) {
    const { x: across, y: up } = this.scales;
    context.beginPath();
    for (let n = 0; n < x.length; n++) context.lineTo(across.at(x[n]), up.at(high[n]));
    for (let n = x.length - 1; n >= 0; n--) context.lineTo(across.at(x[n]), up.at(low[n]));
    context.globalAlpha = theme.isDark ? 0.22 : 0.15;
    context.fillStyle = visible(color, theme.isDark);
    context.fill();
    context.globalAlpha = 1;
  }

  paintLine(context, { color, dash, width: thick, alpha = 1, x, y }, width) {
    const { x: across, y: up } = this.scales;
    context.globalAlpha = alpha;
    context.strokeStyle = context.fillStyle = visible(color, theme.isDark);
    context.lineWidth = thick;
    context.lineJoin = "round";
    context.setLineDash(dash);
    const path = new Path2D();
    if (x.length > 3 * width) thinPath(path, x, y, across.at, up.at);
    else fullPath(path, x, y, across.at, up.at);
    context.stroke(path);
    context.setLineDash([]);
    const last = y.length - 1;
    if (last === 0 && isKnown(y[0])) {
      context.beginPath();
      context.arc(across.at(x[0]), up.at(y[0]), thick + 1.2, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  paintMarks(context, marks, height) {
    if (!marks.length) return;
    const { x } = this.scales;
    context.fillStyle = theme.talk;
    let before = -Infinity;
    for (const mark of marks) {
      const at = Math.round(x.at(mark));
      if (at > before) context.fillRect(at, height - MARGIN.bottom - 7, 1.4, 7);
      before = at;
    }
  }

  paintUpright(context, value, color, height, dash) {
    const at = Math.round(this.scales.x.at(value)) + 0.5;
    context.strokeStyle = color;
    context.lineWidth = 1;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(at, MARGIN.top - 4);
    context.lineTo(at, height - MARGIN.bottom);
    context.stroke();
    context.setLineDash([]);
  }

  paintDrag(context, height) {
    const [from, to] = this.drag;
    context.fillStyle = theme.link;
    context.globalAlpha = 0.15;
    context.fillRect(Math.min(from, to), MARGIN.top, Math.abs(to - from), height - MARGIN.top - MARGIN.bottom);
    context.globalAlpha = 1;
  }

  // Reading.

  listen() {
    const { element } = this.canvas;
    element.addEventListener("pointermove", (event) => {
      const [x, y] = pointer(event, element);
      if (this.drag) {
        this.drag[1] = x;
        this.canvas.draw();
      }
      this.read(this.nearest(x), x, y);
    });
    element.addEventListener("pointerleave", () => this.stopReading());
    element.addEventListener("blur", () => this.stopReading());
    element.addEventListener("focus", () => element.matches(":focus-visible") && this.step(0));
    element.addEventListener("pointerdown", (event) => {
      if (!this.zoom || event.pointerType !== "mouse" || event.button !== 0) return;
      const [x] = pointer(event, element);
      this.drag = [x, x];
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointerup", () => {
      const ends = this.drag?.map((pixel) => this.scales.x.back(pixel)).sort((one, other) => one - other);
      const isWide = this.drag && Math.abs(this.drag[1] - this.drag[0]) > 6;
      this.drag = null;
      if (isWide) this.zoomTo(ends);
    });
    element.addEventListener("dblclick", () => this.zoom?.range && this.zoomTo(null));
    element.addEventListener("keydown", (event) => {
      const steps = keySteps(10);
      if (event.key === "Escape") {
        this.stopReading();
        if (this.zoom?.range) this.zoomTo(null);
      } else if (event.key in steps) {
        event.preventDefault();
        this.step(steps[event.key]);
      }
    });
  }

  zoomTo(range) {
    this.zoom.range = range;
    this.zoom.changed();
  }

  get readable() {
    return this.content.lines.filter((line) => line.isRead && line.x.length);
  }

  /** The places that can be read: those of the line with the most. */
  get stops() {
    const longest = this.readable.reduce((best, line) => (best && best.x.length >= line.x.length ? best : line), null);
    const range = this.zoom?.range ?? null;
    const stops = longest?.x ?? [];
    return range ? stops.filter((value) => value >= range[0] && value <= range[1]) : stops;
  }

  nearest(pixel) {
    const { stops } = this;
    if (!stops.length || !this.scales) return null;
    const value = this.scales.x.back(pixel);
    const before = Math.max(0, lastUpTo(stops, value));
    const after = Math.min(stops.length - 1, before + 1);
    return Math.abs(stops[after] - value) < Math.abs(stops[before] - value) ? stops[after] : stops[before];
  }

  step(by) {
    const { stops } = this;
    if (!stops.length || !this.scales) return;
    const now = this.at === null ? stops.length - 1 : Math.max(0, lastUpTo(stops, this.at));
    const next = Math.min(stops.length - 1, Math.max(0, this.at === null && Math.abs(by) <= 1 ? now : now + by));
    this.read(stops[next], this.scales.x.at(stops[next]), MARGIN.top);
    this.announce();
  }

  read(value, x, y) {
    if (value === null) return;
    [this.at, this.place] = [value, [x, y]];
    this.showReadout();
    this.canvas.draw();
  }

  stopReading() {
    this.at = null;
    this.drag = null;
    this.readout.hidden = true;
    this.canvas.draw();
  }

  /** What each line says at a place: its last value up to there. */
  valuesAt(value) {
    const rows = [];
    for (const line of this.readable) {
      if (value > line.x[line.x.length - 1] && line.endsThere) continue;
      const n = lastUpTo(line.x, value);
      if (n >= 0 && isKnown(line.y[n])) rows.push({ line, value: line.y[n] });
    }
    return rows.sort((one, other) => other.value - one.value);
  }

  showReadout() {
    if (this.at === null) return;
    const { x, y } = this.content;
    const rows = this.valuesAt(this.at);
    this.readout.replaceChildren(
      el("div", { class: "readout-at", text: `${x.label} ${(x.full ?? x.words)(this.at)}` }),
      ...rows.slice(0, MOST_ROWS).map(({ line, value }) =>
        el(
          "div",
          { class: "readout-row" },
          el("i", { vars: { "--color": visible(line.color, theme.isDark) } }),
          el("span", { text: line.name }),
          el("b", { text: (y.full ?? y.words)(value) }),
        ),
      ),
      ...(rows.length > MOST_ROWS ? [el("div", { class: "readout-at", text: `and ${rows.length - MOST_ROWS} more` })] : []),
    );
    this.readout.hidden = false;
    const [px, py] = this.place;
    placeBeside(this.readout, this.canvas, px, 16, py - 10);
  }

  announce() {
    const { element } = this.canvas;
    const { stops } = this;
    const last = stops.length - 1;
    const value = this.at ?? stops[last];
    element.setAttribute("aria-valuemax", Math.max(0, last));
    element.setAttribute("aria-valuenow", value === undefined ? 0 : Math.max(0, lastUpTo(stops, value)));
    const { x, y } = this.content;
    const words = value === undefined ? [] : this.valuesAt(value).slice(0, MOST_ROWS).map((row) => `${row.line.name} ${(y.full ?? y.words)(row.value)}`);
    const place = value === undefined ? "nothing yet" : `${x.label} ${(x.full ?? x.words)(value)}`;
    element.setAttribute("aria-valuetext", [place, ...words].join(", "));
  }
}

function fullPath(path, x, y, across, up) {
  let isOpen = false;
  for (let n = 0; n < x.length; n++) {
    if (!isKnown(y[n]) || !isKnown(x[n])) isOpen = false;
    else if (isOpen) path.lineTo(across(x[n]), up(y[n]));
    else path.moveTo(across(x[n]), up(y[n])), (isOpen = true);
  }
}

/** Of many points, per column of pixels: the first, the lowest, the highest and the last. It looks the same. */
function thinPath(path, x, y, across, up) {
  let [column, low, high, last, isOpen] = [null, 0, 0, 0, false];
  const flush = () => {
    if (column === null) return;
    path.lineTo(column, low);
    path.lineTo(column, high);
    path.lineTo(column, last);
  };
  for (let n = 0; n < x.length; n++) {
    if (!isKnown(y[n]) || !isKnown(x[n])) continue;
    const [px, py] = [Math.round(across(x[n])), up(y[n])];
    if (px !== column) {
      flush();
      if (!isOpen) path.moveTo(px, py);
      isOpen = true;
      [column, low, high] = [px, py, py];
    }
    low = Math.max(low, py);
    high = Math.min(high, py);
    last = py;
  }
  flush();
}

// Lines over an axis on a canvas: with a readout under the pointer or by arrow keys, a range chosen by dragging, and a picture to save.
import { Drawing, drawLine, drawPath, theme, writeTicks } from "./canvas.js";
import { download, el, setText } from "./dom.js";
import { lastUpTo, linear, logarithmic } from "./axes.js";
import { fileName, isKnown } from "./format.js";
import { visible } from "./looks.js";

const MARGIN = { left: 54, right: 12, top: 10, bottom: 34 };
const MOST_ROWS = 14;
const STRETCH = 100; // at this ratio of values, a logarithmic axis shows more
const PICTURE_SCALE = 3;

export class Chart extends Drawing {
  /** Charts that show the same range share one `zoom`: {range: null or [low, high], changed()}. */
  constructor(title, zoom = null) {
    super("chart", title, true);
    this.zoom = zoom ?? { range: null, changed: () => this.redraw() };
    this.at = null; // the value of x that is read out
    this.content = { lines: [], marks: [], x: { label: "", words: String }, y: { label: "", words: String } };
    this.empty = el("p", { class: "empty", hidden: true });
    this.element.append(this.empty);
    const tool = (text, label, onclick) => el("button", { type: "button", text, title: label, "aria-label": label, onclick });
    this.zoomOut = tool("−", "Zoom out", () => this.zoomBy(2));
    this.tools = el("span", { class: "chart-tools" }, tool("+", "Zoom in", () => this.zoomBy(0.5)), this.zoomOut, tool("PNG", "Save as PNG", () => this.save()));
    this.listen();
  }

  /** Returns the chart in a figure with a caption and its tools. */
  figure(...caption) {
    return super.figure(...caption, this.tools);
  }

  /**
   * Shows lines over axes. A line is {name, color, dash, width, alpha, x, y}, and may have a band {low, high}, dots at
   * its points (`hasDots`), or a place `spentAt` after which it is dotted. `isRead` lines are in the readout, up to their
   * end if `endsThere`. An axis is {label, words, full}. `x` may have `upTo` (show at least this much), `isLog`, `range`
   * and `ticks`; `y` may have `fromZero`, and `mayStretch` if it may be logarithmic. `marks` are values of x at the
   * bottom, and `cursor` is one that is marked.
   */
  set(content, empty = "Nothing was evaluated yet.") {
    this.content = { marks: [], cursor: null, ...content };
    this.empty.hidden = content.lines.some((line) => line.y.some((value, n) => isKnown(value) && isKnown(line.x[n])));
    setText(this.empty, empty);
    this.redraw();
    this.announceAt();
    if (!this.readout.hidden) this.showReadout();
  }

  get title() {
    return this.canvas.getAttribute("aria-label");
  }

  set title(title) {
    this.canvas.setAttribute("aria-label", title);
  }

  setCursor(cursor) {
    if (this.content.cursor === cursor) return;
    this.content.cursor = cursor;
    this.draw();
  }

  forget() {
    this.scales = null;
  }

  /** The scales of both axes, for the content and the size that the chart has now. */
  get axes() {
    return (this.scales ??= this.measure(this.width, this.height));
  }

  redraw() {
    this.forget();
    this.zoomOut.disabled = !this.zoom.range;
    this.draw();
  }

  // Axes.

  measure(width, height) {
    const { lines, x, y } = this.content;
    const { range } = this.zoom;
    let [xlow, xhigh, ylow, yhigh] = [Infinity, -Infinity, Infinity, -Infinity];
    let lowest = Infinity; // of the values above zero, which a logarithmic axis can show
    for (const line of lines) {
      let first = Infinity;
      line.x.forEach((place, n) => {
        if (!isKnown(place) || !isKnown(line.y[n]) || (x.isLog && place <= 0)) return;
        first = Math.min(first, place);
        xhigh = Math.max(xhigh, place);
        if (range && (place < range[0] || place > range[1])) return;
        for (const value of [line.y[n], line.low?.[n], line.high?.[n]]) {
          if (!isKnown(value)) continue;
          ylow = Math.min(ylow, value);
          yhigh = Math.max(yhigh, value);
          if (value > 0) lowest = Math.min(lowest, value);
        }
      });
      // A logarithmic axis begins where all lines have begun: before that, most of it would be empty.
      if (first < Infinity) xlow = x.isLog && xlow < Infinity ? Math.max(xlow, first) : Math.min(xlow, first);
    }
    if (isKnown(x.upTo)) xhigh = Math.max(xhigh, x.upTo);
    if (!Number.isFinite(xlow)) [xlow, xhigh] = x.isLog ? [1, 10] : [0, 1];
    if (!Number.isFinite(ylow)) [ylow, yhigh] = [0, 1];
    const full = x.range ?? [xlow, xhigh];
    const isStretched = Boolean(y.mayStretch) && ylow >= 0 && yhigh / lowest >= STRETCH;
    const pad = 0.05 * (yhigh - ylow || Math.abs(yhigh) || 1);
    const bottom = height - MARGIN.bottom;
    const rows = Math.max(2, Math.floor(height / 48));
    const vertical = isStretched
      ? logarithmic(lowest / 1.15, yhigh * 1.15, bottom, MARGIN.top, rows)
      : linear(y.fromZero ? Math.min(0, ylow) : ylow - pad, yhigh + pad, bottom, MARGIN.top, rows);
    const scale = x.isLog ? logarithmic : linear;
    const horizontal = scale(...(range ?? full), MARGIN.left, width - MARGIN.right, Math.max(2, Math.floor(width / 90)));
    if (x.ticks && !range) horizontal.ticks = x.ticks;
    return { x: horizontal, y: vertical, full, isStretched };
  }

  // Drawing.

  paint(context, width, height) {
    const { lines, marks, cursor } = this.content;
    const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
    this.paintAxes(context, right, bottom);
    if (!lines.length) return;
    context.save();
    context.beginPath();
    context.rect(MARGIN.left - 2, MARGIN.top - 6, right - MARGIN.left + 4, bottom - MARGIN.top + 8);
    context.clip();
    for (const line of lines) if (line.low) this.paintBand(context, line);
    for (const line of lines) this.paintLine(context, line);
    this.paintMarks(context, marks, bottom);
    if (isKnown(cursor)) this.paintUpright(context, cursor, { strokeStyle: theme.talk }, bottom);
    if (this.at !== null) this.paintUpright(context, this.at, { strokeStyle: theme.soft, dash: [3, 3] }, bottom);
    if (this.drag) {
      const [from, to] = this.drag;
      drawPath(context, { fillStyle: theme.link, globalAlpha: 0.15 }, () => context.rect(from, MARGIN.top, to - from, bottom - MARGIN.top));
    }
    context.restore();
  }

  paintAxes(context, right, bottom) {
    const { x, y, isStretched } = this.axes;
    const { content } = this;
    Object.assign(context, { font: `11px ${theme.font}`, fillStyle: theme.soft, textBaseline: "middle", textAlign: "right" });
    for (const tick of y.ticks) {
      const at = Math.round(y.at(tick)) + 0.5;
      drawLine(context, { strokeStyle: theme.line }, MARGIN.left, at, right, at);
      context.fillText(content.y.words(tick), MARGIN.left - 7, at);
    }
    writeTicks(context, x, content.x.words, right, bottom + 6);
    for (const tick of x.ticks) context.fillRect(Math.round(x.at(tick)), bottom, 1, 4);
    drawLine(context, { strokeStyle: theme.soft }, MARGIN.left, bottom + 0.5, right, bottom + 0.5);
    context.textAlign = "right";
    context.fillText(content.x.label, right, bottom + 20);
    context.textAlign = "left";
    context.fillText([content.y.label, isStretched ? "logarithmic" : ""].filter(Boolean).join(", "), MARGIN.left, bottom + 20, right - 120);
  }

  paintBand(context, { color, x, low, high }) {
    const { x: across, y: up } = this.axes;
    const known = x.map((_, n) => n).filter((n) => isKnown(low[n]) && isKnown(high[n]));
    drawPath(context, { fillStyle: visible(color), globalAlpha: theme.isDark ? 0.22 : 0.15 }, () => {
      for (const n of known) context.lineTo(across.at(x[n]), up.at(high[n]));
      for (const n of known.reverse()) context.lineTo(across.at(x[n]), up.at(low[n]));
    });
  }

  paintLine(context, { color, dash, width, alpha = 1, x, y, hasDots, spentAt }) {
    const { x: across, y: up } = this.axes;
    const start = this.content.x.isLog ? lastUpTo(x, 0) + 1 : 0;
    const end = spentAt === undefined ? x.length : lastUpTo(x, spentAt) + 1;
    const style = { strokeStyle: visible(color), globalAlpha: alpha, lineJoin: "round" };
    const stroke = (from, to, more) =>
      drawPath(context, { ...style, ...more }, () => {
        let isOpen = false;
        for (let n = from; n < to; n++) {
          const isThere = isKnown(y[n]) && isKnown(x[n]);
          if (isThere) context[isOpen ? "lineTo" : "moveTo"](across.at(x[n]), up.at(y[n]));
          isOpen = isThere;
        }
      });
    stroke(start, end, { lineWidth: width, dash });
    if (end < x.length) stroke(Math.max(start, end - 1), x.length, { lineWidth: 0.6 * width, dash: [2, 2.5] });
    const dots = hasDots || x.length === 1 ? x.keys() : end > 0 && end < x.length ? [end - 1] : [];
    for (const n of dots) {
      if (isKnown(y[n])) drawPath(context, { fillStyle: visible(color), globalAlpha: alpha }, () => context.arc(across.at(x[n]), up.at(y[n]), width + 1.2, 0, 7));
    }
  }

  paintMarks(context, marks, bottom) {
    context.fillStyle = theme.talk;
    const places = new Set(marks.map((mark) => Math.round(this.axes.x.at(mark))));
    for (const at of places) context.fillRect(at, bottom - 7, 1.4, 7);
  }

  paintUpright(context, value, style, bottom) {
    const at = Math.round(this.axes.x.at(value)) + 0.5;
    drawLine(context, style, at, MARGIN.top - 4, at, bottom);
  }

  /** Gives the reader a PNG that stands alone: with its title and the names of its lines. */
  save() {
    const { width, height } = this;
    const names = [...new Map(this.readable.map((line) => [line.name, line])).values()];
    const picture = el("canvas", { width: PICTURE_SCALE * width, height: PICTURE_SCALE * (height + 24 + 16 * names.length) });
    const context = picture.getContext("2d");
    context.scale(PICTURE_SCALE, PICTURE_SCALE);
    context.fillStyle = theme.page;
    context.fillRect(0, 0, picture.width, picture.height);
    this.leave();
    context.save();
    context.translate(0, 24);
    this.paint(context, width, height);
    context.restore();
    Object.assign(context, { textAlign: "left", textBaseline: "middle", fillStyle: theme.ink, font: `600 13px ${theme.font}` });
    context.fillText(this.title, MARGIN.left, 14);
    context.font = `11px ${theme.font}`;
    names.forEach(({ name, color, dash }, n) => {
      const y = height + 32 + 16 * n;
      drawLine(context, { strokeStyle: visible(color), lineWidth: 2, dash }, MARGIN.left, y, MARGIN.left + 26, y);
      context.fillText(name, MARGIN.left + 34, y);
    });
    picture.toBlob((blob) => download(`${fileName(this.title)}.png`, "image/png", blob));
  }

  // Reading.

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      const [x] = this.pointer(event);
      this.drag = [x, x];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => {
      const { drag } = this;
      this.drag = null;
      if (drag && Math.abs(drag[1] - drag[0]) > 6) this.zoomTo(drag.map((pixel) => this.axes.x.back(pixel)).sort((one, other) => one - other));
    });
    canvas.addEventListener("dblclick", () => this.zoomTo(null));
    canvas.addEventListener("keydown", ({ key }) => {
      if (key === "+" || key === "-") this.zoomBy(key === "+" ? 0.5 : 2);
      if (key !== "Escape") return;
      this.leave();
      this.zoomTo(null);
    });
  }

  zoomTo(range) {
    if (range === this.zoom.range) return;
    this.zoom.range = range;
    this.zoom.changed();
  }

  /** Shows `factor` times as much around the place that is read, or around the middle. */
  zoomBy(factor) {
    const { x, full } = this.axes;
    const ends = [x.at(x.low), x.at(x.high)];
    const centre = this.at === null ? (ends[0] + ends[1]) / 2 : x.at(this.at);
    const [low, high] = ends.map((pixel) => x.back(centre + factor * (pixel - centre)));
    this.zoomTo(low <= full[0] && high >= full[1] ? null : [Math.max(low, full[0]), Math.min(high, full[1])]);
  }

  get readable() {
    return this.content.lines.filter((line) => line.isRead && line.x.length);
  }

  /** The places that can be read: those of the line with the most. */
  get stops() {
    const longest = this.readable.reduce((best, line) => (best && best.x.length >= line.x.length ? best : line), null);
    const [low, high] = this.zoom.range ?? [-Infinity, Infinity];
    return (longest?.x ?? []).filter((value) => value >= low && value <= high && (value > 0 || !this.content.x.isLog));
  }

  /** Reads the stop that is nearest to the pointer. */
  point(x, y) {
    if (this.drag) this.drag[1] = x;
    const { stops } = this;
    const value = this.axes.x.back(x);
    const before = Math.max(0, lastUpTo(stops, value));
    const near = stops.slice(before, before + 2).sort((one, other) => Math.abs(one - value) - Math.abs(other - value));
    if (near.length) this.read(near[0], x, y);
  }

  step(by) {
    const { stops } = this;
    if (!stops.length) return;
    const now = this.at === null ? stops.length - 1 : Math.max(0, lastUpTo(stops, this.at));
    const next = Math.min(stops.length - 1, Math.max(0, this.at === null && Math.abs(by) <= 1 ? now : now + by));
    this.read(stops[next], this.axes.x.at(stops[next]), MARGIN.top);
    this.announceAt();
  }

  read(value, x, y) {
    [this.at, this.place] = [value, [x, y]];
    this.showReadout();
    this.draw();
  }

  leave() {
    super.leave();
    this.at = this.drag = null;
    this.draw();
  }

  /** The last value of each line up to a place, with its band, the largest first: {line, value, words}. */
  valuesAt(place) {
    const words = this.content.y.full ?? this.content.y.words;
    const rows = [];
    for (const line of this.readable) {
      if (place > line.x[line.x.length - 1] && line.endsThere) continue;
      const n = lastUpTo(line.x, place);
      const value = line.y[n];
      if (n < 0 || !isKnown(value)) continue;
      const band = line.low && isKnown(line.low[n]) ? ` (${words(line.low[n])} to ${words(line.high[n])})` : "";
      rows.push({ line, value, words: words(value) + band });
    }
    return rows.sort((one, other) => other.value - one.value);
  }

  placeWords(place) {
    const { x } = this.content;
    return `${x.label} ${(x.full ?? x.words)(place)}`;
  }

  showReadout() {
    const rows = this.valuesAt(this.at);
    const more = rows.length - MOST_ROWS;
    const children = rows.slice(0, MOST_ROWS).map(({ line, words }) =>
      el("div", { class: "readout-row" }, el("i", { vars: { "--color": visible(line.color) } }), el("span", { text: line.name }), el("b", { text: words })),
    );
    const note = (text) => el("div", { class: "readout-at", text });
    this.readBeside(this.place[0], 16, this.place[1] - 10, note(this.placeWords(this.at)), ...children, more > 0 ? note(`and ${more} more`) : "");
  }

  announceAt() {
    const { stops } = this;
    const last = stops.length - 1;
    if (last < 0) return this.announce(0, 0, ["nothing yet"]);
    const place = this.at ?? stops[last];
    const rows = this.valuesAt(place).slice(0, MOST_ROWS);
    this.announce(Math.max(0, lastUpTo(stops, place)), last, [this.placeWords(place), ...rows.map((row) => `${row.line.name} ${row.words}`)]);
  }
}

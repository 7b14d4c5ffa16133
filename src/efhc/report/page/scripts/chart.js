// Lines over an axis on a canvas: with a readout under the pointer or by arrow keys, a range chosen by dragging, and a picture to save.
import { Drawing, theme } from "./canvas.js";
import { download, el, keySteps, say } from "./dom.js";
import { lastUpTo, linear, logarithmic } from "./axes.js";
import { fileName } from "./format.js";
import { visible } from "./looks.js";

const MARGIN = { left: 54, right: 12, top: 10, bottom: 34 };
const MOST_ROWS = 14;
const STRETCH = 100; // at this ratio of values, a logarithmic axis shows more
const PICTURE_SCALE = 3;

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

export class Chart extends Drawing {
  /** Charts that show the same range share one `zoom`: {range: null or [low, high], changed()}. */
  constructor(title, zoom = null) {
    super("chart", title, true);
    this.zoom = zoom ?? { range: null, changed: () => this.redraw() };
    this.at = null; // the value of x that is read out
    this.content = { lines: [], marks: [], x: { label: "", words: String }, y: { label: "", words: String } };
    this.title = title;
    this.empty = el("p", { class: "empty", hidden: true });
    this.element.append(this.empty);
    const tool = (text, label, onclick) => el("button", { type: "button", text, title: label, "aria-label": label, onclick });
    this.tools = el(
      "span",
      { class: "chart-tools" },
      tool("+", "Zoom in", () => this.zoomBy(0.5)),
      (this.zoomOut = tool("−", "Zoom out", () => this.zoomBy(2))),
      tool("PNG", "Save as PNG", () => this.save()),
    );
    this.listen();
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
    const isEmpty = !content.lines.some((line) => line.y.some((value, n) => isKnown(value) && isKnown(line.x[n])));
    this.empty.hidden = !isEmpty;
    say(this.empty, empty);
    this.redraw();
    this.announce();
    if (!this.readout.hidden) this.showReadout();
  }

  name(title) {
    this.title = title;
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
    this.paintAxes(context, width, height);
    if (!lines.length) return;
    context.save();
    context.beginPath();
    context.rect(MARGIN.left - 2, MARGIN.top - 6, width - MARGIN.left - MARGIN.right + 4, height - MARGIN.top - MARGIN.bottom + 8);
    context.clip();
    for (const line of lines) if (line.low) this.paintBand(context, line);
    for (const line of lines) this.paintLine(context, line);
    this.paintMarks(context, marks, height);
    if (isKnown(cursor)) this.paintUpright(context, cursor, theme.talk, height, []);
    if (this.at !== null) this.paintUpright(context, this.at, theme.soft, height, [3, 3]);
    if (this.drag) this.paintDrag(context, height);
    context.restore();
  }

  paintAxes(context, width, height) {
    const { x, y } = this.axes;
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
    context.fillText([this.content.y.label, this.axes.isStretched ? "logarithmic" : ""].filter(Boolean).join(", "), MARGIN.left, bottom + 20);
  }

  paintBand(context, { color, x, low, high }) {
    const { x: across, y: up } = this.axes;
    const known = x.map((_, n) => n).filter((n) => isKnown(low[n]) && isKnown(high[n]));
    context.beginPath();
    for (const n of known) context.lineTo(across.at(x[n]), up.at(high[n]));
    for (const n of known.reverse()) context.lineTo(across.at(x[n]), up.at(low[n]));
    context.globalAlpha = theme.isDark ? 0.22 : 0.15;
    context.fillStyle = visible(color, theme.isDark);
    context.fill();
    context.globalAlpha = 1;
  }

  paintLine(context, { color, dash, width: thick, alpha = 1, x, y, hasDots, spentAt }) {
    const { x: across, y: up } = this.axes;
    const start = this.content.x.isLog ? lastUpTo(x, 0) + 1 : 0;
    const end = spentAt === undefined ? x.length : lastUpTo(x, spentAt) + 1;
    context.globalAlpha = alpha;
    context.strokeStyle = context.fillStyle = visible(color, theme.isDark);
    context.lineJoin = "round";
    const stroke = (from, to, lineWidth, dashes) => {
      context.lineWidth = lineWidth;
      context.setLineDash(dashes);
      const [xs, ys] = to - from === x.length ? [x, y] : [x.slice(from, to), y.slice(from, to)];
      context.stroke(path(xs, ys, across.at, up.at));
      context.setLineDash([]);
    };
    stroke(start, end, thick, dash);
    if (end < x.length) stroke(Math.max(start, end - 1), x.length, 0.6 * thick, [2, 2.5]);
    const dots = hasDots || x.length === 1 ? x.keys() : end > 0 && end < x.length ? [end - 1] : [];
    for (const n of dots) {
      if (!isKnown(y[n])) continue;
      context.beginPath();
      context.arc(across.at(x[n]), up.at(y[n]), thick + 1.2, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  paintMarks(context, marks, height) {
    if (!marks.length) return;
    const { x } = this.axes;
    context.fillStyle = theme.talk;
    let before = -Infinity;
    for (const mark of marks) {
      const at = Math.round(x.at(mark));
      if (at > before) context.fillRect(at, height - MARGIN.bottom - 7, 1.4, 7);
      before = at;
    }
  }

  paintUpright(context, value, color, height, dash) {
    const at = Math.round(this.axes.x.at(value)) + 0.5;
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

  /** Gives the reader a PNG that stands alone: with its title and the names of its lines. */
  save() {
    const { width, height } = this;
    const names = [...new Map(this.readable.map((line) => [line.name, line])).values()];
    const picture = el("canvas", { width: PICTURE_SCALE * width, height: PICTURE_SCALE * (height + 24 + 16 * names.length) });
    const context = picture.getContext("2d");
    context.scale(PICTURE_SCALE, PICTURE_SCALE);
    context.fillStyle = theme.page;
    context.fillRect(0, 0, picture.width, picture.height);
    this.stopReading();
    context.save();
    context.translate(0, 24);
    this.paint(context, width, height);
    context.restore();
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = theme.ink;
    context.font = `600 13px ${theme.font}`;
    context.fillText(this.title, MARGIN.left, 14);
    context.font = `11px ${theme.font}`;
    names.forEach(({ name, color, dash }, n) => {
      const y = height + 32 + 16 * n;
      context.strokeStyle = visible(color, theme.isDark);
      context.lineWidth = 2;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(MARGIN.left, y);
      context.lineTo(MARGIN.left + 26, y);
      context.stroke();
      context.fillText(name, MARGIN.left + 34, y);
    });
    picture.toBlob((blob) => download(`${fileName(this.title)}.png`, "image/png", blob));
  }

  // Reading.

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = this.pointer(event);
      if (this.drag) {
        this.drag[1] = x;
        this.draw();
      }
      this.read(this.nearest(x), x, y);
    });
    canvas.addEventListener("pointerleave", () => this.stopReading());
    canvas.addEventListener("blur", () => this.stopReading());
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && this.step(0));
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      const [x] = this.pointer(event);
      this.drag = [x, x];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => {
      const ends = this.drag?.map((pixel) => this.axes.x.back(pixel)).sort((one, other) => one - other);
      const isWide = this.drag && Math.abs(this.drag[1] - this.drag[0]) > 6;
      this.drag = null;
      if (isWide) this.zoomTo(ends);
    });
    canvas.addEventListener("dblclick", () => this.zoomTo(null));
    canvas.addEventListener("keydown", (event) => {
      const steps = keySteps(10);
      if (event.key === "Escape") {
        this.stopReading();
        this.zoomTo(null);
      } else if (event.key === "+" || event.key === "-") this.zoomBy(event.key === "+" ? 0.5 : 2);
      else if (event.key in steps) {
        event.preventDefault();
        this.step(steps[event.key]);
      }
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

  nearest(pixel) {
    const { stops } = this;
    if (!stops.length) return null;
    const value = this.axes.x.back(pixel);
    const before = Math.max(0, lastUpTo(stops, value));
    const after = Math.min(stops.length - 1, before + 1);
    return Math.abs(stops[after] - value) < Math.abs(stops[before] - value) ? stops[after] : stops[before];
  }

  step(by) {
    const { stops } = this;
    if (!stops.length) return;
    const now = this.at === null ? stops.length - 1 : Math.max(0, lastUpTo(stops, this.at));
    const next = Math.min(stops.length - 1, Math.max(0, this.at === null && Math.abs(by) <= 1 ? now : now + by));
    this.read(stops[next], this.axes.x.at(stops[next]), MARGIN.top);
    this.announce();
  }

  read(value, x, y) {
    if (value === null) return;
    [this.at, this.place] = [value, [x, y]];
    this.showReadout();
    this.draw();
  }

  stopReading() {
    this.at = null;
    this.drag = null;
    this.readout.hidden = true;
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
    if (this.at === null) return;
    const rows = this.valuesAt(this.at);
    const [px, py] = this.place;
    this.readBeside(
      px,
      16,
      py - 10,
      el("div", { class: "readout-at", text: this.placeWords(this.at) }),
      ...rows.slice(0, MOST_ROWS).map(({ line, words }) =>
        el(
          "div",
          { class: "readout-row" },
          el("i", { vars: { "--color": visible(line.color, theme.isDark) } }),
          el("span", { text: line.name }),
          el("b", { text: words }),
        ),
      ),
      ...(rows.length > MOST_ROWS ? [el("div", { class: "readout-at", text: `and ${rows.length - MOST_ROWS} more` })] : []),
    );
  }

  announce() {
    const { canvas } = this;
    const { stops } = this;
    const last = stops.length - 1;
    const place = this.at ?? stops[last];
    canvas.setAttribute("aria-valuemax", Math.max(0, last));
    canvas.setAttribute("aria-valuenow", place === undefined ? 0 : Math.max(0, lastUpTo(stops, place)));
    const rows = place === undefined ? [] : this.valuesAt(place).slice(0, MOST_ROWS);
    const words = [place === undefined ? "nothing yet" : this.placeWords(place), ...rows.map((row) => `${row.line.name} ${row.words}`)];
    canvas.setAttribute("aria-valuetext", words.join(", "));
  }
}

function path(x, y, across, up) {
  const found = new Path2D();
  let isOpen = false;
  for (let n = 0; n < x.length; n++) {
    if (!isKnown(y[n]) || !isKnown(x[n])) isOpen = false;
    else if (isOpen) found.lineTo(across(x[n]), up(y[n]));
    else found.moveTo(across(x[n]), up(y[n])), (isOpen = true);
  }
  return found;
}

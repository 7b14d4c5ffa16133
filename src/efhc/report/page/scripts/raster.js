// Who fired when, on a canvas: a row per device, a column per few iterations, darker where it fired more often.
import { Drawing, theme, writeTicks } from "./canvas.js";
import { el } from "./dom.js";
import { linear } from "./axes.js";
import { digits, short, whole } from "./format.js";
import { rgb } from "./looks.js";

const GUTTER = { left: 54, right: 12, bottom: 22 };
const FEWEST_PIXELS = 11; // height of a row that can have a label

export class RasterDrawing extends Drawing {
  /** `seek(k)` is called with the iteration that the reader points at, `choose(row)` with the row; both are optional. */
  constructor({ seek, choose, label }) {
    super("raster", label, false);
    Object.assign(this, { seek, choose });
    this.cursor = null;
    this.chosen = null;
    this.canvas.addEventListener("click", (event) => {
      const found = this.under(...this.pointer(event));
      if (!found) return;
      this.seek?.(found.k);
      this.choose?.(found.row);
    });
  }

  /**
   * Shows rows {label, name}; `shares[row][column]` is the share of the iterations of a column in which a device fired,
   * NaN if none of them is known. Columns are equally wide, from iteration `first` to before `end`; the last one may
   * have fewer iterations, up to `last`. With the unit "seconds", `first` and `end` are seconds.
   */
  set({ rows, shares, first, end, unit = "iterations", last = unit === "seconds" ? end : end - 1 }) {
    Object.assign(this, { rows, shares, first, end, last, unit });
    this.canvas.style.height = `${Math.min(320, Math.max(60, 14 * rows.length)) + GUTTER.bottom + 4}px`;
    this.forget();
    this.draw();
  }

  forget() {
    this.picture = null;
  }

  setCursor(k) {
    if (k === this.cursor) return;
    this.cursor = k;
    this.draw();
  }

  setChosen(row) {
    this.chosen = row;
    this.draw();
  }

  paintPicture() {
    const columns = this.shares[0]?.length ?? 0;
    const picture = el("canvas", { width: Math.max(1, columns), height: this.rows.length });
    const context = picture.getContext("2d");
    const image = context.createImageData(picture.width, picture.height);
    const [empty, rest, full] = [theme.page, theme.pale, theme.talk].map(rgb);
    const colors = new Map([[NaN, [...empty, 255]]]);
    const colorOf = (share) => {
      // A single firing in many iterations must still be seen.
      const weight = share > 0 ? 0.25 + 0.65 * share : 0;
      if (!colors.has(share)) colors.set(share, [...rest.map((part, n) => part + weight * (full[n] - part)), 255]);
      return colors.get(share);
    };
    this.shares.forEach((shares, row) => shares.forEach((share, column) => image.data.set(colorOf(share), 4 * (row * columns + column))));
    context.putImageData(image, 0, 0);
    return picture;
  }

  paint(context, width, height) {
    if (!this.rows?.length) return;
    this.picture ??= this.paintPicture();
    const right = width - GUTTER.right;
    const [across, down] = [right - GUTTER.left, height - GUTTER.bottom - 4];
    this.axis = linear(this.first, this.end, GUTTER.left, right, Math.max(2, Math.floor(width / 110)));
    this.rowHeight = down / this.rows.length;
    context.imageSmoothingEnabled = this.rowHeight * this.scale < 1 || across * this.scale < this.picture.width;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.picture, GUTTER.left, 0, across, down);
    this.paintLabels(context, right, down);
    if (this.chosen !== null) {
      Object.assign(context, { strokeStyle: theme.ink, lineWidth: 1 });
      context.strokeRect(GUTTER.left - 0.5, Math.round(this.chosen * this.rowHeight) - 0.5, across + 1, Math.max(2, this.rowHeight) + 1);
    }
    if (this.cursor !== null) {
      const at = Math.round(this.axis.at(this.cursor + (this.unit === "seconds" ? 0 : 0.5)));
      context.fillStyle = theme.ink;
      context.fillRect(at - 0.5, 0, 1.5, down + 4);
    }
  }

  paintLabels(context, right, down) {
    Object.assign(context, { font: `11px ${theme.font}`, textAlign: "right", textBaseline: "middle" });
    const label = (text, y) => {
      context.fillStyle = theme.soft;
      context.fillText(text, GUTTER.left - 7, y);
    };
    if (this.rowHeight >= FEWEST_PIXELS) {
      this.rows.forEach((row, n) => {
        label(row.label, (n + 0.5) * this.rowHeight);
        context.fillStyle = theme.page;
        if (n) context.fillRect(GUTTER.left, Math.round(n * this.rowHeight) - 0.5, right - GUTTER.left, 2);
      });
    } else {
      label("most", 7);
      label("least", down - 7);
    }
    context.fillStyle = theme.soft;
    writeTicks(context, this.axis, short, right, down + 7);
  }

  point(x, y, event) {
    const found = this.under(x, y);
    if (!found) return this.leave();
    if (event.buttons & 1) this.seek?.(found.k);
    this.showReadout(found);
  }

  under(x, y) {
    if (!this.axis) return null;
    const row = Math.floor(y / this.rowHeight);
    const k = this.unit === "seconds" ? this.axis.back(x) : Math.floor(this.axis.back(x));
    if (row < 0 || row >= this.rows.length || k < this.first || k > this.last) return null;
    const columns = this.shares[row].length;
    const column = Math.min(columns - 1, columnOf(k, this.first, this.end, columns));
    return { row, k, column, x, y };
  }

  showReadout({ row, column, x, y }) {
    const share = this.shares[row][column];
    const width = (this.end - this.first) / this.shares[row].length;
    const [from, after] = [this.first + column * width, this.first + (column + 1) * width];
    const [low, high] = [from, Math.min(this.last, after - 1)].map(Math.round);
    const inIterations = high > low ? `iterations ${whole(low)} to ${whole(high)}` : `iteration ${whole(low)}`;
    const when = this.unit === "seconds" ? `${digits(from, 4)} s to ${digits(after, 4)} s` : inIterations;
    const unknown = this.unit === "seconds" ? "no step ended" : "not in the sample";
    const known = { 0: "did not fire", 1: "fired" }[share] ?? `fired in ${Math.round(100 * share)} %`;
    const what = Number.isNaN(share) ? unknown : known;
    this.readBeside(x, 14, y - 10, el("b", { text: this.rows[row].name }), el("div", { text: `${when}: ${what}` }));
  }
}

/** Multiplied before it is divided: 29 / 100 * 100 is less than 29. */
function columnOf(k, first, end, columns) {
  return Math.floor(((k - first) * columns) / (end - first));
}

/** Returns shares by row and column: of the known iterations of a column, how many a device fired in. `at` is when. */
export function firedShares(at, fired, rowOf, count, first, end, columns) {
  const shares = Array.from({ length: count }, () => new Float32Array(columns));
  const known = new Int32Array(columns);
  at.forEach((when, n) => {
    const column = when === end ? columns - 1 : columnOf(when, first, end, columns);
    if (column < 0 || column >= columns) return;
    known[column]++;
    for (const device of fired[n]) if (rowOf[device] !== undefined) shares[rowOf[device]][column]++;
  });
  for (const row of shares) for (let column = 0; column < columns; column++) row[column] = known[column] ? Math.min(1, row[column] / known[column]) : NaN;
  return shares;
}

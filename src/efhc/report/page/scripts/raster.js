// Who fired when, on a canvas: a row per device, a column per few iterations, darker where it fired more often.
import { Drawing, theme } from "./canvas.js";
import { el } from "./dom.js";
import { linear } from "./axes.js";
import { digits, short, whole } from "./format.js";

export const GUTTER = { left: 54, right: 12, bottom: 22 };
const FEWEST_PIXELS = 11; // height of a row that can have a label

export class RasterDrawing extends Drawing {
  /** `seek(k)` hears which iteration the reader points at, `choose(row)` which row; both may be left out. */
  constructor({ seek, choose, label, maxHeight = 320 }) {
    super("raster", label, false);
    Object.assign(this, { seek, choose, maxHeight });
    this.cursor = null;
    this.chosen = null;
    this.listen();
  }

  /**
   * Shows rows {label, name}; `shares[row][column]` is the share of the iterations of a column in which a device fired,
   * NaN if none of them is known. Columns are equally wide, from iteration `first` to before `end`; the last one may
   * have fewer iterations, up to `last`. With the unit "seconds", `first` and `end` are seconds.
   */
  set({ rows, shares, first, end, unit = "iterations", last = unit === "seconds" ? end : end - 1 }) {
    Object.assign(this, { rows, shares, first, end, last, unit });
    const height = Math.min(this.maxHeight, Math.max(60, 14 * rows.length)) + GUTTER.bottom + 4;
    this.canvas.style.height = `${height}px`;
    this.picture = null;
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
    const picture = el("canvas", { width: Math.max(1, columns), height: Math.max(1, this.rows.length) });
    const context = picture.getContext("2d");
    const image = context.createImageData(picture.width, picture.height);
    const [empty, full] = [colorParts(theme.page), colorParts(theme.talk)];
    const rest = colorParts(theme.pale);
    for (let row = 0; row < this.rows.length; row++) {
      for (let column = 0; column < columns; column++) {
        const share = this.shares[row][column];
        const at = 4 * (row * columns + column);
        const isKnown = !Number.isNaN(share);
        // A single firing in many iterations must still be seen.
        const weight = share > 0 ? 0.25 + 0.65 * share : 0;
        for (let part = 0; part < 3; part++) {
          image.data[at + part] = isKnown ? rest[part] + weight * (full[part] - rest[part]) : empty[part];
        }
        image.data[at + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    return picture;
  }

  paint(context, width, height) {
    if (!this.rows?.length) return;
    this.picture ??= this.paintPicture();
    const [across, down] = [width - GUTTER.left - GUTTER.right, height - GUTTER.bottom - 4];
    this.axis = linear(this.first, this.end, GUTTER.left, width - GUTTER.right, Math.max(2, Math.floor(width / 110)));
    this.rowHeight = down / this.rows.length;
    context.imageSmoothingEnabled = this.rowHeight * this.scale < 1 || across * this.scale < this.picture.width;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.picture, GUTTER.left, 0, across, down);
    this.paintLabels(context, width, down);
    if (this.chosen !== null) {
      context.strokeStyle = theme.ink;
      context.lineWidth = 1;
      context.strokeRect(GUTTER.left - 0.5, Math.round(this.chosen * this.rowHeight) - 0.5, across + 1, Math.max(2, this.rowHeight) + 1);
    }
    if (this.cursor !== null) {
      const at = Math.round(this.axis.at(this.cursor + (this.unit === "seconds" ? 0 : 0.5)));
      context.fillStyle = theme.ink;
      context.fillRect(at - 0.5, 0, 1.5, down + 4);
    }
  }

  paintLabels(context, width, down) {
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.soft;
    context.textAlign = "right";
    context.textBaseline = "middle";
    if (this.rowHeight >= FEWEST_PIXELS) {
      this.rows.forEach((row, n) => context.fillText(row.label, GUTTER.left - 7, (n + 0.5) * this.rowHeight));
      context.strokeStyle = theme.page;
      context.lineWidth = 2;
      context.beginPath();
      for (let n = 1; n < this.rows.length; n++) {
        context.moveTo(GUTTER.left, Math.round(n * this.rowHeight) + 0.5);
        context.lineTo(width - GUTTER.right, Math.round(n * this.rowHeight) + 0.5);
      }
      context.stroke();
    } else {
      context.fillText("most", GUTTER.left - 7, 7);
      context.fillText("least", GUTTER.left - 7, down - 7);
    }
    context.textBaseline = "top";
    for (const tick of this.axis.ticks) {
      const at = this.axis.at(tick);
      context.textAlign = at > width - GUTTER.right - 16 ? "right" : "center";
      context.fillText(short(tick), at, down + 7);
    }
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      const found = this.under(...this.pointer(event));
      if (event.buttons & 1 && found) this.seek?.(found.k);
      if (found) this.showReadout(found);
      else this.readout.hidden = true;
    });
    canvas.addEventListener("pointerleave", () => (this.readout.hidden = true));
    canvas.addEventListener("click", (event) => {
      const found = this.under(...this.pointer(event));
      if (!found) return;
      this.seek?.(found.k);
      this.choose?.(found.row);
    });
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
    const what = Number.isNaN(share) ? (this.unit === "seconds" ? "no step ended" : "not in the sample") : share === 0 ? "did not fire" : share === 1 ? "fired" : `fired in ${Math.round(100 * share)} %`;
    this.readBeside(x, 14, y - 10, el("b", { text: this.rows[row].name }), el("div", { text: `${when}: ${what}` }));
  }
}

function colorParts(color) {
  const long = color.length === 4 ? color.replace(/[0-9a-f]/gi, (digit) => digit + digit) : color;
  return [1, 3, 5].map((at) => parseInt(long.slice(at, at + 2), 16));
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

// A table that can be sorted and exported. Numbers are exported as they are, not as they are shown.
import { download, el, setText } from "./dom.js";
import { digits, plural } from "./format.js";
import { measureOf } from "./measures.js";

const MOST_ROWS_SHOWN = 300;

/** Columns of numbers, shown by `words`, and of texts. The field of a row is `name`, with underscores, or `value(row)`. */
export const number = (name, words = digits, value = field(name)) => ({ name, words, value, class: "right" });
export const text = (name, value = field(name)) => ({ name, words: String, value, class: "" });

function field(name) {
  const key = name.replaceAll(" ", "_");
  return (row) => row[key];
}

export class SortableTable {
  /** `choose(row)` is called with the row that was pressed. Exports have the names of the columns, the page their headings. */
  constructor({ caption, columns, file, choose = null, isCurrent = () => false }) {
    Object.assign(this, { columns, file, choose, isCurrent });
    [this.by, this.isDown] = [null, false];
    this.rows = [];
    this.heads = columns.map(({ name, class: side }, n) => {
      const button = el("button", { type: "button", class: "sort", text: measureOf(name).heading, onclick: () => this.sortBy(n) });
      return el("th", { scope: "col", class: side }, button);
    });
    this.body = el("tbody");
    this.note = el("span", { class: "note" });
    this.export = el("button", { type: "button", class: "quiet", text: "Export CSV", onclick: () => download(`${this.file()}.csv`, "text/csv", this.csv()) });
    this.tools = el("span", { class: "tools" }, this.note, this.export);
    this.element = el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      el("table", {}, el("caption", { class: "unseen", text: caption }), el("thead", {}, el("tr", {}, ...this.heads)), this.body),
    );
  }

  set(rows) {
    this.rows = rows;
    this.draw();
  }

  sortBy(n) {
    this.isDown = this.by === n ? !this.isDown : this.columns[n].class === "right"; // the largest number first
    this.by = n;
    this.draw();
  }

  get sorted() {
    if (this.by === null) return this.rows;
    const { value } = this.columns[this.by];
    const sign = this.isDown ? -1 : 1;
    const [known, unknown] = [this.rows.filter((row) => value(row) != null), this.rows.filter((row) => value(row) == null)];
    const compare = (one, other) => (typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true }));
    return [...known.sort((one, other) => sign * compare(value(one), value(other))), ...unknown];
  }

  draw() {
    this.heads.forEach((head, n) => {
      if (n === this.by) head.setAttribute("aria-sort", this.isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const { sorted } = this;
    const shown = sorted.slice(0, MOST_ROWS_SHOWN);
    while (this.body.rows.length > shown.length) this.body.lastChild.remove();
    while (this.body.rows.length < shown.length) this.body.append(this.emptyRow());
    shown.forEach((row, n) => this.fill(this.body.rows[n], row));
    setText(this.note, sorted.length > shown.length ? `${plural(shown.length, "row")} of ${sorted.length.toLocaleString("en-US")}; the export has all` : "");
  }

  emptyRow() {
    const row = el("tr", {}, ...this.columns.map((column, n) => (n ? el("td", { class: column.class }) : el("th", { scope: "row" }))));
    if (this.choose) row.firstChild.append(el("button", { type: "button", class: "row-button", onclick: () => this.choose(row.item) }));
    return row;
  }

  fill(element, row) {
    element.item = row;
    element.classList.toggle("is-current", this.isCurrent(row));
    this.columns.forEach(({ value, words }, n) => {
      const cell = element.cells[n];
      setText(n === 0 && this.choose ? cell.firstChild : cell, value(row) == null ? "–" : words(value(row)));
    });
  }

  csv() {
    const lines = [this.columns.map((column) => cell(column.name))];
    for (const row of this.sorted) lines.push(this.columns.map((column) => cell(column.value(row))));
    return lines.map((line) => `${line.join(",")}\r\n`).join("");
  }
}

/** Spreadsheets take a text that begins like a formula for one: a blank before it keeps it a text. */
function cell(value) {
  if (value == null) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? ` ${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

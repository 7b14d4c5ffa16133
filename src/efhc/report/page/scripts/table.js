// A table that can be sorted and exported. Numbers are exported as they are, not as they are shown.
import { download, el, say } from "./dom.js";
import { plural } from "./format.js";

const MOST_ROWS_SHOWN = 300;

export class SortableTable {
  /** `columns`: {name, heading, value(row), words(value), isText}: exports have the names, the page has the headings, if there are any. `choose(row)` hears which row was pressed. */
  constructor({ caption, columns, file, choose = null, isCurrent = () => false }) {
    Object.assign(this, { caption, columns, file, choose, isCurrent });
    [this.by, this.isDown] = [null, false];
    this.rows = [];
    this.heads = columns.map((column, n) => {
      const button = el("button", { type: "button", class: "sort", text: column.heading ?? column.name, onclick: () => this.sortBy(n) });
      return el("th", { scope: "col", class: column.isText ? "" : "right" }, button);
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
    this.isDown = this.by === n ? !this.isDown : !this.columns[n].isText;
    this.by = n;
    this.draw();
  }

  get sorted() {
    if (this.by === null) return this.rows;
    const { value } = this.columns[this.by];
    const sign = this.isDown ? -1 : 1;
    // What is not known is last, either way.
    return [...this.rows].sort((one, other) => {
      const [left, right] = [value(one), value(other)];
      if (left === null || left === undefined) return right === null || right === undefined ? 0 : 1;
      if (right === null || right === undefined) return -1;
      return sign * (typeof left === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true }));
    });
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
    say(this.note, sorted.length > shown.length ? `${plural(shown.length, "row")} of ${sorted.length.toLocaleString("en-US")}; the export has all` : "");
  }

  emptyRow() {
    const row = el("tr", {}, ...this.columns.map((column, n) => (n ? el("td", { class: column.isText ? "" : "right" }) : el("th", { scope: "row" }))));
    if (this.choose) {
      const button = el("button", { type: "button", class: "row-button", onclick: () => this.choose(row.item) });
      row.firstChild.append(button);
    }
    return row;
  }

  fill(element, row) {
    element.item = row;
    element.classList.toggle("is-current", this.isCurrent(row));
    this.columns.forEach((column, n) => {
      const value = column.value(row);
      const words = value === null || value === undefined ? "–" : column.words ? column.words(value) : String(value);
      const cell = element.cells[n];
      say(n === 0 && this.choose ? cell.firstChild : cell, words);
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
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? ` ${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// The measure of the page and one more column of all runs of the group, against what one switch says.
import { Chart } from "./chart.js";
import { choice, el, radioSwitch, setText } from "./dom.js";
import { isKnown } from "./format.js";
import { looksOf } from "./looks.js";
import { AXES, COMMON, furtherColumns, measureOf, measures } from "./measures.js";
import { StrategyLegend } from "./strategy_legend.js";

const PLACES = 160;

export class CurvesPanel {
  static order = 2;

  constructor(store) {
    this.store = store;
    this.axis = "k";
    this.isAxisChosen = false;
    this.chosen = [null, null]; // what the reader chose for each chart; the upper one shows the measure otherwise
    this.zoom = { range: null, changed: () => this.charts.forEach((chart) => chart.redraw()) };
    this.charts = this.chosen.map(() => new Chart("", this.zoom));
    this.lacking = this.chosen.map(() => el("span", { class: "note" }));
    const labels = ["Measure of the page", "What the lower curves show"];
    this.choices = labels.map((label, n) =>
      choice({
        class: "measure",
        label,
        options: [],
        changed: (column) => {
          const isOfPage = !n && measures.has(column);
          this.chosen[n] = isOfPage ? null : column;
          if (isOfPage) store.chooseMeasure(column);
          this.draw();
        },
      }),
    );
    const axes = radioSwitch({
      name: "axis",
      label: "Show curves against",
      options: AXES.map((axis) => [axis, measureOf(axis).name]),
      value: this.axis,
      changed: (axis) => {
        this.isAxisChosen = true;
        this.setAxis(axis);
        this.draw();
      },
    });
    this.legend = new StrategyLegend(() => this.draw());
    this.element = el(
      "section",
      { class: "curves", "aria-label": "Curves" },
      el("div", { class: "bar" }, axes, this.legend.element),
      ...this.charts.map((chart, n) => chart.figure(this.choices[n], this.lacking[n])),
    );
    store.watch(["curves", "group", "choice", "tree", "measure"], (changes) => {
      if (changes.has("group")) this.zoom.range = null;
      this.draw();
    });
  }

  /** The columns that the charts show. */
  get columns() {
    const measure = this.store.measureOf();
    const first = measure ? [measure, "consensus_error"] : ["train_loss", "broadcasts"]; // nodes do not evaluate
    return first.map((column, n) => this.chosen[n] ?? column);
  }

  setAxis(axis) {
    if (axis !== this.axis) this.zoom.range = null;
    this.axis = axis;
    this.element.querySelector(`[name="axis"][value="${axis}"]`).checked = true;
  }

  draw() {
    const { currentGroup, lines } = this.store;
    const runs = (currentGroup?.runs ?? []).map((run) => ({ run, curve: lines[run.id] })).filter(({ curve }) => curve?.k?.length);
    const has = (column) => runs.some(({ curve }) => curve[column]?.some(isKnown));
    // Event-driven runs and nodes have their own seconds, and no transmission time: seconds come first.
    if (!this.isAxisChosen && runs.length) this.setAxis(!has("transmission_time") && has("seconds") ? "seconds" : "k");
    const { columns } = this;
    this.offer(columns, [...measures.keys()].filter(has), [...COMMON, ...furtherColumns(runs.map(({ curve }) => curve))]);
    const axis = measureOf(this.axis);
    const strategies = new Map(runs.map(({ run }) => [run.strategy, []]));
    for (const one of runs) strategies.get(one.run.strategy).push(one);
    const looks = new Map([...looksOf(currentGroup?.strategies ?? [])].filter(([name]) => strategies.has(name)));
    this.legend.set(looks);
    const shown = [...strategies].filter(([strategy]) => this.legend.isShown(strategy));
    this.charts.forEach((chart, n) => {
      const column = columns[n];
      const y = measureOf(column);
      chart.title = `${y.name} against ${axis.label}`;
      const drawn = shown.flatMap(([strategy, same]) => this.linesOf(strategy, looks.get(strategy), same, column));
      const without = runs.length && [this.axis, column].find((one) => !has(one));
      chart.set({ lines: drawn, x: axis, y }, without ? `These runs have no ${measureOf(without).label}.` : "Nothing was evaluated yet.");
      const lacking = runs.filter(({ curve }) => !curve[column]?.some(isKnown)).map(({ run }) => run.strategy);
      setText(this.lacking[n], lacking.length && !without ? `not recorded: ${[...new Set(lacking)].join(", ")}` : "");
    });
  }

  /** Offers the measures that these runs have, other columns, and what is shown even if they lack it. */
  offer(columns, known, others) {
    this.choices.forEach((select, n) => {
      const offered = [...new Set([...known, ...others, columns[n]])];
      if (offered.join() !== [...select.options].map(({ value }) => value).join()) {
        select.replaceChildren(...offered.map((value) => el("option", { value, text: measureOf(value).name })));
      }
      select.value = columns[n];
    });
  }

  /** The line of the only run of a strategy or, of several seeds, thin lines and their mean. */
  linesOf(strategy, look, runs, column) {
    const isAlone = runs.length === 1;
    const mean = isAlone ? null : averaged(runs.map(({ curve }) => curve), this.axis, column);
    const lines = runs.map(({ run, curve }) => {
      const isChosen = run.id === this.store.run;
      const own = isAlone
        ? { name: strategy, width: isChosen ? 2.6 : 1.8, isRead: true }
        : { name: `${strategy}, seed ${run.seed}`, dash: [], width: isChosen ? 1.6 : 0.8, alpha: isChosen ? 1 : 0.45, isRead: isChosen || !mean };
      return { ...look, ...own, x: curve[this.axis] ?? [], y: curve[column] ?? [] };
    });
    return mean ? [...lines, { ...look, ...mean, name: `${strategy}, mean of ${runs.length}`, width: 2.2, isRead: true, endsThere: true }] : lines;
  }
}

/** Mean, lowest and highest value over seeds, up to the last place that all seeds reached; null if there is none. */
function averaged(curves, axis, column) {
  const known = curves.map((curve) => points(curve[axis] ?? [], curve[column] ?? []));
  if (known.some((one) => !one.x.length)) return null;
  const last = Math.min(...known.map((one) => one.x.at(-1)));
  const first = Math.max(...known.map((one) => one.x[0]));
  if (!(last > first)) return null;
  const isSame = known.every((one) => one.x.length === known[0].x.length && one.x.every((value, n) => value === known[0].x[n]));
  const x = isSame ? known[0].x : Array.from({ length: PLACES }, (_, n) => first + ((last - first) * n) / (PLACES - 1));
  const all = known.map((one) => interpolated(one, x));
  const over = (combine) => x.map((_, n) => combine(all.map((values) => values[n])));
  return {
    x,
    y: over((values) => values.reduce((sum, value) => sum + value, 0) / values.length),
    low: over((values) => Math.min(...values)),
    high: over((values) => Math.max(...values)),
  };
}

function points(xs, ys) {
  const known = xs.map((_, n) => n).filter((n) => isKnown(xs[n]) && isKnown(ys[n]));
  return { x: known.map((n) => xs[n]), y: known.map((n) => ys[n]) };
}

function interpolated({ x, y }, places) {
  let n = 0;
  return places.map((place) => {
    while (n < x.length - 2 && x[n + 1] < place) n++;
    const width = x[n + 1] - x[n];
    return width > 0 ? y[n] + ((place - x[n]) / width) * (y[n + 1] - y[n]) : y[n];
  });
}

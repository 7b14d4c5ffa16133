// Accuracy and consensus of all runs of the group, against what one switch says.
import { Chart } from "./chart.js";
import { choice, el, radioSwitch } from "./dom.js";
import { isKnown } from "./format.js";
import { looksOf } from "./looks.js";
import { AXES, COMMON, furtherColumns, measureOf } from "./measures.js";
import { StrategyLegend } from "./strategy_legend.js";

const FIRST = ["accuracy", "consensus_error"];
const OF_NODES = ["train_loss", "broadcasts"]; // nodes do not evaluate
const PLACES = 160;

export class CurvesPanel {
  static order = 2;

  constructor(store) {
    this.store = store;
    this.axis = "k";
    this.isAxisChosen = this.isMeasureChosen = false;
    this.zoom = { range: null, changed: () => this.charts.forEach((chart) => chart.redraw()) };
    this.charts = FIRST.map(() => new Chart("", this.zoom));
    this.choices = ["upper", "lower"].map((place, n) =>
      choice({
        class: "measure",
        label: `What the ${place} curves show`,
        options: COMMON.map((one) => [one, measureOf(one).name]),
        value: FIRST[n],
        changed: () => {
          this.isMeasureChosen = true;
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
      ...this.charts.map((chart, n) => chart.figure(this.choices[n])),
    );
    store.watch(["curves", "group", "choice", "tree"], (changes) => {
      if (changes.has("group")) this.begin();
      this.draw();
    });
  }

  begin() {
    this.zoom.range = null;
    const first = this.store.currentGroup?.kind === "nodes" ? OF_NODES : FIRST;
    if (!this.isMeasureChosen) this.choices.forEach((choice, n) => (choice.value = first[n]));
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
    this.offer(furtherColumns(runs.map(({ curve }) => curve)));
    const axis = measureOf(this.axis);
    const strategies = new Map(runs.map(({ run }) => [run.strategy, []]));
    for (const one of runs) strategies.get(one.run.strategy).push(one);
    const looks = new Map([...looksOf(currentGroup?.strategies ?? [])].filter(([name]) => strategies.has(name)));
    this.legend.set(looks);
    const shown = [...strategies].filter(([strategy]) => this.legend.isShown(strategy));
    this.charts.forEach((chart, n) => {
      const column = this.choices[n].value;
      const y = measureOf(column);
      chart.title = `${y.name} against ${axis.label}`;
      const drawn = shown.flatMap(([strategy, same]) => this.linesOf(strategy, looks.get(strategy), same, column));
      const empty = runs.length && !has(this.axis) ? `These runs have no ${axis.label}.` : "Nothing was evaluated yet.";
      chart.set({ lines: drawn, x: axis, y }, empty);
    });
  }

  /** Adds measures to choose from, once they are known. */
  offer(columns) {
    for (const select of this.choices) {
      const offered = new Set([...select.options].map((one) => one.value));
      select.append(...columns.filter((one) => !offered.has(one)).map((value) => el("option", { value, text: measureOf(value).name })));
    }
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

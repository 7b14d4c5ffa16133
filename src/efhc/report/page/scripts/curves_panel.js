// Accuracy and consensus of all runs of the group, against what one switch says.
import { Chart } from "./chart.js";
import { choice, el, radioSwitch } from "./dom.js";
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
    this.isAxisChosen = false;
    const zoom = { range: null, changed: () => this.charts.forEach((chart) => chart.redraw()) };
    this.zoom = zoom;
    this.charts = FIRST.map(() => new Chart("", zoom));
    this.choices = FIRST.map((column, n) => this.measureChoice(column, n));
    this.legend = new StrategyLegend(() => this.draw());
    this.element = el(
      "section",
      { class: "curves", "aria-label": "Curves" },
      el("div", { class: "bar" }, this.axisSwitch(), this.legend.element),
      ...this.charts.map((chart, n) => el("figure", {}, el("figcaption", {}, this.choices[n], chart.tools), chart.element)),
    );
    store.watch(["curves", "group", "choice", "tree", "theme"], (changes) => {
      if (changes.has("group")) this.begin();
      this.draw();
    });
  }

  begin() {
    this.zoom.range = null;
    const first = this.store.currentGroup?.kind === "nodes" ? OF_NODES : FIRST;
    if (!this.isChosen) this.choices.forEach((choice, n) => (choice.value = first[n]));
  }

  measureChoice(column, n) {
    return choice({
      class: "measure",
      label: n ? "What the lower curves show" : "What the upper curves show",
      options: COMMON.map((one) => [one, measureOf(one).name]),
      value: column,
      changed: () => {
        this.isChosen = true;
        this.draw();
      },
    });
  }

  axisSwitch() {
    return radioSwitch({
      name: "axis",
      label: "Show curves against",
      options: Object.fromEntries(AXES.map((axis) => [axis, measureOf(axis).name])),
      value: this.axis,
      changed: (value) => {
        this.isAxisChosen = true;
        this.setAxis(value);
        this.draw();
      },
    });
  }

  setAxis(axis) {
    if (axis !== this.axis) this.zoom.range = null;
    this.axis = axis;
    this.element.querySelector(`[name="axis"][value="${axis}"]`).checked = true;
  }

  /** Event-driven runs and nodes have their own seconds, and no transmission time: until the reader chooses, seconds come first. */
  chooseAxis(strategies) {
    if (this.isAxisChosen || !strategies.size) return;
    const has = (column) => [...strategies.values()].flat().some(({ curve }) => curve[column]?.some((value) => value !== null));
    this.setAxis(!has("transmission_time") && has("seconds") ? "seconds" : "k");
  }

  /** Strategies with their runs that have a curve, in the order of the tree. */
  get strategies() {
    const found = new Map();
    for (const run of this.store.currentGroup?.runs ?? []) {
      const curve = this.store.lines[run.id];
      if (!curve?.k?.length) continue;
      if (!found.has(run.strategy)) found.set(run.strategy, []);
      found.get(run.strategy).push({ run, curve });
    }
    return found;
  }

  draw() {
    const { strategies } = this;
    this.chooseAxis(strategies);
    this.offer(furtherColumns([...strategies.values()].flat().map(({ curve }) => curve)));
    const axis = measureOf(this.axis);
    const looks = looksOf(this.store.currentGroup?.strategies ?? []);
    this.legend.set(new Map([...strategies.keys()].map((name) => [name, looks.get(name)])));
    this.charts.forEach((chart, n) => {
      const column = this.choices[n].value;
      const measure = measureOf(column);
      const content = { lines: [], x: axis, y: measure };
      for (const [strategy, runs] of strategies) {
        if (!this.legend.isShown(strategy)) continue;
        this.add(content, strategy, looks.get(strategy), runs, column);
      }
      chart.name(`${measure.name} against ${axis.label}`);
      chart.set(content, this.whyEmpty(strategies));
    });
  }

  /** Adds measures to choose from, once they are known. */
  offer(columns) {
    for (const select of this.choices) {
      const offered = new Set([...select.options].map((one) => one.value));
      select.append(...columns.filter((one) => !offered.has(one)).map((value) => el("option", { value, text: measureOf(value).name })));
    }
  }

  whyEmpty(strategies) {
    const isKnown = [...strategies.values()].flat().some(({ curve }) => curve[this.axis]?.some((value) => value !== null));
    return strategies.size && !isKnown ? `These runs have no ${measureOf(this.axis).label}.` : "Nothing was evaluated yet.";
  }

  add(content, strategy, look, runs, column) {
    const isAlone = runs.length === 1;
    const mean = isAlone ? null : averaged(runs.map(({ curve }) => curve), this.axis, column);
    for (const { run, curve } of runs) {
      const isChosen = run.id === this.store.run;
      content.lines.push({
        name: isAlone ? strategy : `${strategy}, seed ${run.seed}`,
        ...look,
        dash: isAlone ? look.dash : [],
        width: isAlone ? (isChosen ? 2.6 : 1.8) : isChosen ? 1.6 : 0.8,
        alpha: isAlone || isChosen ? 1 : 0.45,
        x: curve[this.axis] ?? [],
        y: curve[column] ?? [],
        isRead: isAlone || isChosen || !mean,
      });
    }
    if (!mean) return;
    content.lines.push({ name: `${strategy}, mean of ${runs.length}`, ...look, width: 2.2, ...mean, isRead: true, endsThere: true });
  }
}

/** Mean, lowest and highest value over seeds, up to the last place that all seeds reached; null if there is none. */
function averaged(curves, axis, column) {
  const known = curves.map((curve) => points(curve[axis] ?? [], curve[column] ?? [])).filter((one) => one.x.length);
  if (known.length < 2 || known.length < curves.length) return null;
  const last = Math.min(...known.map((one) => one.x[one.x.length - 1]));
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
  const kept = { x: [], y: [] };
  for (let n = 0; n < xs.length; n++) {
    if (xs[n] === null || ys[n] === null || ys[n] === undefined) continue;
    kept.x.push(xs[n]);
    kept.y.push(ys[n]);
  }
  return kept;
}

function interpolated({ x, y }, places) {
  let n = 0;
  return places.map((place) => {
    while (n < x.length - 2 && x[n + 1] < place) n++;
    const width = x[n + 1] - x[n];
    return width > 0 ? y[n] + ((place - x[n]) / width) * (y[n + 1] - y[n]) : y[n];
  });
}

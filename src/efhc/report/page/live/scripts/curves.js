// Accuracy and consensus of all runs of the group, against what one switch says.
import { Chart } from "./chart.js";
import { el } from "./dom.js";
import { accuracyWords, digits, duration, short, whole } from "./format.js";
import { strategyLooks, swatch } from "./looks.js";
import { theme } from "./canvas.js";

const AXES = {
  k: { name: "Iterations", label: "iteration", words: short, full: whole },
  transmission_time: { name: "Transmission time", label: "transmission time", words: short, full: (value) => digits(value, 5) },
  bits: { name: "Bits", label: "bits on air", words: short, full: whole },
  seconds: { name: "Seconds", label: "seconds", words: short, full: (value) => `${digits(value, 4)} (${duration(value)})` },
};

const MEASURES = {
  accuracy: { name: "Accuracy", label: "mean of the devices", words: short, full: accuracyWords },
  mean_model_accuracy: { name: "Accuracy of the mean model", label: "accuracy", words: short, full: accuracyWords },
  accuracy_min: { name: "Accuracy of the worst device", label: "accuracy", words: short, full: accuracyWords },
  consensus_error: { name: "Consensus error", label: "spread of the models", words: short, full: (value) => digits(value, 4), mayStretch: true },
  train_loss: { name: "Training loss", label: "loss", words: short, full: (value) => digits(value, 4), mayStretch: true },
  broadcasts: { name: "Broadcasts", label: "broadcasts so far", words: short, full: whole },
  transmission_time: { name: "Transmission time", label: "time so far", words: short, full: (value) => digits(value, 5) },
};
const FIRST = ["accuracy", "consensus_error"];
const OF_NODES = ["train_loss", "broadcasts"]; // nodes do not evaluate

const PLACES = 160;

export class Curves {
  constructor(store) {
    this.store = store;
    this.axis = "k";
    this.hidden = new Set();
    const zoom = { range: null, changed: () => this.charts.forEach((chart) => chart.redraw()) };
    this.zoom = zoom;
    this.charts = FIRST.map(() => new Chart("", zoom));
    this.choices = FIRST.map((column, n) => this.measureChoice(column, n));
    this.legend = el("div", { class: "legend", role: "group", "aria-label": "Strategies; press to hide or show" });
    this.element = el(
      "section",
      { class: "curves", "aria-label": "Curves" },
      el("div", { class: "bar" }, this.axisSwitch(), this.legend),
      ...this.charts.map((chart, n) => el("figure", {}, el("figcaption", {}, this.choices[n]), chart.element)),
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
    const select = el("select", { class: "measure", "aria-label": n ? "What the lower curves show" : "What the upper curves show" });
    for (const [value, measure] of Object.entries(MEASURES)) select.append(el("option", { value, text: measure.name }));
    select.value = column;
    select.addEventListener("change", () => {
      this.isChosen = true;
      this.draw();
    });
    return select;
  }

  axisSwitch() {
    const group = el("fieldset", { class: "switch" }, el("legend", { class: "unseen", text: "Show curves against" }));
    for (const [value, axis] of Object.entries(AXES)) {
      const input = el("input", { type: "radio", name: "axis", value, checked: value === this.axis });
      input.addEventListener("change", () => {
        this.axis = value;
        this.zoom.range = null;
        this.draw();
      });
      group.append(el("label", {}, input, el("span", { text: axis.name })));
    }
    return group;
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
    const looks = strategyLooks((this.store.currentGroup?.runs ?? []).map((run) => run.strategy));
    this.drawLegend([...strategies.keys()], looks);
    this.charts.forEach((chart, n) => {
      const column = this.choices[n].value;
      const measure = MEASURES[column];
      const content = { lines: [], bands: [], x: AXES[this.axis], y: measure };
      for (const [strategy, runs] of strategies) {
        if (this.hidden.has(strategy)) continue;
        this.add(content, strategy, looks.get(strategy), runs, column);
      }
      chart.name(`${measure.name} against ${AXES[this.axis].label}`);
      chart.set(content, this.whyEmpty(strategies));
    });
  }

  whyEmpty(strategies) {
    const isKnown = [...strategies.values()].flat().some(({ curve }) => curve[this.axis]?.some((value) => value !== null));
    return strategies.size && !isKnown ? `These runs have no ${AXES[this.axis].label}.` : "Nothing was evaluated yet.";
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
    content.bands.push({ color: look.color, x: mean.x, low: mean.low, high: mean.high });
    content.lines.push({ name: `${strategy}, mean of ${runs.length}`, ...look, width: 2.2, x: mean.x, y: mean.mean, isRead: true, endsThere: true });
  }

  drawLegend(names, looks) {
    const key = JSON.stringify([names, [...this.hidden], theme.isDark]);
    if (key === this.legendKey) return;
    this.legendKey = key;
    const focused = document.activeElement?.dataset?.strategy;
    this.legend.replaceChildren(
      ...names.map((name) =>
        el(
          "button",
          { type: "button", "aria-pressed": String(!this.hidden.has(name)), "data-strategy": name, onclick: () => this.toggle(name) },
          swatch(looks.get(name), theme.isDark),
          el("span", { text: name }),
        ),
      ),
    );
    if (focused) [...this.legend.children].find((button) => button.dataset.strategy === focused)?.focus();
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.draw();
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
    mean: over((values) => values.reduce((sum, value) => sum + value, 0) / values.length),
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

// Tables of the runs of the group, of the evaluations of the run, and of its devices.
import { el } from "./dom.js";
import { accuracyWords, digits, duration, labelWords, short, whole } from "./format.js";
import { isSample } from "./store.js";
import { SortableTable } from "./table.js";

const HEADINGS = {
  k: "iteration",
  accuracy_min: "accuracy, worst device",
  accuracy_max: "accuracy, best device",
  mean_model_accuracy: "accuracy, mean model",
  train_loss: "training loss",
  bits: "bits on air",
  fired: "times fired",
  fired_in_sample: "fired in the sample",
};

/** The words for people. Exports have the names themselves. */
const heading = (name) => HEADINGS[name] ?? name.replaceAll("_", " ");
const number = (name, value, words = (one) => digits(one, 4)) => ({ name, heading: heading(name), value, words });
const text = (name, value) => ({ name, heading: heading(name), value, isText: true });
const of = (column) => (row) => row[column] ?? null;

const EVALUATED = [
  number("k", of("k"), whole),
  number("accuracy", of("accuracy"), accuracyWords),
  number("accuracy_min", of("accuracy_min"), accuracyWords),
  number("accuracy_max", of("accuracy_max"), accuracyWords),
  number("mean_model_accuracy", of("mean_model_accuracy"), accuracyWords),
  number("consensus_error", of("consensus_error")),
  number("train_loss", of("train_loss")),
  number("transmission_time", of("transmission_time"), short),
  number("bits", of("bits"), short),
  number("broadcasts", of("broadcasts"), whole),
  number("seconds", of("seconds"), (value) => digits(value, 4)),
];

const DEVICE = [
  number("device", ({ device }) => device.device, String),
  number("bandwidth", ({ device }) => device.bandwidth, (value) => digits(value, 5)),
  number("samples", ({ device }) => device.samples, whole),
  text("labels", ({ device }) => (device.labels?.length ? labelWords(device.labels) : null)),
  number("neighbours", of("degree"), whole),
  number("accuracy", of("accuracy"), accuracyWords),
  number("drift", of("drift")),
  number("threshold", of("threshold")),
];
/** How many times a device fired: in all, or in a sample of the iterations, which is no total. */
const FIRED = [number("fired", of("fired"), whole)];
const FIRED_IN_SAMPLE = [number("fired_in_sample", of("fired"), whole), number("sampled_iterations", of("iterations"), whole)];

export class TablesPanel {
  constructor(store) {
    this.store = store;
    const runs = new SortableTable({
      caption: "Runs of this group",
      file: () => `${fileName(store.currentGroup?.name)}-runs`,
      choose: ({ run }) => store.choose(store.group, run.id),
      isCurrent: ({ run }) => run.id === store.run,
      columns: [
        text("strategy", ({ run }) => run.strategy),
        number("seed", ({ run }) => run.seed, String),
        text("state", ({ run }) => run.state),
        number("iterations", ({ run }) => run.k, whole),
        number("accuracy", ({ run }) => run.accuracy, accuracyWords),
        ...["mean_model_accuracy", "consensus_error", "transmission_time", "bits", "broadcasts", "seconds"].map((column) =>
          number(column, ({ curve }) => curve?.[column]?.at(-1) ?? null, column === "broadcasts" ? whole : column === "mean_model_accuracy" ? accuracyWords : column === "seconds" ? duration : short),
        ),
      ],
    });
    const evaluations = new SortableTable({ caption: "Evaluations of this run", columns: EVALUATED, file: () => this.runFile("evaluations") });
    const devices = (fired) =>
      new SortableTable({
        caption: "Devices of this run",
        file: () => this.runFile("devices"),
        choose: ({ n }) => store.chooseDevice(n),
        isCurrent: ({ n }) => n === store.device,
        columns: [...DEVICE, ...fired],
      });
    const [inAll, inSample] = [devices(FIRED), devices(FIRED_IN_SAMPLE)];
    this.tables = {
      Runs: () => [runs, this.runRows()],
      Evaluations: () => [evaluations, this.evaluationRows()],
      Devices: () => [this.store.shown && isSample(this.store.shown.events) ? inSample : inAll, this.deviceRows()],
    };
    this.shown = "Runs";
    this.place = el("div");
    this.tools = el("span");
    this.exact = el("a", { class: "quiet", text: "metrics.csv", download: true, hidden: true });
    this.element = el("section", { class: "tables", "aria-label": "Tables" }, el("div", { class: "bar" }, this.tableSwitch(), this.exact, this.tools), this.place);
    store.watch(["tree", "choice", "curves"], () => this.shown !== "Devices" && this.draw());
    store.watch(["detail", "device", "samples", "events", "network"], () => this.shown === "Devices" && this.draw());
  }

  runFile(what) {
    const run = this.store.currentRun;
    return `${fileName(this.store.currentGroup?.name)}-${fileName(run?.strategy)}-seed${run?.seed}-${what}`;
  }

  tableSwitch() {
    const group = el("fieldset", { class: "switch" }, el("legend", { class: "unseen", text: "Table" }));
    for (const name of Object.keys(this.tables)) {
      const input = el("input", { type: "radio", name: "table", value: name, checked: name === this.shown });
      input.addEventListener("change", () => {
        this.shown = name;
        this.draw();
      });
      group.append(el("label", {}, input, el("span", { text: name })));
    }
    return group;
  }

  draw() {
    const [table, rows] = this.tables[this.shown]();
    if (this.place.firstChild !== table.element) {
      this.place.replaceChildren(table.element);
      this.tools.replaceChildren(table.tools);
    }
    table.set(rows);
    const address = this.shown === "Evaluations" && this.store.run ? this.store.source.address(this.store.run, "metrics.csv") : null;
    this.exact.hidden = !address;
    if (address) this.exact.href = address;
  }

  runRows() {
    return (this.store.currentGroup?.runs ?? []).map((run) => ({ run, curve: this.store.lines[run.id] }));
  }

  evaluationRows() {
    const curve = this.store.lines[this.store.run] ?? this.store.shown?.curve;
    const names = Object.keys(curve ?? {});
    const rows = (curve?.k ?? []).map((_, n) => Object.fromEntries(names.map((name) => [name, curve[name][n]])));
    return rows.reverse(); // the newest first
  }

  deviceRows() {
    const { shown } = this.store;
    if (!shown) return [];
    const { samples, events, network } = shown;
    const fired = new Map();
    for (const some of events.fired) for (const device of some) fired.set(device, (fired.get(device) ?? 0) + 1);
    const degrees = new Map();
    for (const link of network.at(-1)?.links ?? []) for (const device of link) degrees.set(device, (degrees.get(device) ?? 0) + 1);
    const now = (column, n) => column.at(-1)?.[n] ?? null;
    return shown.devices.map((device, n) => ({
      n,
      device,
      degree: network.length ? (degrees.get(n) ?? 0) : null,
      accuracy: now(samples.accuracy, n),
      drift: now(samples.drift, n),
      threshold: now(samples.threshold, n),
      fired: events.k.length ? (fired.get(n) ?? 0) : null,
      iterations: events.k.length,
    }));
  }
}

function fileName(words) {
  return String(words ?? "runs").replace(/[^\w.-]+/g, "_").slice(0, 80);
}

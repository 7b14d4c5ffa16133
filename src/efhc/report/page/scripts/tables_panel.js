// Tables of the runs of the group, of the evaluations of the run, and of its devices.
import { el, radioSwitch } from "./dom.js";
import { accuracyWords, digits, duration, fileName, labelWords, whole } from "./format.js";
import { furtherColumns, measureOf } from "./measures.js";
import { SortableTable } from "./table.js";

// Exports have the names themselves.
const number = (name, value, words = digits) => ({ name, heading: measureOf(name).heading, value, words });
const text = (name, value) => ({ name, heading: measureOf(name).heading, value, isText: true });
const of = (column) => (row) => row[column] ?? null;

const EVALUATED = ["k", "accuracy", "accuracy_min", "accuracy_max", "mean_model_accuracy", "consensus_error", "train_loss", "transmission_time", "bits", "broadcasts", "seconds"];
const AT_END = ["mean_model_accuracy", "consensus_error", "transmission_time", "bits", "broadcasts"];

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
  static order = 6;

  constructor(store) {
    this.store = store;
    const last = (column) => ({ curve }) => curve?.[column]?.at(-1) ?? null;
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
        ...AT_END.map((column) => number(column, last(column), measureOf(column).cell)),
        number("seconds", last("seconds"), duration),
      ],
    });
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
      Evaluations: () => [this.evaluations(), this.evaluationRows()],
      Devices: () => [this.store.shown?.is_sample ? inSample : inAll, this.deviceRows()],
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
    const options = Object.fromEntries(Object.keys(this.tables).map((name) => [name, name]));
    return radioSwitch({
      name: "table",
      label: "Table",
      options,
      value: this.shown,
      changed: (name) => {
        this.shown = name;
        this.draw();
      },
    });
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

  /** The table of evaluations, with a column for each metric that the run has. */
  evaluations() {
    const columns = [...EVALUATED, ...furtherColumns([this.store.curve])];
    if (columns.length !== this.evaluated?.columns.length) {
      this.evaluated = new SortableTable({
        caption: "Evaluations of this run",
        columns: columns.map((name) => number(name, of(name), measureOf(name).cell)),
        file: () => this.runFile("evaluations"),
      });
    }
    return this.evaluated;
  }

  evaluationRows() {
    const { curve } = this.store;
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
    for (const link of network.links.at(-1) ?? []) for (const device of link) degrees.set(device, (degrees.get(device) ?? 0) + 1);
    const now = (column, n) => column.at(-1)?.[n] ?? null;
    return shown.devices.map((device, n) => ({
      n,
      device,
      degree: network.k.length ? (degrees.get(n) ?? 0) : null,
      accuracy: now(samples.accuracy, n),
      drift: now(samples.drift, n),
      threshold: now(samples.threshold, n),
      fired: events.k.length ? (fired.get(n) ?? 0) : null,
      iterations: events.k.length,
    }));
  }
}

// Tables of the runs of the group, of the evaluations of the run, and of its devices.
import { el, radioSwitch } from "./dom.js";
import { accuracyWords, counted, digits, duration, fileName, labelWords, whole } from "./format.js";
import { COMMON, furtherColumns, measureOf, relatives } from "./measures.js";
import { SortableTable, number, text } from "./table.js";

const measured = (name) => number(name, measureOf(name).cell, (row) => row[name]);
const EVALUATED = [...COMMON, "seconds"];
const RUN = [text("strategy"), number("seed", String), text("state"), number("iterations", whole, ({ k }) => k)];
const RUN_AT_END = [...COMMON.map(measured), number("seconds", duration)];
const DEVICE = [
  number("device", String),
  number("bandwidth", (value) => digits(value, 5)),
  number("samples", whole),
  text("labels", ({ labels }) => (labels?.length ? labelWords(labels) : null)),
  number("neighbours", whole),
  number("accuracy", accuracyWords),
  number("own_accuracy", accuracyWords),
  number("drift"),
  number("threshold"),
];
/** How many times a device fired: in all, or in a sample of the iterations, which is no total. */
const FIRED = [number("fired", whole)];
const FIRED_IN_SAMPLE = [number("fired_in_sample", whole, ({ fired }) => fired), number("sampled_iterations", whole)];

export class TablesPanel {
  static order = 6;

  constructor(store) {
    this.store = store;
    const group = () => fileName(store.currentGroup?.name);
    const run = () => `${group()}-${fileName(store.currentRun?.strategy)}-seed${store.currentRun?.seed}`;
    this.kinds = {
      Runs: {
        caption: "Runs of this group",
        file: () => `${group()}-runs`,
        columns: () => [...RUN, ...this.measured, ...RUN_AT_END],
        rows: () => this.runRows(),
        choose: ({ id }) => store.choose(store.group, id),
        isCurrent: ({ id }) => id === store.run,
      },
      Evaluations: {
        caption: "Evaluations of this run",
        file: () => `${run()}-evaluations`,
        columns: () => [measured("k"), ...this.measured, ...[...EVALUATED, ...furtherColumns([store.curve])].map(measured)],
        rows: () => this.evaluationRows(),
      },
      Devices: {
        caption: "Devices of this run",
        file: () => `${run()}-devices`,
        columns: () => [...DEVICE, ...(store.shown?.is_sample ? FIRED_IN_SAMPLE : FIRED)],
        rows: () => (store.shown ? this.deviceRows(store.shown) : []),
        choose: ({ n }) => store.chooseDevice(n),
        isCurrent: ({ n }) => n === store.device,
      },
    };
    this.tables = {}; // by kind, with the columns that the run has
    this.shown = "Runs";
    this.place = el("div");
    this.tools = el("span");
    this.exact = el("a", { class: "quiet", text: "metrics.csv", download: true, hidden: true });
    const kinds = radioSwitch({
      name: "table",
      label: "Table",
      options: Object.keys(this.kinds).map((name) => [name, name]),
      value: this.shown,
      changed: (name) => {
        this.shown = name;
        this.draw();
      },
    });
    this.element = el("section", { class: "tables", "aria-label": "Tables" }, el("div", { class: "bar" }, kinds, this.exact, this.tools), this.place);
    store.watch(["tree", "choice", "curves", "measure"], () => this.shown !== "Devices" && this.draw());
    store.watch(["detail", "device", "samples", "events", "network"], () => this.shown === "Devices" && this.draw());
  }

  draw() {
    const { columns, rows, ...options } = this.kinds[this.shown];
    const names = columns().map(({ name }) => name).join();
    if (names !== this.tables[this.shown]?.names) this.tables[this.shown] = Object.assign(new SortableTable({ ...options, columns: columns() }), { names });
    const table = this.tables[this.shown];
    if (this.place.firstChild !== table.element) {
      this.place.replaceChildren(table.element);
      this.tools.replaceChildren(table.tools);
    }
    table.set(rows());
    const address = this.shown === "Evaluations" && this.store.run ? this.store.source.address(this.store.run, "metrics.csv") : null;
    this.exact.hidden = !address;
    if (address) this.exact.href = address;
  }

  /** The columns of what the measure of the page is about. */
  get measured() {
    return relatives(this.store.measureOf()).map(measured);
  }

  runRows() {
    const { currentGroup, lines } = this.store;
    const last = (curve) => Object.fromEntries(EVALUATED.map((column) => [column, curve?.[column]?.at(-1)]));
    return (currentGroup?.runs ?? []).map((run) => ({ ...run, ...last(lines[run.id]), ...run.latest }));
  }

  evaluationRows() {
    const columns = Object.entries(this.store.curve ?? {});
    const rows = (this.store.curve?.k ?? []).map((_, n) => Object.fromEntries(columns.map(([name, values]) => [name, values[n]])));
    return rows.reverse(); // the newest first
  }

  deviceRows({ devices, events, network, samples }) {
    const fired = counted(events.fired.flat());
    const neighbours = counted((network.links.at(-1) ?? []).flat());
    const now = (column, n) => column.at(-1)?.[n];
    return devices.map((device, n) => ({
      ...device,
      n,
      neighbours: network.k.length ? (neighbours.get(n) ?? 0) : null,
      accuracy: now(samples.accuracy, n),
      own_accuracy: now(samples.own_accuracy, n),
      drift: now(samples.drift, n),
      threshold: now(samples.threshold, n),
      fired: events.k.length ? (fired.get(n) ?? 0) : null,
      sampled_iterations: events.k.length,
    }));
  }
}

// One device: what is known of it at the moment, and its drift against its threshold.
import { Chart } from "./chart.js";
import { el, setFacts } from "./dom.js";
import { lastUpTo } from "./axes.js";
import { accuracyWords, digits, isKnown, labelWords, plural, short, whole } from "./format.js";
import { measureOf } from "./measures.js";

const LINES = { threshold: { color: "#8a8f98", dash: [5, 3] }, drift: { color: "#0072B2", dash: [] } };

export class DevicePanel {
  static order = 4;

  constructor(store, moment) {
    Object.assign(this, { store, moment });
    this.number = el("input", { type: "number", min: 0, max: 0, value: 0, "aria-label": "Device", inputmode: "numeric" });
    this.number.addEventListener("change", () => {
      const last = (store.shown?.devices.length ?? 1) - 1;
      const device = Math.min(last, Math.max(0, Math.round(Number(this.number.value)) || 0));
      this.number.value = device;
      store.chooseDevice(device);
    });
    this.facts = el("dl", { class: "facts" });
    this.chart = new Chart("Drift against threshold");
    const note = el("span", { class: "note", text: "a device fires when its drift reaches its threshold; ticks show when" });
    this.element = el(
      "section",
      { class: "device", "aria-label": "Device" },
      el("div", { class: "device-about" }, el("h3", {}, el("span", { text: "Device " }), this.number), this.facts),
      this.chart.figure(el("span", { text: this.chart.title }), note),
    );
    store.watch(["run", "detail", "device", "samples", "events", "curves"], () => this.draw());
    store.watch(["moment"], () => {
      this.chart.setCursor(moment.at);
      this.drawFacts();
    });
  }

  draw() {
    const { shown, device } = this.store;
    this.element.hidden = !shown?.devices.length;
    if (this.element.hidden) return;
    this.number.max = shown.devices.length - 1;
    if (document.activeElement !== this.number) this.number.value = device;
    // On clocks of their own, devices may fire several times in one moment.
    this.firings = shown.events.fired.reduce((count, fired) => count + fired.filter((one) => one === device).length, 0);
    this.drawFacts();
    this.drawChart();
  }

  drawChart() {
    const { curve, device, shown } = this.store;
    const { samples, events } = shown;
    const { at, axis } = this.moment;
    const isTimed = axis.name === "seconds";
    const x = isTimed ? samples.k.map((k) => curve.seconds[lastUpTo(curve.k, k)] ?? null) : samples.k;
    const lines = Object.entries(LINES)
      .map(([name, look]) => ({ name, ...look, width: 1.8, x, y: samples[name].map((row) => row?.[device] ?? null), isRead: true }))
      .filter((line) => line.y.some(isKnown));
    const marks = lines.length ? axis.values.filter((_, n) => events.fired[n]?.includes(device)) : [];
    this.chart.set(
      {
        lines,
        marks,
        cursor: at,
        x: { ...measureOf(isTimed ? "seconds" : "k"), upTo: lines.length ? axis.values.at(-1) : null },
        y: { label: "", words: short, full: digits, fromZero: true, mayStretch: true },
      },
      samples.k.length ? "This strategy has no thresholds, and its drift was not measured." : "No samples of the devices are known of this run.",
    );
  }

  drawFacts() {
    const { shown, device } = this.store;
    const one = shown?.devices[device];
    if (!one) return;
    const { accuracy, own_accuracy: own, drift, threshold } = this.moment.sample;
    setFacts(this.facts, [
      ["accuracy", accuracyWords(accuracy?.[device])],
      ["on own data", accuracyWords(own?.[device])],
      ["worst device", this.ofAll("min")],
      ["10th percentile", this.ofAll("p10")],
      ["drift", digits(drift?.[device])],
      ["threshold", digits(threshold?.[device])],
      ["fired in", this.firedWords(shown)],
      ["bandwidth", digits(one.bandwidth, 5)],
      ["samples", whole(one.samples)],
      ["labels", one.labels?.length ? labelWords(one.labels) : "–"],
    ]);
  }

  /** A statistic of the accuracies of all devices at the moment, on the global test set and on their own data. */
  ofAll(statistic) {
    const { curve = {} } = this.store;
    const n = lastUpTo(curve.k ?? [], (this.moment.k ?? Infinity) + 1);
    const both = ["accuracy", "own_accuracy"].map((name) => accuracyWords(curve[`${name}_${statistic}`]?.[n]));
    return both.filter((one) => one !== "–").join(", own ") || "–";
  }

  firedWords({ events, is_sample }) {
    if (!events.k.length) return "–";
    if (this.moment.times) return plural(this.firings, "step");
    return `${whole(this.firings)} of ${whole(events.k.length)}${is_sample ? " sampled" : ""} iterations`;
  }
}

// One device: what is known of it at the moment, and its drift against its threshold.
import { Chart } from "./chart.js";
import { el, setFacts } from "./dom.js";
import { lastUpTo } from "./axes.js";
import { accuracyWords, digits, labelWords, plural, short, whole } from "./format.js";
import { measureOf } from "./measures.js";

const DRIFT = "#0072B2";
const THRESHOLD = "#8a8f98";

export class DevicePanel {
  static order = 4;

  constructor(store, moment) {
    this.store = store;
    this.moment = moment;
    this.number = el("input", { type: "number", min: 0, max: 0, value: 0, "aria-label": "Device", inputmode: "numeric" });
    this.number.addEventListener("change", () => {
      const last = (store.shown?.devices.length ?? 1) - 1;
      const device = Math.min(last, Math.max(0, Math.round(Number(this.number.value)) || 0));
      this.number.value = device;
      store.chooseDevice(device);
    });
    this.facts = el("dl", { class: "facts" });
    this.chart = new Chart("Drift against threshold");
    this.element = el(
      "section",
      { class: "device", "aria-label": "Device" },
      el("div", { class: "device-about" }, el("h3", {}, el("span", { text: "Device " }), this.number), this.facts),
      el("figure", {}, el("figcaption", {}, el("span", { text: "Drift against threshold" }), el("span", { class: "note", text: "a device fires when its drift reaches its threshold; ticks show when" }), this.chart.tools), this.chart.element),
    );
    store.watch(["run", "detail", "device", "samples", "events", "theme"], () => this.draw());
    store.watch(["moment"], () => {
      this.chart.setCursor(moment.at);
      this.drawFacts();
    });
  }

  draw() {
    const { shown, device } = this.store;
    const has = Boolean(shown?.devices.length);
    this.element.hidden = !has;
    if (!has) return;
    this.number.max = shown.devices.length - 1;
    if (document.activeElement !== this.number) this.number.value = device;
    this.drawFacts();
    this.drawChart();
  }

  drawChart() {
    const { shown, device } = this.store;
    const { samples, events } = shown;
    const { axis } = this.moment;
    const { curve } = this.store;
    const x = axis.name === "seconds" ? samples.k.map((k) => curve.seconds[lastUpTo(curve.k, k)] ?? null) : samples.k;
    const of = (column) => column.map((row) => row?.[device] ?? null);
    const [drift, threshold] = [of(samples.drift), of(samples.threshold)];
    const lines = [];
    const has = (values) => values.some((value) => value !== null);
    if (has(threshold)) lines.push({ name: "threshold", color: THRESHOLD, dash: [5, 3], width: 1.8, x, y: threshold, isRead: true });
    if (has(drift)) lines.push({ name: "drift", color: DRIFT, dash: [], width: 1.8, x, y: drift, isRead: true });
    const marks = lines.length ? axis.values.filter((_, n) => events.fired[n]?.includes(device)) : [];
    const words = samples.k.length ? "This strategy has no thresholds, and its drift was not measured." : "No samples of the devices are known of this run.";
    this.chart.set(
      {
        lines,
        marks,
        cursor: this.moment.at,
        x: { ...measureOf(axis.name === "seconds" ? "seconds" : "k"), upTo: lines.length ? axis.values.at(-1) : null },
        y: { label: "", words: short, full: (value) => digits(value, 4), fromZero: true, mayStretch: true },
      },
      words,
    );
  }

  drawFacts() {
    const { shown, device } = this.store;
    const one = shown?.devices[device];
    if (!one) return;
    const { samples, events } = shown;
    const n = lastUpTo(samples.k, this.moment.k === null ? Infinity : this.moment.k + 1);
    const now = (column) => (n < 0 ? null : (column[n]?.[device] ?? null));
    const rows = [
      ["accuracy", accuracyWords(now(samples.accuracy))],
      ["drift", digits(now(samples.drift), 4)],
      ["threshold", digits(now(samples.threshold), 4)],
      ["fired in", this.firedWords(events, device)],
      ["bandwidth", digits(one.bandwidth, 5)],
      ["samples", whole(one.samples)],
      ["labels", one.labels?.length ? labelWords(one.labels) : "–"],
    ].filter(([, value]) => value !== "–");
    setFacts(this.facts, rows);
  }

  firedWords(events, device) {
    if (!events.k.length) return "–";
    if (this.firedOf !== events || this.firedBy !== device || this.firedUpTo !== events.k.length) {
      [this.firedOf, this.firedBy, this.firedUpTo] = [events, device, events.k.length];
      // On clocks of their own, devices may fire several times in one moment.
      this.firedCount = events.fired.reduce((count, fired) => count + fired.filter((one) => one === device).length, 0);
    }
    if (events.seconds?.[0] != null) return plural(this.firedCount, "step");
    return `${whole(this.firedCount)} of ${whole(events.k.length)}${this.store.shown.is_sample ? " sampled" : ""} iterations`;
  }
}

// The raster of the run, with the moment that is shown.
import { el, say } from "./dom.js";
import { digits, plural } from "./format.js";
import { RasterDrawing, firedShares } from "./raster.js";
import { isSample, lastUpTo } from "./store.js";

const MOST_COLUMNS = 600;

export class RasterPanel {
  constructor(store, moment) {
    this.store = store;
    this.moment = moment;
    this.drawing = new RasterDrawing({
      label: "Who fired when. The table of devices has the numbers.",
      seek: (k) => moment.go(Math.max(0, lastUpTo(moment.places, k))),
      choose: (row) => store.chooseDevice(this.order[row]),
    });
    this.note = el("span", { class: "note" });
    this.element = el("figure", { class: "firings" }, el("figcaption", {}, el("span", { text: "Who fired when" }), this.note), this.drawing.element);
    store.watch(["run", "detail", "events"], () => this.draw());
    store.watch(["moment"], () => this.drawing.setCursor(this.moment.k));
    store.watch(["device"], () => this.mark());
    store.watch(["theme"], () => this.drawing.redraw());
  }

  draw() {
    const { shown } = this.store;
    const has = Boolean(shown?.events.k.length && shown.devices.length);
    this.drawing.element.hidden = !has;
    if (!has) return say(this.note, shown ? "No events are known of this run." : "");
    const { devices, events } = shown;
    this.order = devices.map((_, n) => n).sort((one, other) => (devices[other].bandwidth ?? 0) - (devices[one].bandwidth ?? 0) || one - other);
    const rowOf = [];
    this.order.forEach((device, row) => (rowOf[device] = row));
    const [first, end] = [events.k[0], events.k[events.k.length - 1] + 1];
    // Samples are spread evenly, but not exactly: a column of two has hardly ever none.
    const most = isSample(events) ? Math.ceil(events.k.length / 2) : events.k.length;
    const columns = Math.max(1, Math.min(MOST_COLUMNS, most, end - first));
    const shares = firedShares(events, rowOf, devices.length, first, end, columns);
    this.drawing.set({
      rows: this.order.map((device) => ({ label: String(devices[device].device), name: name(devices[device]) })),
      shares,
      first,
      end,
    });
    const order = devices.some((one) => one.bandwidth !== null) ? "most bandwidth on top" : "";
    const sample = isSample(events) ? `${plural(events.k.length, "iteration")}, a sample` : plural(events.k.length, "iteration");
    const gaps = shares[0].some(Number.isNaN) ? "gaps: iterations that are not in the sample" : "";
    say(this.note, [order, sample, gaps].filter(Boolean).join("; "));
    this.mark();
  }

  mark() {
    if (this.order) this.drawing.setChosen(this.order.indexOf(this.store.device));
  }
}

function name(device) {
  return device.bandwidth === null ? `Device ${device.device}` : `Device ${device.device}, bandwidth ${digits(device.bandwidth, 5)}`;
}

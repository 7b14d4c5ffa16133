// Who fired when, and the moment that is shown.
import { el, setText } from "./dom.js";
import { digits, plural } from "./format.js";
import { Player } from "./player.js";
import { RasterDrawing, firedShares } from "./raster.js";
import { lastUpTo } from "./axes.js";

const MOST_COLUMNS = 600;

export class RasterPanel {
  static order = 3;

  constructor(store, moment) {
    Object.assign(this, { store, moment });
    this.drawing = new RasterDrawing({
      label: "Who fired when. The table of devices has the numbers.",
      seek: (at) => moment.go(Math.max(0, lastUpTo(moment.axis.values, at))),
      choose: (row) => store.chooseDevice(this.order[row]),
    });
    this.note = el("span", { class: "note" });
    const firings = this.drawing.figure(el("span", { text: "Who fired when" }), this.note);
    firings.className = "firings";
    this.element = el("section", { class: "time", "aria-label": "Time" }, new Player(store, moment).element, firings);
    store.watch(["run", "detail", "events"], () => this.draw());
    store.watch(["run"], () => this.drawing.leave()); // what was pointed at was of another run
    store.watch(["moment"], () => this.drawing.setCursor(this.moment.at));
    store.watch(["device"], () => this.mark());
  }

  draw() {
    const { shown } = this.store;
    const has = Boolean(shown?.events.k.length && shown.devices.length);
    this.drawing.element.hidden = !has;
    if (!has) return setText(this.note, shown ? "No events are known of this run." : "");
    const { devices, events } = shown;
    this.order = devices.map((_, n) => n).sort((one, other) => (devices[other].bandwidth ?? 0) - (devices[one].bandwidth ?? 0) || one - other);
    const rowOf = [];
    this.order.forEach((device, row) => (rowOf[device] = row));
    const times = this.moment.times; // of devices on their own clocks
    const [first, end] = times ? [0, times.at(-1)] : [events.k[0], events.k.at(-1) + 1];
    // Seconds and samples are spread evenly, but not exactly: a column of two has hardly ever none.
    const most = times || shown.is_sample ? Math.ceil(events.k.length / 2) : events.k.length;
    const columns = Math.max(1, Math.min(MOST_COLUMNS, most, times ? most : end - first));
    const shares = firedShares(times ?? events.k, events.fired, rowOf, devices.length, first, end, columns);
    this.drawing.set({
      rows: this.order.map((device) => ({ label: String(devices[device].device), name: name(devices[device]) })),
      shares,
      first,
      end,
      unit: times ? "seconds" : "iterations",
    });
    const order = devices.some((one) => one.bandwidth !== null) ? "most bandwidth on top" : "";
    const count = times ? `${digits(end, 4)} s, ${plural(events.k.length, "moment")}` : plural(events.k.length, "iteration");
    const sample = shown.is_sample ? `${count}, a sample` : count;
    const gaps = shares[0].some(Number.isNaN) && !times ? "gaps: iterations that are not in the sample" : times ? "blank: no step of the device" : "";
    setText(this.note, [order, sample, gaps].filter(Boolean).join("; "));
    this.mark();
  }

  mark() {
    if (this.order) this.drawing.setChosen(this.order.indexOf(this.store.device));
  }
}

function name(device) {
  return device.bandwidth === null ? `Device ${device.device}` : `Device ${device.device}, bandwidth ${digits(device.bandwidth, 5)}`;
}

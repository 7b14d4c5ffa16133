// The network of the run at the moment that is shown.
import { el, setText } from "./dom.js";
import { isKnown, plural, whole } from "./format.js";
import { FADE, NetworkDrawing, deviceWords, networkKey } from "./network.js";
import { lastUpTo } from "./axes.js";
import { measureOf, measures } from "./measures.js";

export class NetworkPanel {
  static order = 1;

  constructor(store, moment) {
    Object.assign(this, { store, moment });
    this.drawing = new NetworkDrawing({
      label: "Device of the network",
      describe: (device) => this.describe(device),
      choose: (device) => store.chooseDevice(device),
    });
    this.caption = el("span", { class: "note" });
    this.legend = el("div", { class: "drawing-key" });
    this.element = this.drawing.figure(el("span", { text: "Network" }), this.caption);
    this.element.className = "stage";
    this.element.append(this.legend);
    store.watch(["run", "detail"], () => this.begin());
    store.watch(["run", "detail", "samples", "events", "measure", "tree"], () => this.drawLegend());
    store.watch(["run", "detail", "moment", "network", "samples", "measure"], () => this.draw());
    store.watch(["device"], () => this.drawing.setChosen(store.device));
  }

  begin() {
    const { shown } = this.store;
    this.element.classList.toggle("is-waiting", !shown?.devices.length);
    if (!shown) return;
    const first = shown.network.links[0] ?? [];
    const key = `${shown.id} ${shown.devices.length} ${first.length}`;
    if (key !== this.key) this.drawing.setDevices(shown.devices, first);
    else this.drawing.devices = shown.devices;
    this.key = key;
    if (shown.devices.length) this.drawing.setChosen(this.store.device);
  }

  get links() {
    const { k, links } = this.store.shown.network;
    return links[Math.max(0, lastUpTo(k, this.moment.k ?? Infinity))] ?? [];
  }

  /** What the colours show: of the samples of the devices, that which the measure of the page is about. */
  get value() {
    const family = measures.get(this.store.measureOf())?.family;
    return this.store.shown?.samples[family]?.some(Boolean) ? family : "accuracy";
  }

  /** The colours keep their meaning: they span the accuracies of all times. */
  drawLegend() {
    const { shown } = this.store;
    if (!shown) return;
    this.range = accuracyRange(shown.samples.k, shown.samples[this.value]);
    const bandwidths = shown.devices.map((one) => one.bandwidth);
    const key = { value: measureOf(this.value).label, words: (one) => one.toFixed(2), range: this.range, bandwidths, isMoving: shown.events.k.length > 0 };
    this.legend.replaceChildren(...networkKey(key));
  }

  draw() {
    const { shown } = this.store;
    if (!shown?.devices.length) return setText(this.caption, "");
    const { devices, events } = shown;
    const { links } = this;
    const { place, sample } = this.moment;
    this.drawing.setLinks(links);
    this.drawing.setState({ values: sample[this.value], range: this.range ?? [0, 1], fired: events.fired[place] ?? [], trail: this.trail(events) });
    if (!events.k.length) return setText(this.caption, `${plural(devices.length, "device")}, ${plural(links.length, "link")}`);
    const fired = `${whole(new Set(events.fired[place]).size)} of ${plural(devices.length, "device")} fired`;
    const used = events.used[place]; // null: there was no room for them
    setText(this.caption, used ? `${fired}, ${whole(used.length)} of ${plural(links.length, "link")} used` : `${fired}; links in use are not drawn here`);
  }

  /** The links in use and, while the network moves, those that were used just before: they fade. */
  trail(events) {
    const { place, position, isMoving } = this.moment;
    const trail = [];
    for (let n = isMoving ? Math.max(0, place - FADE + 1) : place; n < place; n++) {
      trail.push({ links: events.used[n] ?? [], strength: 0.55 * Math.max(0, 1 - (position - n) / FADE) });
    }
    return [...trail, { links: events.used[place] ?? [], strength: 1 }];
  }

  describe(device) {
    const one = this.store.shown?.devices[device];
    if (!one) return ["no device"];
    const { label, full } = measureOf(this.value);
    const accuracy = this.moment.sample[this.value]?.[device];
    const more = [one.node?.state, isKnown(accuracy) && `${label} ${full(accuracy)}`].filter(Boolean);
    return deviceWords(one, device, this.links, more);
  }
}

/**
 * The range of the accuracies that are known, or null. The first tenth of the run, in which accuracies jump, does not
 * widen it: devices would hardly differ afterwards.
 */
function accuracyRange(k, accuracy) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of accuracy.slice(lastUpTo(k, (k.at(-1) ?? 0) / 10) + 1).flat().filter(isKnown)) {
    [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  return low <= high ? [low, high] : null;
}

// The network of the run at the moment that is shown.
import { el, say } from "./dom.js";
import { accuracyWords, digits, labelWords, plural, whole } from "./format.js";
import { FADE, NetworkDrawing, networkKey } from "./network.js";
import { lastUpTo } from "./axes.js";

export class NetworkPanel {
  static order = 1;

  constructor(store, moment) {
    this.store = store;
    this.moment = moment;
    this.drawing = new NetworkDrawing({
      label: "Device of the network",
      describe: (device) => this.describe(device),
      choose: (device) => store.chooseDevice(device),
    });
    this.caption = el("span", { class: "note" });
    this.legend = el("div", { class: "drawing-key" });
    this.element = el(
      "figure",
      { class: "stage" },
      el("figcaption", {}, el("span", { text: "Network" }), this.caption),
      this.drawing.element,
      this.legend,
    );
    store.watch(["run", "detail"], () => this.begin());
    store.watch(["moment", "network", "samples"], () => this.draw());
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
    this.legendKey = null;
    this.draw();
    if (shown.devices.length) this.drawing.setChosen(this.store.device);
  }

  get links() {
    const { k, links } = this.store.shown.network;
    return links[Math.max(0, lastUpTo(k, this.moment.k ?? Infinity))] ?? [];
  }

  /** The last sample of the devices up to the moment: nothing is known of what comes after it. */
  get sample() {
    const { samples } = this.store.shown;
    const n = lastUpTo(samples.k, this.moment.k === null ? Infinity : this.moment.k + 1);
    return n < 0 ? null : { accuracy: samples.accuracy[n], drift: samples.drift[n], threshold: samples.threshold[n] };
  }

  draw() {
    const { shown } = this.store;
    if (!shown?.devices.length) return say(this.caption, "");
    const { events, samples } = shown;
    const { links } = this;
    this.drawing.setLinks(links);
    const range = this.range(samples);
    const { place, position, isMoving } = this.moment;
    const has = events.k.length > 0;
    this.drawing.setState({
      values: this.sample?.accuracy ?? null,
      range: range ?? [0, 1],
      fired: has ? events.fired[place] : [],
      trail: has ? this.trail(events, place, position, isMoving) : [],
    });
    this.drawLegend(range);
    this.drawCaption(has, place, links);
  }

  trail(events, place, position, isMoving) {
    const trail = [];
    if (isMoving) {
      for (let n = Math.max(0, place - FADE + 1); n < place; n++) {
        trail.push({ links: events.used[n] ?? [], strength: 0.55 * Math.max(0, 1 - (position - n) / FADE) });
      }
    }
    trail.push({ links: events.used[place] ?? [], strength: 1 });
    return trail;
  }

  /**
   * The range of the accuracies that are known: a colour means the same at all times. The first tenth of the run, in
   * which accuracies jump, does not widen it: devices would hardly differ afterwards.
   */
  range(samples) {
    if (this.rangeOf !== samples || samples.k.length < this.ends.length) [this.rangeOf, this.ends] = [samples, []];
    while (this.ends.length < samples.k.length) {
      const known = (samples.accuracy[this.ends.length] ?? []).filter((value) => value !== null);
      this.ends.push([Math.min(...known), Math.max(...known)]);
    }
    const later = this.ends.slice(lastUpTo(samples.k, (samples.k.at(-1) ?? 0) / 10) + 1);
    const ends = [Math.min(...later.map(([low]) => low)), Math.max(...later.map(([, high]) => high))];
    return Number.isFinite(ends[0]) && Number.isFinite(ends[1]) ? ends : null;
  }

  drawLegend(range) {
    const { devices, events } = this.store.shown;
    const key = JSON.stringify([range, devices.length, events.k.length > 0]);
    if (key === this.legendKey) return;
    this.legendKey = key;
    const bandwidths = devices.map((one) => one.bandwidth);
    this.legend.replaceChildren(...networkKey({ value: "accuracy", words: (one) => one.toFixed(2), range, bandwidths, isMoving: events.k.length > 0 }));
  }

  drawCaption(has, place, links) {
    const { devices, events } = this.store.shown;
    const whom = `${plural(devices.length, "device")}, ${plural(links.length, "link")}`;
    if (!has) return say(this.caption, whom);
    const fired = `${whole(new Set(events.fired[place]).size)} of ${plural(devices.length, "device")} fired`;
    const used = events.used[place]; // null: there was no room for them
    say(this.caption, used ? `${fired}, ${whole(used.length)} of ${plural(links.length, "link")} used` : `${fired}; links in use are not drawn here`);
  }

  describe(device) {
    const { shown } = this.store;
    const one = shown?.devices[device];
    if (!one) return ["no device"];
    const { sample } = this;
    const degree = this.links.filter(([i, j]) => i === device || j === device).length;
    const lines = [`Device ${one.device}`];
    if (one.node?.state) lines.push(String(one.node.state));
    const accuracy = sample?.accuracy?.[device];
    if (accuracy !== undefined && accuracy !== null) lines.push(`accuracy ${accuracyWords(accuracy)}`);
    if (one.bandwidth !== null) lines.push(`bandwidth ${digits(one.bandwidth, 5)}`);
    lines.push(plural(degree, "neighbour"));
    if (one.samples !== null) lines.push(plural(one.samples, "sample"));
    if (one.labels?.length) lines.push(`labels ${labelWords(one.labels)}`);
    return lines;
  }
}

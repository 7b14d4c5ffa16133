// What the page knows: the tree of runs, what is chosen, and the data of the choice. Panels watch parts of it.
//
// The data come from a source: a server, whose events `tree`, `detail`, `delta` and `gone` are methods of the store, or
// the page itself.

import { measures } from "./measures.js";

const NO_ROWS = () => ({
  samples: { k: [], accuracy: [], own_accuracy: [], drift: [], threshold: [] },
  events: { k: [], fired: [], used: [], seconds: [] },
  network: { k: [], links: [] },
});

export class Store {
  constructor(source) {
    this.source = source;
    this.runs = null; // the tree, once it is known
    this.group = null;
    this.run = null;
    this.isPinned = false; // whether the reader chose the run
    this.lines = {}; // the curves of the group, by run
    this.shown = null; // the run that is shown, with its rows
    this.absence = null; // why there is none: "gone" or "missing"
    this.deleted = null; // the run that was shown until its files were deleted
    this.wanted = null; // the id of the run that the address of the page names
    this.isConnected = true;
    this.isRefused = false;
    this.device = 0;
    this.measure = null; // the measure that the reader chose
    this.watchers = [];
    this.changes = new Set();
  }

  /** Calls `work` in the next frame after any of the named parts has changed. */
  watch(parts, work) {
    this.watchers.push({ parts, work });
  }

  changed(...parts) {
    if (!this.changes.size) requestAnimationFrame(() => this.callWatchers());
    for (const part of parts) this.changes.add(part);
  }

  callWatchers() {
    const changes = this.changes;
    this.changes = new Set();
    for (const { parts, work } of this.watchers) {
      if (!parts.some((part) => changes.has(part))) continue;
      try {
        work(changes);
      } catch (error) {
        reportError(error); // one panel that fails must not stop the others
      }
    }
  }

  // Events of the source.

  tree(tree) {
    const before = this.currentRun;
    this.runs = tree;
    for (const one of tree.measures) measures.set(one.name, one);
    this.changed("tree");
    this.settle(before);
  }

  /** A run, in full or without its rows. The device that was chosen stays chosen. */
  detail({ curve, ...detail }) {
    if (detail.id !== this.run) return;
    const before = this.shown;
    const chosen = before?.devices[this.device]?.device;
    if (curve) this.lines[detail.id] = curve;
    this.shown = { ...NO_ROWS(), ...before, ...detail };
    this.absence = null;
    this.chooseDevice(Math.max(0, detail.devices.findIndex((one) => one.device === chosen)));
    this.changed("detail", "curves", ...(before ? [] : ["run"]), ...(detail.events ? Object.keys(NO_ROWS()) : []));
  }

  /** Of each column of a part, the first `start` entries stay, and these come after them. */
  delta({ id, part, start, columns }) {
    const [parts, name, change] = part === "curve" ? [this.lines, id, "curves"] : [this.shown, part, part];
    if (part !== "curve" && id !== this.shown?.id) return;
    if (!start) parts[name] = {};
    for (const [key, values] of Object.entries(columns)) {
      const column = (parts[name][key] ??= []);
      column.length = start;
      for (const value of values) column.push(value);
    }
    this.changed(change);
  }

  gone({ id }) {
    if (id === this.run) this.lost("gone");
  }

  lost(why) {
    this.shown = null;
    this.absence = why;
    this.changed("detail", "run");
  }

  connected(isConnected, isRefused = false) {
    if (isConnected === this.isConnected && isRefused === this.isRefused) return;
    [this.isConnected, this.isRefused] = [isConnected, isRefused];
    this.changed("connection");
  }

  // The choice.

  choose(group, run) {
    this.isPinned = true;
    this.deleted = null;
    this.changed("deleted");
    this.show(group, run);
  }

  chooseDevice(device) {
    if (device === this.device) return;
    this.device = device;
    this.changed("device");
  }

  /** The measure is that of the page: of the runs of all groups, their curves, devices and tables. */
  chooseMeasure(measure) {
    if (measure === this.measure) return;
    this.measure = measure;
    this.changed("measure");
  }

  /** The measure by which the runs of a group are shown, if they evaluate anything. */
  measureOf(group = this.currentGroup) {
    return group?.measure && measures.has(this.measure) ? this.measure : group?.measure;
  }

  get groups() {
    return this.runs?.groups ?? [];
  }

  get currentGroup() {
    return this.groups.find((one) => one.id === this.group);
  }

  get currentRun() {
    return this.currentGroup?.runs.find((one) => one.id === this.run);
  }

  /** The curve of the run, which grows while it is made. */
  get curve() {
    return this.lines[this.run];
  }

  show(group, run) {
    if (group === this.group && run === this.run) return;
    const isOther = group !== this.group;
    [this.group, this.run] = [group, run];
    if (isOther) this.lines = {};
    [this.shown, this.absence] = [null, null];
    this.changed("choice", "run", "detail", ...(isOther ? ["group", "curves"] : []));
    this.source.choose(group, run);
  }

  /**
   * Keeps the choice if it is still there. Until the reader chooses, the page goes along with what is running; if nothing
   * is, it begins with the group that was changed last.
   */
  settle(before) {
    const found = this.wanted && this.find(this.wanted);
    this.wanted = null;
    if (found) return this.choose(...found);
    const now = this.currentRun;
    if (now && (this.isPinned || now.state === "running")) return;
    if (before && !now) {
      this.deleted = before;
      this.isPinned = false;
      this.changed("deleted");
    }
    const latestFirst = [...this.groups].sort((one, other) => (other.changed ?? 0) - (one.changed ?? 0));
    const everything = latestFirst.flatMap((group) => group.runs.map((run) => [group.id, run.id, run.state]));
    const [group, run] = everything.find(([, , state]) => state === "running") ?? (now ? [this.group, this.run] : (everything[0] ?? [null, null]));
    this.show(group, run);
  }

  /** The ids of the group and the run with the id of a run. */
  find(id) {
    const group = this.groups.find(({ runs }) => runs.some((run) => run.id === id));
    return group && [group.id, id];
  }
}

/** The data are in the page. */
export class EmbeddedSource {
  isLive = false;

  constructor(data) {
    this.data = data;
  }

  start(store) {
    this.store = store;
    store.tree(this.data.tree);
  }

  choose(group, run) {
    for (const [id, columns] of Object.entries(this.data.curves[group] ?? {})) this.store.delta({ id, part: "curve", start: 0, columns });
    const detail = this.data.details[run];
    if (detail) this.store.detail(detail);
    else if (run) this.store.lost("missing");
  }

  address() {
    return null;
  }
}

const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;

/** The data come from a server. A stream begins with everything that is known of the choice. */
export class LiveSource {
  isLive = true;
  words = "";
  wait = FIRST_WAIT;

  start(store) {
    this.store = store;
    this.listen();
  }

  choose(group, run) {
    this.words = new URLSearchParams(Object.entries({ group, run }).filter(([, id]) => id));
    this.listen();
  }

  listen() {
    this.stream?.close();
    clearTimeout(this.due);
    const stream = (this.stream = new EventSource(`api/stream?${this.words}`));
    for (const name of ["tree", "detail", "delta", "gone"]) {
      stream.addEventListener(name, (event) => stream === this.stream && this.store[name](JSON.parse(event.data)));
    }
    stream.addEventListener("open", () => {
      this.store.connected(true);
      this.wait = FIRST_WAIT;
    });
    stream.addEventListener("error", async () => {
      if (stream !== this.stream) return;
      this.store.connected(false);
      if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      const answer = await fetch("api/tree", { cache: "no-store" }).catch(() => null);
      if (stream !== this.stream) return;
      this.store.connected(false, answer?.status === 401 || answer?.status === 403);
      this.due = setTimeout(() => this.listen(), this.wait);
      this.wait = Math.min(LONGEST_WAIT, 2 * this.wait);
    });
  }

  /** Where the exact file lies: the numbers on the page are rounded. */
  address(run, file) {
    return `api/runs/${encodeURIComponent(run)}/${file}`;
  }
}

// What the page knows: the tree of runs, what is chosen, and the data of the choice. Panels watch parts of it.
//
// The data come from a source: a server, whose events `tree`, `detail`, `delta` and `gone` are methods of the store, or
// the page itself.

const NO_ROWS = () => ({
  samples: { k: [], accuracy: [], drift: [], threshold: [] },
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
    this.isConnected = true;
    this.isRefused = false;
    this.device = 0;
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
    for (const { parts, work } of this.watchers) if (parts.some((part) => changes.has(part))) work(changes);
  }

  // Events of the source.

  tree(tree) {
    const before = this.currentRun;
    this.runs = tree;
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

  delta({ id, part, start, columns }) {
    if (part !== "curve" && id !== this.shown?.id) return;
    const parts = part === "curve" ? this.lines : this.shown;
    const name = part === "curve" ? id : part;
    parts[name] = extended(start ? parts[name] : {}, start, columns);
    this.changed(part === "curve" ? "curves" : part);
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

  get groups() {
    return this.runs?.groups ?? [];
  }

  get currentGroup() {
    return this.groups.find((one) => one.id === this.group) ?? null;
  }

  get currentRun() {
    return this.currentGroup?.runs.find((one) => one.id === this.run) ?? null;
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
    const found = this.find(this.wanted?.());
    this.wanted = null;
    if (found) {
      this.isPinned = true;
      return this.show(found.group.id, found.run.id);
    }
    const isThere = this.currentRun !== null;
    if (isThere && (this.isPinned || this.currentRun.state === "running")) return;
    if (before && !isThere) {
      this.deleted = before;
      this.isPinned = false;
      this.changed("deleted");
    }
    const latestFirst = [...this.groups].sort((one, other) => (other.changed ?? 0) - (one.changed ?? 0));
    const everything = latestFirst.flatMap((group) => group.runs.map((run) => ({ group, run })));
    const best = everything.find(({ run }) => run.state === "running") ?? (isThere ? null : everything[0]);
    if (best) this.show(best.group.id, best.run.id);
    else if (!isThere) this.show(null, null);
  }

  find(id) {
    for (const group of this.groups) for (const run of group.runs) if (run.id === id) return { group, run };
    return null;
  }
}

/** Returns the columns of a part: the first `start` entries of each, and the new ones. */
function extended(part, start, columns) {
  for (const [name, values] of Object.entries(columns)) {
    const column = (part[name] ??= []);
    column.length = start;
    for (const value of values) column.push(value);
  }
  return part;
}

/** The data are in the page. */
export class EmbeddedSource {
  constructor(data) {
    this.data = data;
    this.isLive = false;
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
  constructor() {
    this.isLive = true;
    this.wait = FIRST_WAIT;
  }

  start(store) {
    this.store = store;
    this.choose(null, null);
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

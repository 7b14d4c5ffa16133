// What the page knows: the tree of runs, what is chosen, and the data of the choice. Panels watch parts of it.

export class Store {
  constructor(source) {
    this.source = source;
    this.runs = null; // the tree, once it is known
    this.group = null;
    this.run = null;
    this.isPinned = false; // whether the reader chose the run
    this.lines = {}; // the curves of the group, by run
    this.shown = null; // the detail of the run
    this.absence = null; // why there is no detail: "gone" or "missing"
    this.deleted = null; // the run that was shown until its files were deleted
    this.isConnected = true;
    this.isRefused = false;
    this.device = 0;
    this.watchers = [];
    this.changes = new Set();
  }

  start() {
    this.source.start(this);
  }

  /** Calls `work` in the next frame after any of the named parts has changed. */
  watch(parts, work) {
    this.watchers.push({ parts, work });
  }

  changed(...parts) {
    if (!this.changes.size) requestAnimationFrame(() => this.tell());
    for (const part of parts) this.changes.add(part);
  }

  tell() {
    const changes = this.changes;
    this.changes = new Set();
    for (const { parts, work } of this.watchers) if (parts.some((part) => changes.has(part))) work(changes);
  }

  // What the source says.

  tree(tree) {
    const before = this.currentRun;
    this.runs = tree;
    this.changed("tree");
    this.settle(before);
    // What was thinned, and how to go on, is told anew when a run begins, stops or is complete.
    if (before && before.id === this.run && before.state !== this.currentRun?.state) this.source.soon?.();
  }

  curves(group, curves) {
    if (group !== this.group) return;
    this.lines = curves;
    this.changed("curves");
  }

  detail(detail) {
    if (detail.id !== this.run) return;
    const isSame = this.shown?.id === detail.id;
    this.shown = detail;
    this.absence = null;
    if (this.device >= detail.devices.length) this.device = 0;
    this.changed("detail", ...Object.keys(detail), ...(isSame ? [] : ["run"]));
  }

  /** Shows how nodes are now, in place of what they said before. The device that was chosen stays chosen. */
  nodes({ id, facts, devices }) {
    if (id !== this.shown?.id) return; // it comes with the detail
    const chosen = this.shown.devices[this.device]?.device;
    Object.assign(this.shown.facts, facts);
    this.shown.devices = devices;
    this.chooseDevice(Math.max(0, devices.findIndex((one) => one.device === chosen)));
    this.changed("detail");
  }

  /** Applies what is new. Returns whether it fits what is known; otherwise everything has to be read again. */
  delta({ id, part, start, columns }) {
    if (part === "curve") {
      if (!extend((this.lines[id] ??= { k: [] }), start, columns)) return false;
      this.changed("curves");
      return true;
    }
    if (id !== this.shown?.id) return true; // it comes with the detail
    if (!this.shown.devices.length) return false; // the run has just begun
    if (!extend(this.shown[part], start, columns)) return false;
    this.changed(part);
    return true;
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

  // What the reader says.

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

  // The choice.

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
    return this.lines[this.run] ?? this.shown?.curve;
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
    const wanted = this.wanted?.();
    const found = wanted && this.find(wanted);
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

/** Keeps the first `start` entries of each column and appends the new ones. Returns whether all before them are known. */
function extend(part, start, columns) {
  if (start > part.k.length) return false;
  for (const [name, values] of Object.entries(columns)) {
    const column = (part[name] ??= []);
    column.length = Math.min(column.length, start);
    for (const value of values) column.push(value);
  }
  return true;
}

/** Whether iterations are missing in the events; of a run that is being made, also in what came since it was read. */
export function isSample(events) {
  return events.is_sample || events.k.length <= events.k.at(-1);
}

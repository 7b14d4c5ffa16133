// Where the data come from: a server that tells what is new, or the page itself. Nothing else knows which.
//
// A source calls the store: `tree`, `curves`, `detail`, `nodes`, `delta`, `lost`, `connected`. `choose` names what it shall tell of.

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
    this.store.curves(group, this.data.curves[group] ?? {});
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
const SOON = 1500;

export class LiveSource {
  constructor() {
    this.isLive = true;
    this.wait = FIRST_WAIT;
    this.turn = 0;
  }

  start(store) {
    this.store = store;
    this.readTree();
  }

  async readTree() {
    try {
      this.store.tree(await read("api/tree"));
      this.store.connected(true);
      this.wait = FIRST_WAIT;
      if (!this.stream) this.listen(); // without runs, too: they may come
    } catch (problem) {
      this.again(problem, () => this.readTree());
    }
  }

  choose(group, run) {
    [this.group, this.run] = [group, run];
    clearTimeout(this.due);
    this.load();
    this.listen();
  }

  /** Reads everything of the choice anew. What was asked for before it is ignored when it comes. */
  async load() {
    const turn = ++this.turn;
    const { group, run } = this;
    if (!group) return;
    try {
      const curves = read(`api/groups/${encodeURIComponent(group)}/curves`).then((all) => {
        if (turn === this.turn) this.store.curves(group, all);
      });
      const detail = run && read(`api/runs/${encodeURIComponent(run)}`).then((one) => {
        if (turn === this.turn) this.store.detail(one);
      });
      await Promise.all([curves, detail]);
    } catch (problem) {
      if (turn !== this.turn) return;
      const isGone = problem.status === 404 || problem.status === 410;
      if (isGone) this.store.lost("gone");
      // Files of a run are moved when it is complete: what is gone may be there again.
      if (isGone) this.soon();
      else this.again(problem, () => this.load());
    }
  }

  /** Reads everything anew once the server has looked for moved files. */
  soon() {
    clearTimeout(this.due);
    this.due = setTimeout(() => this.load(), SOON);
  }

  listen() {
    this.stream?.close();
    const words = new URLSearchParams();
    if (this.group) words.set("group", this.group);
    if (this.run) words.set("run", this.run);
    const stream = (this.stream = new EventSource(`api/stream?${words}`));
    stream.addEventListener("open", () => {
      this.store.connected(true);
      this.wait = FIRST_WAIT;
      if (!this.wasLost) return; // a stream begins with all rows of runs that are being made
      this.wasLost = false;
      this.readTree();
      this.load();
    });
    stream.addEventListener("tree", (event) => this.store.tree(JSON.parse(event.data)));
    stream.addEventListener("nodes", (event) => this.store.nodes(JSON.parse(event.data)));
    stream.addEventListener("delta", (event) => {
      if (!this.store.delta(JSON.parse(event.data))) this.load();
    });
    stream.addEventListener("gone", () => this.readTree());
    stream.addEventListener("error", () => {
      if (stream !== this.stream) return;
      this.wasLost = true;
      // The browser tries again by itself, unless the server refused.
      if (stream.readyState === EventSource.CLOSED) this.again(new Error("refused"), () => this.listen());
      else this.store.connected(false);
    });
  }

  again(problem, work) {
    this.wasLost = true;
    this.store.connected(false, problem.status === 401 || problem.status === 403);
    setTimeout(work, this.wait);
    this.wait = Math.min(LONGEST_WAIT, 2 * this.wait);
  }

  /** Where the exact file lies: the numbers on the page are rounded. */
  address(run, file) {
    return `api/runs/${encodeURIComponent(run)}/${file}`;
  }
}

async function read(address) {
  const answer = await fetch(address, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (!answer.ok) throw Object.assign(new Error(`${address}: ${answer.status}`), { status: answer.status });
  return answer.json();
}

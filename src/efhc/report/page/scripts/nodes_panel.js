// Nodes of the network runtime: how each is, and its links.
import { el, say } from "./dom.js";
import { digits, duration, plural, scaled, whole } from "./format.js";
import { SortableTable } from "./table.js";

const of = (name, key, words, isText = false) => ({ name, value: ({ node }) => node[key] ?? null, words, isText });
const link = (name, key, words, isText = false) => ({ name, value: ({ link: one }) => one[key] ?? null, words, isText });

export class NodesPanel {
  static order = 5;

  constructor(store) {
    this.store = store;
    this.nodes = new SortableTable({
      caption: "Nodes",
      file: () => "nodes",
      choose: ({ n }) => store.chooseDevice(n),
      isCurrent: ({ n }) => n === store.device,
      columns: [
        { name: "device", value: ({ device }) => device.device, words: String },
        of("state", "state", String, true),
        of("iteration", "iteration", whole),
        of("steps per second", "steps_per_second", (value) => digits(value, 3)),
        of("loss", "loss", (value) => digits(value, 4)),
        of("links up", "links_up", whole),
        of("broadcasts", "broadcasts", whole),
        { name: "waits for", value: ({ node }) => (node.waits_for?.length ? node.waits_for.join(" ") : null), isText: true },
        of("in doubt", "in_doubt", whole),
        of("unresolved", "unresolved", whole),
        of("lost", "lost", whole),
        of("refused", "refused", whole),
        of("uptime", "uptime", duration),
        of("problem", "problem", String, true),
      ],
    });
    this.links = new SortableTable({
      caption: "Links of the chosen node",
      file: () => `links-of-node-${store.device}`,
      columns: [
        link("neighbour", "device", String),
        { name: "link", value: ({ link: one }) => (one.up ? (one.connected ? "up" : "interrupted") : "down"), isText: true },
        link("iteration", "iteration", whole),
        link("rate", "rate", (value) => `${scaled(value)}B/s`),
        link("sent", "bytes_sent", (value) => `${scaled(value)}B`),
        link("received", "bytes_received", (value) => `${scaled(value)}B`),
        { name: "exchanges", value: ({ link: one }) => one.exchanges?.committed ?? null, words: whole },
        { name: "refused", value: ({ link: one }) => one.exchanges?.refused ?? null, words: whole },
        link("lost", "lost", whole),
        link("interruptions", "interruptions", whole),
        link("downs", "downs", whole),
        { name: "last problem", value: ({ link: one }) => one.last_problem || null, isText: true },
      ],
    });
    this.title = el("h3");
    this.summary = el("span", { class: "note" });
    this.element = el(
      "section",
      { class: "nodes", "aria-labelledby": "nodes", hidden: true },
      el("div", { class: "bar" }, el("h2", { id: "nodes", text: "Nodes" }), this.summary, this.nodes.tools),
      this.nodes.element,
      el("div", { class: "bar" }, this.title, this.links.tools),
      this.links.element,
    );
    store.watch(["run", "detail", "device"], () => this.draw());
  }

  draw() {
    const { shown, device } = this.store;
    const rows = (shown?.devices ?? []).map((one, n) => ({ n, device: one, node: one.node })).filter((row) => row.node);
    this.element.hidden = !rows.length;
    if (!rows.length) return;
    this.nodes.set(rows);
    const states = new Map();
    for (const { node } of rows) states.set(node.state, (states.get(node.state) ?? 0) + 1);
    say(this.summary, `${plural(rows.length, "node")}: ${[...states].map(([state, count]) => `${count} ${state}`).join(", ")}`);
    say(this.title, `Links of node ${shown.devices[device]?.device ?? device}`);
    this.links.set((shown.devices[device]?.node?.neighbours ?? []).map((one) => ({ link: one })));
  }
}

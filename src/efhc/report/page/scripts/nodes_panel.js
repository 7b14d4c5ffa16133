// Nodes of the network runtime: how each is, and its links.
import { el, setText } from "./dom.js";
import { counted, digits, duration, plural, scaled, whole } from "./format.js";
import { SortableTable, number, text } from "./table.js";

const bytes = (value) => `${scaled(value)}B`;

const NODE = [
  number("device", String),
  text("state"),
  number("iteration", whole),
  number("steps per second", (value) => digits(value, 3)),
  number("loss"),
  number("links up", whole),
  number("broadcasts", whole),
  text("waits for", ({ waits_for }) => waits_for?.join(" ") || null),
  number("in doubt", whole),
  number("unresolved", whole),
  number("lost", whole),
  number("refused", whole),
  number("uptime", duration),
  text("problem"),
];
const LINK = [
  number("neighbour", String, ({ device }) => device),
  text("link", ({ up, connected }) => (up ? (connected ? "up" : "interrupted") : "down")),
  number("iteration", whole),
  number("rate", (value) => `${bytes(value)}/s`),
  number("sent", bytes, ({ bytes_sent }) => bytes_sent),
  number("received", bytes, ({ bytes_received }) => bytes_received),
  number("exchanges", whole, ({ exchanges }) => exchanges?.committed),
  number("refused", whole, ({ exchanges }) => exchanges?.refused),
  number("lost", whole),
  number("interruptions", whole),
  number("downs", whole),
  text("last problem", ({ last_problem }) => last_problem || null),
];

export class NodesPanel {
  static order = 5;

  constructor(store) {
    this.store = store;
    this.nodes = new SortableTable({
      caption: "Nodes",
      file: () => "nodes",
      choose: ({ n }) => store.chooseDevice(n),
      isCurrent: ({ n }) => n === store.device,
      columns: NODE,
    });
    this.links = new SortableTable({ caption: "Links of the chosen node", file: () => `links-of-node-${store.device}`, columns: LINK });
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
    const devices = this.store.shown?.devices ?? [];
    const rows = devices.map(({ device, node }, n) => node && { ...node, device, n }).filter(Boolean);
    this.element.hidden = !rows.length;
    if (!rows.length) return;
    this.nodes.set(rows);
    const states = [...counted(rows.map(({ state }) => state))].map(([state, count]) => `${count} ${state}`);
    setText(this.summary, `${plural(rows.length, "node")}: ${states.join(", ")}`);
    const chosen = devices[this.store.device];
    setText(this.title, `Links of node ${chosen?.device ?? this.store.device}`);
    this.links.set(chosen?.node?.neighbours ?? []);
  }
}

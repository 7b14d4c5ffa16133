// The page of runs: its panels in their order, and what is around them. To add a panel, add a file NAME_panel.js.
import { el, setText, svg } from "./dom.js";
import { Moment } from "./moment.js";
import { PANELS } from "./panels.js";
import { RunHead } from "./run_head.js";
import { RunList } from "./run_list.js";
import { EmbeddedSource, LiveSource, Store } from "./store.js";
import { themeSwitch } from "./theme.js";

function mark() {
  const dots = [[3, 12.5], [8, 3.5], [13, 12.5]].map(([cx, cy]) => svg("circle", { cx, cy, r: 2.3 }));
  return svg("svg", { viewBox: "0 0 16 16", width: 22, height: 22, class: "mark", "aria-hidden": "true" }, svg("path", { d: "M3 12.5 8 3.5l5 9z" }), ...dots);
}

function connectionSign(store) {
  const sign = el("span", { class: "connection", role: "status" });
  store.watch(["connection", "tree"], () => {
    if (!store.source.isLive) return;
    sign.classList.toggle("is-lost", !store.isConnected);
    const lost = store.isRefused ? "The server refuses; open the address that efhc watch printed" : "Not connected; trying again";
    setText(sign, store.isConnected ? "connected" : lost);
  });
  return sign;
}

/** What is said when there is no run to show. */
function emptyWords(store) {
  const { isLive } = store.source;
  const words = el("h1", { text: isLive ? "Looking for runs" : "No runs" });
  const hint = el("p");
  const command = el("p", { hidden: true }, el("code", { text: "efhc run --out DIR" }));
  const element = el("div", { class: "nothing" }, words, hint, command);
  store.watch(["tree", "choice"], () => {
    element.hidden = Boolean(store.currentRun);
    if (!store.runs || store.currentRun) return;
    setText(words, isLive ? `Waiting for a run in ${store.runs.title}` : `There is no run in ${store.runs.title}`);
    setText(hint, isLive ? "Runs that begin there appear here by themselves. Start one with its folder there:" : "");
    command.hidden = !isLive;
  });
  return element;
}

function deletedWords(store) {
  const element = el("p", { class: "notice", role: "status", hidden: true });
  store.watch(["deleted"], () => {
    element.hidden = !store.deleted;
    if (store.deleted) setText(element, `${store.deleted.strategy}, seed ${store.deleted.seed}, was deleted.`);
  });
  return element;
}

/** The address of the page names the run and the measure that the reader chose. */
function keepAddress(store) {
  const named = (name) => new URLSearchParams(location.hash.slice(1)).get(name);
  [store.wanted, store.measure] = [named("run"), named("measure")];
  store.watch(["choice", "measure"], () => {
    const chosen = Object.entries({ run: store.isPinned && store.run, measure: store.measure }).filter(([, value]) => value);
    const hash = chosen.length ? `#${new URLSearchParams(chosen)}` : "";
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  });
  window.addEventListener("hashchange", () => {
    const found = store.find(named("run"));
    if (found) store.choose(...found);
    store.chooseMeasure(named("measure"));
  });
}

const embedded = document.getElementById("embedded");
const store = new Store(embedded ? new EmbeddedSource(JSON.parse(embedded.textContent)) : new LiveSource());
const themes = themeSwitch();
const moment = new Moment(store);
const ordered = [...PANELS].sort((one, other) => one.order - other.order);
const panels = el("div", { class: "panels", hidden: true }, ...ordered.map((Panel) => new Panel(store, moment).element));
const folder = el("span", { class: "folder" });
store.watch(["tree", "choice"], () => {
  panels.hidden = !store.currentRun;
  setText(folder, store.runs?.title ?? "");
});
const main = el("main", { id: "main", tabindex: -1 }, deletedWords(store), emptyWords(store), new RunHead(store).element, panels);
document.getElementById("page").replaceChildren(
  el("a", { class: "skip", href: "#main", text: "Skip to the run" }),
  el("header", { class: "top-bar" }, mark(), el("b", { text: "efhc" }), folder, connectionSign(store), themes),
  el("div", { class: "frame" }, new RunList(store).element, main),
);
keepAddress(store);
store.source.start(store);

// All runs that were found, with their state and progress.
import { el, setText } from "./dom.js";
import { duration, plural } from "./format.js";
import { looksOf, swatch } from "./looks.js";
import { latestWords, measureOf } from "./measures.js";

export class RunList {
  constructor(store) {
    this.store = store;
    this.list = el("div", { class: "groups" });
    this.current = el("span", { class: "current" });
    this.count = el("span", { class: "note" });
    this.leftOut = el("p", { class: "note left-out", hidden: true });
    const summary = el("summary", {}, el("span", { text: "Runs" }), this.count, this.current);
    this.element = el("details", { class: "runs" }, summary, el("nav", { "aria-label": "Runs" }, this.list, this.leftOut));
    this.isWide = matchMedia("(min-width: 900px)");
    const unfold = () => (this.element.open = this.isWide.matches);
    this.isWide.addEventListener("change", unfold);
    unfold();
    this.list.addEventListener("keydown", (event) => this.move(event));
    store.watch(["tree", "choice", "measure"], () => this.draw());
  }

  draw() {
    const { currentRun: run, groups, runs } = this.store;
    const key = JSON.stringify(groups.map(({ id, name, place, runs }) => [id, name, place, runs.map((run) => [run.id, run.strategy, run.seed])]));
    if (key !== this.key) this.build(groups);
    this.key = key;
    for (const group of groups) this.update(group);
    setText(this.count, plural(groups.flatMap((group) => group.runs).length, "run"));
    this.leftOut.hidden = !runs?.left_out;
    setText(this.leftOut, runs?.left_out ?? "");
    setText(this.current, run ? `${run.strategy}, seed ${run.seed}` : "");
  }

  build(groups) {
    const focused = document.activeElement?.dataset?.run;
    this.rows = new Map();
    this.heads = new Map();
    this.list.replaceChildren(...groups.map((group) => this.groupElement(group)));
    this.rows.get(focused)?.button.focus();
  }

  groupElement(group) {
    const looks = looksOf(group.strategies);
    const state = el("span", { class: "group-state" });
    const place = el("span", { class: "group-place", text: [group.kind, group.place].filter((part) => part !== ".").join(" · ") });
    const head = el("summary", { class: "group-head" }, el("span", { class: "group-name", text: group.name }), state, place);
    const list = el("ul", {}, ...group.runs.map((run) => el("li", {}, this.runElement(group, run, looks.get(run.strategy)))));
    const element = el("details", { class: "group" }, head, list);
    this.heads.set(group.id, { element, state });
    return element;
  }

  runElement(group, run, look) {
    const [state, bar, value] = ["state", "progress", "value"].map((name) => el("span", { class: name }));
    const name = el("span", { class: "run-name", text: run.strategy }, el("span", { class: "seed", text: ` seed ${run.seed}` }));
    const onclick = () => {
      this.store.choose(group.id, run.id);
      if (!this.isWide.matches) this.element.open = false;
    };
    const button = el("button", { type: "button", class: "run", "data-run": run.id, onclick }, swatch(look), name, state, value, bar);
    this.rows.set(run.id, { button, state, bar, value });
    return button;
  }

  update(group) {
    const head = this.heads.get(group.id);
    if (group.id === this.store.group || this.heads.size <= 3) head.element.open ||= !head.seen;
    head.seen ||= head.element.open;
    setText(head.state, group.problem ?? (group.state === "done" ? "" : group.state));
    head.state.className = `group-state is-${group.state}`;
    const measure = this.store.measureOf(group);
    for (const run of group.runs) {
      const { button, state, bar, value } = this.rows.get(run.id);
      if (run.id === this.store.run) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      button.className = `run is-${run.state}`;
      button.title = run.problem ?? (measure ? measureOf(measure).label : "");
      const isWaiting = run.state === "waiting";
      setText(state, isWaiting ? "" : stateWords(run));
      setText(value, isWaiting ? "waiting" : latestWords(run, measure));
      bar.style.setProperty("--share", run.iterations ? Math.min(1, run.k / run.iterations) : 0);
    }
  }

  move(event) {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step || !event.target.matches(".run, .group-head")) return;
    const all = [...this.list.querySelectorAll(".run, .group-head")].filter((one) => one.offsetParent !== null);
    const next = all[all.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

function stateWords(run) {
  if (run.state !== "running") return run.state;
  const share = run.iterations ? `${Math.floor((100 * run.k) / run.iterations)} %` : "running";
  return run.seconds_left === null ? share : `${share}, ${duration(run.seconds_left)} left`;
}

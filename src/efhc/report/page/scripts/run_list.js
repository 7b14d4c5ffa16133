// All runs that were found, with their state and progress.
import { el, say } from "./dom.js";
import { accuracyWords, duration, plural } from "./format.js";
import { looksOf, swatch } from "./looks.js";
import { theme } from "./canvas.js";

const KINDS = { run: "run", reproduction: "reproduction", sweep: "sweep", tuning: "tuning", store: "store", nodes: "nodes" };

export class RunList {
  constructor(store) {
    this.store = store;
    this.list = el("div", { class: "groups" });
    this.current = el("span", { class: "current" });
    this.count = el("span", { class: "note" });
    this.leftOut = el("p", { class: "note left-out", hidden: true });
    this.element = el("details", { class: "runs" }, el("summary", {}, el("span", { text: "Runs" }), this.count, this.current), el("nav", { "aria-label": "Runs" }, this.list, this.leftOut));
    const isWide = matchMedia("(min-width: 900px)");
    const unfold = () => (this.element.open = isWide.matches);
    isWide.addEventListener("change", unfold);
    unfold();
    this.list.addEventListener("keydown", (event) => this.move(event));
    store.watch(["tree", "choice", "theme"], () => this.draw());
  }

  draw() {
    const { groups } = this.store;
    const key = JSON.stringify([theme.isDark, groups.map((group) => [group.id, group.name, group.place, group.runs.map((run) => [run.id, run.strategy, run.seed])])]);
    if (key !== this.key) {
      this.key = key;
      this.build(groups);
    }
    for (const group of groups) this.update(group);
    const runs = groups.reduce((sum, group) => sum + group.runs.length, 0);
    say(this.count, plural(runs, "run"));
    this.leftOut.hidden = !this.store.runs?.left_out;
    say(this.leftOut, this.store.runs?.left_out ?? "");
    const run = this.store.currentRun;
    say(this.current, run ? `${run.strategy}, seed ${run.seed}` : "");
  }

  build(groups) {
    const focused = document.activeElement?.dataset?.run;
    this.rows = new Map();
    this.heads = new Map();
    this.list.replaceChildren(...groups.map((group) => this.groupElement(group)));
    if (focused) this.rows.get(focused)?.button.focus();
  }

  groupElement(group) {
    const looks = looksOf(group.strategies);
    const state = el("span", { class: "group-state" });
    const head = el(
      "summary",
      { class: "group-head" },
      el("span", { class: "group-name", text: group.name }),
      state,
      el("span", { class: "group-place", text: [KINDS[group.kind] ?? group.kind, group.place].filter((part) => part !== ".").join(" · ") }),
    );
    const list = el("ul", {}, ...group.runs.map((run) => el("li", {}, this.runElement(group, run, looks.get(run.strategy)))));
    const element = el("details", { class: "group" }, head, list);
    this.heads.set(group.id, { element, state });
    return element;
  }

  runElement(group, run, look) {
    const [state, bar, value] = [el("span", { class: "state" }), el("span", { class: "progress" }), el("span", { class: "value" })];
    const button = el(
      "button",
      { type: "button", class: "run", "data-run": run.id, onclick: () => this.choose(group, run) },
      swatch(look, theme.isDark),
      el("span", { class: "run-name", text: run.strategy }, el("span", { class: "seed", text: ` seed ${run.seed}` })),
      state,
      value,
      bar,
    );
    this.rows.set(run.id, { button, state, bar, value });
    return button;
  }

  choose(group, run) {
    this.store.choose(group.id, run.id);
    if (!matchMedia("(min-width: 900px)").matches) this.element.open = false;
  }

  update(group) {
    const head = this.heads.get(group.id);
    if (group.id === this.store.group || this.heads.size <= 3) head.element.open ||= !head.seen;
    head.seen ||= head.element.open;
    say(head.state, group.problem ?? (group.state === "done" ? "" : group.state));
    head.state.className = `group-state is-${group.state}`;
    for (const run of group.runs) {
      const row = this.rows.get(run.id);
      if (run.id === this.store.run) row.button.setAttribute("aria-current", "true");
      else row.button.removeAttribute("aria-current");
      row.button.className = `run is-${run.state}`;
      const isWaiting = run.state === "waiting";
      say(row.state, isWaiting ? "" : stateWords(run));
      say(row.value, isWaiting ? "waiting" : run.accuracy === null ? "" : accuracyWords(run.accuracy));
      row.button.title = run.problem ?? "";
      row.bar.style.setProperty("--share", run.iterations ? Math.min(1, run.k / run.iterations) : 0);
    }
  }

  move(event) {
    const steps = { ArrowUp: -1, ArrowDown: 1 };
    if (!(event.key in steps) || !event.target.matches(".run, .group-head")) return;
    const all = [...this.list.querySelectorAll(".run, .group-head")].filter((one) => one.offsetParent !== null);
    const next = all[all.indexOf(event.target) + steps[event.key]];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

function stateWords(run) {
  if (run.state === "done") return "done";
  if (run.state !== "running") return run.state;
  const share = run.iterations ? `${Math.floor((100 * run.k) / run.iterations)} %` : "running";
  return run.seconds_left === null ? share : `${share}, ${duration(run.seconds_left)} left`;
}

// The chosen run in words: what it is, how far it is, and what to do if it has stopped.
import { copyButton, el, setFacts, setText } from "./dom.js";
import { duration, short, whole } from "./format.js";
import { latestWords, measureOf } from "./measures.js";

const ABSENCES = { gone: "The files of this run are gone.", missing: "This page has only the curves of this run." };
const STATES = { waiting: "waiting to start", running: "running", done: "done", stopped: "stopped", failed: "failed" };

export class RunHead {
  constructor(store) {
    this.store = store;
    this.place = el("p", { class: "crumbs" });
    this.title = el("h1");
    this.state = el("span", { class: "badge" });
    this.numbers = el("dl", { class: "numbers" });
    this.bar = el("div", { class: "bar-of-run", "aria-hidden": "true" });
    this.notice = el("div", { class: "notice", hidden: true });
    this.status = el("div", { class: "unseen", role: "status" });
    const title = el("div", { class: "title" }, this.title, this.state);
    this.element = el("div", { class: "head" }, this.place, title, this.numbers, this.bar, this.notice, this.status);
    store.watch(["tree", "choice", "detail", "connection", "curves", "measure"], () => this.draw());
  }

  draw() {
    const { currentGroup: group, currentRun: run } = this.store;
    this.element.hidden = !run;
    if (!run) return;
    setText(this.place, [group.name, group.place].filter((part, n, all) => part && part !== "." && all.indexOf(part) === n).join(" · "));
    setText(this.title, `${run.strategy}, seed ${run.seed}`);
    setText(this.state, STATES[run.state]);
    this.state.className = `badge is-${run.state}`;
    this.drawNumbers(run, this.store.measureOf(group) ?? "accuracy");
    this.bar.style.setProperty("--share", run.iterations ? Math.min(1, run.k / run.iterations) : 0);
    this.bar.className = `bar-of-run is-${run.state}`;
    this.drawNotice(run, group);
    this.announce(run);
    const share = run.state === "running" && run.iterations ? `${Math.floor((100 * run.k) / run.iterations)} % ` : "";
    document.title = `${share}${group.name} · efhc`;
  }

  drawNumbers(run, measure) {
    const curve = this.store.lines[run.id];
    const last = (column) => curve?.[column]?.at(-1) ?? null;
    const speed = run.iterations_per_second;
    setFacts(this.numbers, [
      ["iterations", run.state === "done" ? whole(run.iterations) : `${whole(run.k)} of ${whole(run.iterations)}`],
      [measureOf(measure).label, latestWords(run, measure) || "–"],
      ["transmission time", short(last("transmission_time"))],
      ["broadcasts", whole(last("broadcasts"))],
      ["iterations per second", speed === null ? "–" : short(Number(speed.toPrecision(3)))],
      ["time left", run.state === "running" ? duration(run.seconds_left) : "–"],
    ]);
  }

  drawNotice(run, group) {
    const canGoOn = run.state === "stopped" && group.kind === "run";
    const command = (canGoOn && this.store.shown?.repeat) || "";
    let words = run.problem ?? (run.state === "failed" ? "The run failed." : "");
    if (this.store.absence) words = ABSENCES[this.store.absence];
    else if (run.state === "stopped" && group.kind !== "nodes") words = stoppedWords(run, canGoOn ? "Go on with:" : "The command that makes it goes on from there.");
    const key = `${words} ${command}`;
    if (key === this.noticeKey) return;
    this.noticeKey = key;
    this.notice.hidden = !words;
    this.notice.className = `notice is-${run.state}`;
    this.notice.replaceChildren(el("p", { text: words }));
    if (command) this.notice.append(el("div", { class: "command" }, el("code", { text: command }), copyButton(() => command)));
  }

  /** Only changes of state are read out: numbers change all the time. */
  announce(run) {
    const words = `${run.strategy}, seed ${run.seed}: ${STATES[run.state]}`;
    if (this.said && this.said !== words && this.saidOf === run.id) setText(this.status, words);
    [this.said, this.saidOf] = [words, run.id];
  }
}

/** How far the run came and, if it is known, why it stopped. */
function stoppedWords(run, advice) {
  const reason = run.problem ? `: ${run.problem.replace(/\.$/, "")}` : "";
  return `Stopped after ${whole(run.k)} of ${whole(run.iterations)} iterations${reason}. ${advice}`;
}

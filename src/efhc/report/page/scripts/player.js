// Which iteration is shown: a slider, play and pause, and back to the end.
import { choice, el, keySteps, setText } from "./dom.js";
import { digits, whole } from "./format.js";
import { lastUpTo } from "./axes.js";

const SPEEDS = [[4, "Slow"], [12, "Normal"], [60, "Fast"]];

export class Player {
  constructor(store, moment) {
    Object.assign(this, { store, moment });
    this.play = el("button", { type: "button", class: "play", onclick: () => moment.toggle() }, el("span", { class: "play-sign", "aria-hidden": "true" }));
    this.slider = el("input", { type: "range", min: 0, max: 0, step: "any", value: 0, "aria-label": "Iteration" });
    this.slider.addEventListener("input", () => moment.go(Math.max(0, lastUpTo(moment.axis.values, Number(this.slider.value)))));
    this.slider.addEventListener("keydown", (event) => this.key(event));
    this.end = el("button", { type: "button", class: "quiet", text: "Latest", onclick: () => moment.go(moment.last) });
    const speed = choice({ label: "Speed", options: SPEEDS, value: moment.perSecond, changed: (value) => (moment.perSecond = Number(value)) });
    this.where = el("output", { class: "where" });
    this.element = el("div", { class: "player", role: "group", "aria-label": "Replay" }, this.play, this.slider, this.where, speed, this.end);
    store.watch(["moment", "run", "events"], () => this.draw());
    document.addEventListener("keydown", (event) => {
      // A space outside of all controls plays, as people expect of films.
      if (event.key !== " " || event.repeat || !event.target.matches?.("body, canvas")) return;
      event.preventDefault();
      moment.toggle();
    });
    this.draw();
  }

  key(event) {
    const steps = keySteps(20);
    if (event.key === " ") this.moment.toggle();
    else if (event.key in steps) this.moment.go(this.moment.place + steps[event.key]);
    else return;
    event.preventDefault();
  }

  draw() {
    const { moment } = this;
    const { at, axis } = moment;
    const [first, last] = [axis.values[0] ?? 0, axis.values.at(-1) ?? 0];
    this.element.hidden = axis.values.length < 2;
    this.play.setAttribute("aria-label", moment.isPlaying ? "Pause" : "Play");
    this.play.classList.toggle("is-playing", moment.isPlaying);
    Object.assign(this.slider, { min: first, max: last, value: at ?? 0 });
    this.slider.style.setProperty("--share", `${(100 * (at - first)) / (last - first || 1)}%`);
    const when = axis.name === "seconds" ? `${digits(at, 4)} s` : `iteration ${whole(at)}`;
    this.slider.setAttribute("aria-label", axis.name === "seconds" ? "Seconds" : "Iteration");
    this.slider.setAttribute("aria-valuetext", when);
    setText(this.where, at === null ? "" : when);
    this.end.disabled = moment.isFollowing;
    setText(this.end, this.store.currentRun?.state === "running" ? "Live" : "End");
  }
}

// Which iteration is shown: a slider, play and pause, and back to the end.
import { el, keySteps, say } from "./dom.js";
import { whole } from "./format.js";
import { lastUpTo } from "./store.js";

const SPEEDS = { "Slow": 4, "Normal": 12, "Fast": 60 };

export class Player {
  constructor(store, moment) {
    this.store = store;
    this.moment = moment;
    this.play = el("button", { type: "button", class: "play", onclick: () => moment.toggle() }, el("span", { class: "play-sign", "aria-hidden": "true" }));
    this.slider = el("input", { type: "range", min: 0, max: 0, step: 1, value: 0, "aria-label": "Iteration" });
    this.slider.addEventListener("input", () => moment.go(Math.max(0, lastUpTo(moment.places, Number(this.slider.value)))));
    this.slider.addEventListener("keydown", (event) => this.key(event));
    this.end = el("button", { type: "button", class: "quiet", text: "Latest", onclick: () => moment.go(moment.last) });
    this.speed = el("select", { "aria-label": "Speed", onchange: () => (moment.perSecond = Number(this.speed.value)) });
    for (const [text, value] of Object.entries(SPEEDS)) this.speed.append(el("option", { value, text, selected: value === moment.perSecond }));
    this.where = el("output", { class: "where" });
    this.element = el("div", { class: "player", role: "group", "aria-label": "Replay" }, this.play, this.slider, this.where, this.speed, this.end);
    store.watch(["moment", "run", "events"], () => this.draw());
    document.addEventListener("keydown", (event) => {
      // A space outside of all controls plays, as people expect of films.
      const isFree = event.target === document.body || event.target.matches?.("canvas");
      if (event.key === " " && isFree && !event.repeat) {
        event.preventDefault();
        moment.toggle();
      }
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
    const { places, k } = moment;
    this.element.hidden = places.length < 2;
    this.play.setAttribute("aria-label", moment.isPlaying ? "Pause" : "Play");
    this.play.classList.toggle("is-playing", moment.isPlaying);
    this.slider.min = places[0] ?? 0;
    this.slider.max = places[places.length - 1] ?? 0;
    this.slider.value = k ?? 0;
    const share = places.length > 1 ? (k - places[0]) / (places[places.length - 1] - places[0] || 1) : 0;
    this.slider.style.setProperty("--share", `${100 * share}%`);
    this.slider.setAttribute("aria-valuetext", `iteration ${whole(k)}`);
    say(this.where, k === null ? "" : `iteration ${whole(k)}`);
    this.end.disabled = moment.isFollowing;
    say(this.end, this.store.currentRun?.state === "running" ? "Live" : "End");
  }
}

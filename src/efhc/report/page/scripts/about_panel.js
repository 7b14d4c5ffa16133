// What made the run, and how to make it again.
import { copyButton, el, setFacts } from "./dom.js";

export class AboutPanel {
  static order = 7;

  constructor(store) {
    this.store = store;
    this.facts = el("dl", { class: "facts" });
    this.command = el("code");
    this.config = el("pre", { tabindex: 0, "aria-label": "Config" });
    this.element = el(
      "section",
      { class: "about", "aria-labelledby": "about" },
      el("h2", { id: "about", text: "How this run is made" }),
      el("div", { class: "command" }, this.command, copyButton(() => this.command.textContent)),
      this.facts,
      (this.folded = el("details", {}, el("summary", { text: "Config" }), el("div", { class: "config" }, copyButton(() => this.config.textContent), this.config))),
    );
    store.watch(["run", "detail"], () => this.draw());
  }

  draw() {
    const { shown } = this.store;
    this.element.hidden = !shown;
    if (!shown) return;
    this.command.textContent = shown.repeat;
    this.config.textContent = shown.config;
    this.folded.hidden = !shown.config;
    setFacts(this.facts, Object.entries(shown.facts));
  }
}

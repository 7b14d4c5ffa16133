// The names of strategies with their lines: a click hides or shows one in all charts of the legend, a double click shows one alone.
import { el } from "./dom.js";
import { swatch } from "./looks.js";

export class StrategyLegend {
  constructor(changed) {
    this.changed = changed;
    this.hidden = new Set();
    this.buttons = new Map();
    this.element = el("div", { class: "legend", role: "group", "aria-label": "Strategies", title: "Click a strategy to hide or show it; double-click to show it alone" });
  }

  isShown(name) {
    return !this.hidden.has(name);
  }

  /** Shows the names with their looks, a Map. */
  set(looks) {
    const key = JSON.stringify([...looks.keys()]);
    if (key === this.key) return;
    this.key = key;
    const focused = document.activeElement?.dataset?.strategy;
    this.buttons = new Map([...looks].map(([name, look]) => [name, this.button(name, look)]));
    this.element.replaceChildren(...this.buttons.values());
    this.buttons.get(focused)?.focus();
  }

  button(name, look) {
    const listeners = { onclick: () => this.toggle(name), ondblclick: () => this.showAlone(name) };
    return el("button", { type: "button", "aria-pressed": String(this.isShown(name)), "data-strategy": name, ...listeners }, swatch(look), el("span", { text: name }));
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.press();
  }

  showAlone(name) {
    const others = [...this.buttons.keys()].filter((one) => one !== name);
    const isAlone = this.isShown(name) && others.every((one) => !this.isShown(one));
    this.hidden = new Set(isAlone ? [] : others);
    this.press();
  }

  press() {
    for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(this.isShown(name)));
    this.changed();
  }
}

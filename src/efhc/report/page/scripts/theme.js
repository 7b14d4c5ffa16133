// Dark or light: as the system says, until the reader chooses.
import { choice } from "./dom.js";
import { repaint } from "./canvas.js";

const CHOICES = { auto: "System", light: "Light", dark: "Dark" };

function remembered() {
  try {
    return localStorage.getItem("efhc-theme") ?? "auto";
  } catch {
    return "auto"; // a page from a file may have no memory
  }
}

function remember(choice) {
  try {
    localStorage.setItem("efhc-theme", choice);
  } catch {
    // It holds as long as the page is open.
  }
}

/** Returns the switch; `changed` is called whenever the colours are others. */
export function themeSwitch(changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const auto = system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = select.value === "auto" ? auto : select.value;
    repaint();
    changed();
  };
  const select = choice({
    label: "Theme",
    options: Object.entries(CHOICES),
    value: Object.hasOwn(CHOICES, remembered()) ? remembered() : "auto",
    changed: (value) => {
      remember(value);
      apply();
    },
  });
  system.addEventListener("change", apply);
  // On paper, a page is light and as wide as the paper.
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    document.body.classList.add("printing");
    repaint();
  });
  window.addEventListener("afterprint", () => {
    document.body.classList.remove("printing");
    apply();
  });
  apply();
  return select;
}

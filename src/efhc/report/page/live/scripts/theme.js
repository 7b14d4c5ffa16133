// Dark or light: as the system says, until the reader chooses.
import { el } from "./dom.js";
import { readTheme } from "./canvas.js";

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
  const select = el("select", { "aria-label": "Theme" });
  for (const [value, text] of Object.entries(CHOICES)) select.append(el("option", { value, text }));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const auto = system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = select.value === "auto" ? auto : select.value;
    readTheme();
    changed();
  };
  select.value = Object.hasOwn(CHOICES, remembered()) ? remembered() : "auto";
  select.addEventListener("change", () => {
    remember(select.value);
    apply();
  });
  system.addEventListener("change", apply);
  apply();
  return select;
}

// Dark or light: as the system says, until the reader chooses.
import { choice } from "./dom.js";
import { repaint } from "./canvas.js";

const CHOICES = { auto: "System", light: "Light", dark: "Dark" };

/** Reads or writes the choice. A page from a file may have no memory: then it holds as long as the page is open. */
function memory(work) {
  try {
    return work(localStorage);
  } catch {
    return null;
  }
}

/** Returns the switch. */
export function themeSwitch() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const auto = system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = select.value === "auto" ? auto : select.value;
    repaint();
  };
  const select = choice({
    label: "Theme",
    options: Object.entries(CHOICES),
    value: Object.keys(CHOICES).find((one) => one === memory((kept) => kept.getItem("efhc-theme"))) ?? "auto",
    changed: (value) => {
      memory((kept) => kept.setItem("efhc-theme", value));
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

// Elements. Text of runs only ever becomes text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element. A property `onclick` is a listener, `text` its text, `vars` CSS variables, all else attributes. */
export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (name === "vars") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Sets a text if it differs, so that nothing is laid out or read out anew without need. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Returns how far each key moves along a row: by one, by a `page`, or to an end. */
export function keySteps(page) {
  return { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -page, PageUp: page, Home: -Infinity, End: Infinity };
}

/** Gives a file to the reader. */
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** Copies a text: without the clipboard of a secure page, by a selection. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = el("textarea", { class: "unseen" });
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}

export function copyButton(text) {
  const button = el("button", { type: "button", class: "quiet", text: "Copy" });
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** Returns a group of radio buttons; `options` are pairs of a value and a text, and `changed(value)` gets what the reader chose. */
export function radioSwitch({ name, label, options, value: first, changed }) {
  const group = el("fieldset", { class: "switch" }, el("legend", { class: "unseen", text: label }));
  for (const [value, text] of options) {
    const input = el("input", { type: "radio", name, value, checked: value === first, onchange: () => changed(value) });
    group.append(el("label", {}, input, el("span", { text })));
  }
  return group;
}

/** Returns a list to choose from; `options` are pairs of a value and a text. */
export function choice({ label, options, value: first, changed, ...attributes }) {
  const select = el("select", { "aria-label": label, ...attributes }, ...options.map(([value, text]) => el("option", { value, text })));
  select.value = first;
  select.addEventListener("change", () => changed(select.value));
  return select;
}

/** Fills a `dl` with pairs of a name and a text, without those that are not known, anew only if they differ. */
export function setFacts(list, pairs) {
  const rows = pairs.filter(([, text]) => text !== "–");
  const key = JSON.stringify(rows);
  if (list.key === key) return;
  list.key = key;
  list.replaceChildren(...rows.map(([name, text]) => el("div", {}, el("dt", { text: name }), el("dd", { text }))));
}

// The figures of a report: their curves, the network, and who fired when.
import { Chart } from "./chart.js";
import { choice, el } from "./dom.js";
import { digits, short } from "./format.js";
import { looksOf } from "./looks.js";
import { NetworkDrawing, deviceWords, networkKey } from "./network.js";
import { RasterDrawing } from "./raster.js";
import { StrategyLegend } from "./strategy_legend.js";
import { themeSwitch } from "./theme.js";

const percent = (share) => `${digits(100 * share)} %`;

function drawFigure(place, { name, strategies, charts, network, rasters }) {
  const looks = looksOf(strategies);
  const drawn = [];
  const legend = new StrategyLegend(() => drawn.forEach((draw) => draw()));
  legend.set(looks);
  const figures = charts.map((chart) => chartFigure(`${name}-${chart.key}`, chart, looks, legend, drawn));
  const columns = charts.length === 2 || charts.length === 4 ? "two" : "three";
  place.append(legend.element, el("div", { class: `plots ${columns}` }, ...figures));
  if (!network) return;
  const key = "Devices are sorted from the least bandwidth (bottom) to the most (top).";
  place.append(
    el("h3", { text: `Seed ${network.seed}: who can reach whom, and who fired when` }),
    el(
      "div",
      { class: "closer" },
      networkFigure(network),
      el(
        "div",
        {},
        el("p", { class: "key" }, "Share of iterations in which a device fired, 0 ", el("span", { class: "ramp" }), ` 100 %. ${key}`),
        el("div", { class: "plots two" }, ...rasters.map(rasterFigure)),
      ),
    ),
  );
}

/** Returns a chart with its caption, in which the reader may choose a budget or a logarithmic axis, and adds to `drawn` what draws it. */
function chartFigure(id, { title, x, y, lines, budgets, budget: first, maySwitchToLog }, looks, legend, drawn) {
  let [budget, isLog] = [first, Boolean(x.isLog)];
  const chart = new Chart(title);
  const draw = () => {
    const shown = lines.filter((line) => legend.isShown(line.name) && (!budgets || line.budget === budget));
    chart.title = title.replace("{budget}", percent(budget));
    chart.set({
      lines: shown.map((line) => ({ ...looks.get(line.name), ...line, isRead: true, endsThere: true })),
      x: { ...x, isLog, words: (value) => `${short(value)}${x.unit ?? ""}`, full: (value) => `${digits(value)}${x.unit ?? ""}` },
      y: { ...y, words: short, full: digits },
    });
  };
  const caption = el("b", { text: title });
  if (budgets) {
    const options = budgets.map((one) => [one, percent(one)]);
    const changed = (value) => {
      budget = Number(value);
      draw();
    };
    const [before, after] = title.split("{budget}");
    caption.replaceChildren(before, choice({ class: "budget", label: "Budget", options, value: first, changed }), after);
  }
  const log = el("input", { type: "checkbox", class: "log", autocomplete: "off" });
  log.addEventListener("change", () => {
    isLog = log.checked;
    chart.zoom.range = null;
    draw();
  });
  const logSwitch = maySwitchToLog ? el("label", { class: "note" }, log, "logarithmic axis") : null;
  draw();
  drawn.push(draw);
  const figure = chart.figure(caption, logSwitch);
  figure.id = id;
  return figure;
}

const captioned = (drawing, title, note) => drawing.figure(el("b", { text: title }), el("span", { class: "note", text: note }));

function networkFigure({ note, devices, links }) {
  const describe = (n) => deviceWords(devices[n], n, links);
  const drawing = new NetworkDrawing({ label: "Device of the network", describe, choose: () => {} });
  const bandwidths = devices.map((one) => one.bandwidth);
  const range = [Math.min(...bandwidths), Math.max(...bandwidths)];
  drawing.setDevices(devices, links);
  drawing.setState({ values: bandwidths, range, fired: [], trail: [] });
  drawing.setChosen(null);
  const figure = captioned(drawing, "Network", note);
  figure.append(el("div", { class: "drawing-key" }, ...networkKey({ value: "bandwidth", words: short, range, bandwidths: [], isMoving: false })));
  return figure;
}

function rasterFigure({ strategy, note, rows, shares, end, last }) {
  const drawing = new RasterDrawing({ label: `Who fired when: ${strategy}` });
  const named = rows.map(({ device, bandwidth }) => ({ label: String(device), name: `Device ${device}, bandwidth ${digits(bandwidth, 5)}` }));
  drawing.set({ rows: named, shares, first: 0, end, last });
  return captioned(drawing, strategy, note);
}

/** Marks the section that is read in the list of sections. */
function followSections() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const here = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) links.get(target.id)?.setAttribute("aria-current", "true");
        else links.get(target.id)?.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-40% 0px -59% 0px" },
  );
  for (const section of document.querySelectorAll("main > section")) here.observe(section);
}

for (const place of document.querySelectorAll(".drawings")) drawFigure(place, JSON.parse(place.querySelector("script").textContent));
document.querySelector("nav").append(themeSwitch());
followSections();

// The drawings of a report: the network of a figure, and who fired when.
import { readTheme } from "./canvas.js";
import { el } from "./dom.js";
import { digits, labelWords, plural, short } from "./format.js";
import { networkLegend } from "./legend.js";
import { NetworkDrawing } from "./network.js";
import { RasterDrawing } from "./raster.js";

function drawNetwork(place, { devices, links }) {
  const describe = (n) => {
    const { device, bandwidth, samples, labels } = devices[n];
    const degree = links.filter(([i, j]) => i === n || j === n).length;
    return [`Device ${device}`, `bandwidth ${digits(bandwidth, 5)}`, plural(degree, "neighbour"), plural(samples, "sample"), `labels ${labelWords(labels)}`];
  };
  const drawing = new NetworkDrawing({ label: "Device of the network", describe, choose: () => {} });
  const bandwidths = devices.map((one) => one.bandwidth);
  const range = [Math.min(...bandwidths), Math.max(...bandwidths)];
  place.append(drawing.element, el("div", { class: "drawing-key" }, ...networkLegend({ value: "bandwidth", words: short, range, bandwidths: [], isMoving: false })));
  drawing.setDevices(devices, links);
  drawing.setState({ values: bandwidths, range, fired: [], trail: [] });
  drawing.setChosen(null);
}

function drawRaster(place, { rows, shares, end, last }, title) {
  const drawing = new RasterDrawing({ label: `Who fired when: ${title}` });
  place.append(drawing.element);
  const named = rows.map(({ device, bandwidth }) => ({ label: String(device), name: `Device ${device}, bandwidth ${digits(bandwidth, 5)}` }));
  drawing.set({ rows: named, shares, first: 0, end, last });
}

readTheme();
for (const place of document.querySelectorAll(".canvas")) {
  const data = JSON.parse(document.getElementById(`${place.id}-data`).textContent);
  if (place.dataset.kind === "network") drawNetwork(place, data);
  else drawRaster(place, data, place.closest("figure").querySelector("b").textContent);
}

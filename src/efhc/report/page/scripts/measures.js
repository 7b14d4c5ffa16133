// What is measured of a run over time: how it is called, and how its numbers are written.
import { accuracyWords, digits, duration, isKnown, short, whole } from "./format.js";

/** The measures of the runs by name, {name, label, better, family}, as `report/views.py` describes them. */
export const measures = new Map();

/**
 * By column of a curve: `name` for a list to choose from, `label` for an axis, `heading` for a table, `words` for ticks,
 * `full` for a readout and `cell` for a table. `mayStretch`: an axis may be logarithmic.
 */
const COLUMNS = {
  k: { name: "Iterations", heading: "iteration", full: whole },
  transmission_time: { cell: short },
  bits: { name: "Bits", heading: "bits on air", full: whole, cell: short },
  seconds: { full: (value) => `${digits(value, 4)} (${duration(value)})`, cell: digits },
  consensus_error: { mayStretch: true },
  train_loss: { heading: "training loss", mayStretch: true },
  broadcasts: { label: "broadcasts so far", full: whole },
  fired: { heading: "times fired" },
};

export const AXES = ["k", "transmission_time", "bits", "seconds"];
/** The columns of all curves besides measures, in the order in which they are offered. */
export const COMMON = ["consensus_error", "train_loss", "broadcasts", "transmission_time", "bits"];

/** The columns of these curves besides those of all runs and the measures: those of single drivers, or of the reader's own. */
export function furtherColumns(curves) {
  const known = new Set([...AXES, ...COMMON, ...measures.keys()]);
  return [...new Set(curves.flatMap((curve) => Object.keys(curve ?? {})))].filter((name) => !known.has(name));
}

/** The measures of what a measure is about: mean, extremes and spread over the devices, and that of the mean model. */
export function relatives(name) {
  const family = measures.get(name)?.family;
  return [...measures.values()].filter((one) => one.family === family).map((one) => one.name);
}

/** A measure of the last evaluation of a run, in words; empty if there was no evaluation. */
export function latestWords({ latest }, name) {
  if (isKnown(latest[name])) return measureOf(name).full(latest[name]);
  return Object.keys(latest).length ? "not recorded" : "";
}

export function measureOf(column) {
  const { heading = column.replaceAll("_", " "), ...own } = COLUMNS[column] ?? {};
  const { label = heading, better } = measures.get(column) ?? {};
  const full = column.includes("accuracy") ? accuracyWords : digits;
  const known = { name: label[0].toUpperCase() + label.slice(1), heading, label, words: short, full, mayStretch: better === "lower", ...own };
  return { cell: known.full, ...known };
}

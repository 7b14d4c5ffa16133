// What is measured of a run over time: how it is called, and how its numbers are written. A metric of the reader's own is shown, too.
import { accuracyWords, digits, duration, short, whole } from "./format.js";

const precise = (value) => digits(value, 5);

/**
 * By column of a curve: `name` for a list to choose from, `label` for an axis, `heading` for a table, `words` for ticks,
 * `full` for a readout and `cell` for a table. `mayStretch`: an axis may be logarithmic.
 */
const MEASURES = {
  k: { name: "Iterations", heading: "iteration", label: "iteration", full: whole },
  transmission_time: { label: "transmission time", full: precise, cell: short },
  bits: { name: "Bits", heading: "bits on air", label: "bits on air", full: whole, cell: short },
  seconds: { label: "seconds", full: (value) => `${digits(value, 4)} (${duration(value)})`, cell: digits },
  accuracy: { label: "mean of the devices", full: accuracyWords },
  mean_model_accuracy: { name: "Accuracy of the mean model", heading: "accuracy, mean model", label: "accuracy", full: accuracyWords },
  accuracy_min: { name: "Accuracy of the worst device", heading: "accuracy, worst device", label: "accuracy", full: accuracyWords },
  accuracy_max: { name: "Accuracy of the best device", heading: "accuracy, best device", label: "accuracy", full: accuracyWords },
  consensus_error: { label: "spread of the models", mayStretch: true },
  train_loss: { name: "Training loss", heading: "training loss", label: "loss", mayStretch: true },
  broadcasts: { label: "broadcasts so far", full: whole },
  fired: { heading: "times fired" },
  fired_in_sample: { heading: "fired in the sample" },
};

export const AXES = ["k", "transmission_time", "bits", "seconds"];
/** The measures of all runs, in the order in which they are offered. */
export const COMMON = ["accuracy", "mean_model_accuracy", "accuracy_min", "accuracy_max", "consensus_error", "train_loss", "broadcasts", "transmission_time", "bits"];

/** The columns of these curves besides those of all runs: metrics of single drivers, or of the reader's own. */
export function furtherColumns(curves) {
  const known = new Set([...AXES, ...COMMON]);
  return [...new Set(curves.flatMap((curve) => Object.keys(curve ?? {})))].filter((name) => !known.has(name));
}

export function measureOf(column) {
  const heading = column.replaceAll("_", " ");
  const known = { name: heading[0].toUpperCase() + heading.slice(1), heading, label: heading, words: short, full: digits, ...MEASURES[column] };
  return { cell: known.full, ...known };
}

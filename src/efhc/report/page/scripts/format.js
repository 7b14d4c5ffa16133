// Numbers in words.

const GROUPED = new Intl.NumberFormat("en-US");
export const isKnown = Number.isFinite;

export function whole(value) {
  return isKnown(value) ? GROUPED.format(Math.round(value)) : "–";
}

export function digits(value, count = 4) {
  if (!isKnown(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(Math.max(0, count - 2));
  return size >= 10 ** count ? GROUPED.format(Math.round(value)) : String(Number(value.toPrecision(count)));
}

export function accuracyWords(value) {
  return isKnown(value) ? value.toFixed(3) : "–";
}

const UNITS = ["", "k", "M", "G", "T", "P"];

/** A short number for an axis or a narrow cell: 0.25, 12,500, 12.5M. */
export function short(value) {
  const size = Math.abs(value);
  return size < 1e6 && (size >= 1e3 || Number.isInteger(value)) ? whole(value) : scaled(value);
}

/** A short number before a unit: 0.25, 12.5k, 12.5M. */
export function scaled(value) {
  if (!isKnown(value)) return "–";
  const size = Math.abs(value);
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  if (size < 1e4) return String(Number(value.toPrecision(4)));
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(size) / 3));
  return Number((value / 1000 ** power).toPrecision(3)) + UNITS[power];
}

export function duration(seconds) {
  if (!isKnown(seconds)) return "–";
  if (seconds < 1) return "under 1 s";
  const total = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${total % 60} s` : `${total} s`;
}

export function plural(count, word) {
  return `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
}

const SHOWN_LABELS = 10;

export function labelWords(labels) {
  const shown = labels.slice(0, SHOWN_LABELS).join(", ");
  return labels.length > SHOWN_LABELS ? `${shown} and ${labels.length - SHOWN_LABELS} more` : shown;
}

export function fileName(words) {
  return String(words ?? "runs").replace(/[^\w.-]+/g, "_").slice(0, 80);
}

/** How often each value occurs, by value. */
export function counted(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}

// Scales of axes: linear or logarithmic, with ticks at round numbers; and places in columns that grow.

function niceStep(span, count) {
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const share = raw / power;
  return (share < 1.4 ? 1 : share < 3 ? 2 : share < 7 ? 5 : 10) * power;
}

/** Returns a scale from values between `low` and `high` to pixels between `from` and `to`, with about `count` ticks. */
export function linear(low, high, from, to, count) {
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  const step = niceStep(high - low, count);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) ticks.push(Number((n * step).toPrecision(12)));
  return { at, ticks, back: (pixel) => low + ((pixel - from) / (to - from)) * (high - low), low, high };
}

export function logarithmic(low, high, from, to, count) {
  const [first, last] = [Math.log10(low), Math.log10(high > low ? high : 10 * low)];
  const inner = linear(first, last, from, to, count);
  const at = (value) => inner.at(Math.log10(Math.max(value, 1e-300)));
  const between = 3 * (last - first) <= 1.5 * count ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((last - first) / count));
  const ticks = [];
  for (let power = Math.floor(first); power <= last; power++) {
    if (power % every) continue;
    for (const digit of between) {
      const tick = digit * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return { at, ticks, back: (pixel) => 10 ** inner.back(pixel), low, high };
}

/** The last index whose value is at most `k`, or -1. The values grow. */
export function lastUpTo(values, k) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= k) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Where devices are drawn: so that distances on the screen go with the number of links between them.
//
// Stress is reduced by stochastic gradient descent over pairs (Zheng, Pawar, Goodman: Graph Drawing by Stochastic
// Gradient Descent, 2018): of all pairs of small networks, of links and pairs with some devices in large ones. The random
// numbers have a fixed seed: the same network is always drawn alike.

const ROUNDS = 30;
const ALL_PAIRS = 200;
const PIVOTS = 40;
const NEAR = 12;
const STRETCHED = 1.6;

function randomNumbers(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** The number of links from a device to each other one; -1 to those that it does not reach. */
function distancesFrom(start, near) {
  const far = new Int32Array(near.length).fill(-1);
  far[start] = 0;
  const found = [start];
  for (const i of found) {
    for (const j of near[i]) {
      if (far[j] >= 0) continue;
      far[j] = far[i] + 1;
      found.push(j);
    }
  }
  return far;
}

/** Returns x and y of each device, between 0 and 1, with the proportions of `aspect` (width over height) in mind. */
export function places(count, links, aspect = 1) {
  if (count === 1) return { x: [0.5], y: [0.5] };
  const random = randomNumbers(count);
  const both = links.flatMap(([i, j]) => [[i, j], [j, i]]).filter(([i, j]) => i !== j && i < count && j < count);
  const near = Array.from({ length: count }, () => []);
  for (const [i, j] of both) near[i].push(j);
  const small = count <= ALL_PAIRS;
  const everyone = [...near.keys()];
  const sources = small ? everyone : shuffled(everyone, random).slice(0, PIVOTS);
  const from = sources.map((i) => distancesFrom(i, near));
  const longest = Math.max(1, ...from.map((far) => far.reduce((a, b) => Math.max(a, b), 0)));
  const pairs = [];
  sources.forEach((i, n) => {
    for (let j = small ? i + 1 : 0; j < count; j++) {
      // Parts of the network that cannot reach one another are drawn apart.
      if (i !== j) pairs.push([i, j, from[n][j] < 0 ? longest + 1 : from[n][j]]);
    }
  });
  if (!small) for (const [i, j] of shuffled(near.flatMap((list, i) => list.map((j) => [i, j])), random).slice(0, NEAR * count)) pairs.push([i, j, 1]);
  // Neighbours of the same devices have the same distances; a little of their own keeps them apart.
  for (const pair of pairs) pair[2] += 0.25 * random();

  const x = Float64Array.from({ length: count }, () => random() * longest);
  const y = Float64Array.from({ length: count }, () => random() * longest);
  const rate = Math.log(0.1 / (longest + 1) ** 2) / (ROUNDS - 1);
  for (let round = 0; round < ROUNDS; round++) {
    const step = (longest + 1) ** 2 * Math.exp(rate * round);
    shuffled(pairs, random);
    for (const [i, j, wanted] of pairs) {
      let [dx, dy] = [x[i] - x[j], y[i] - y[j]];
      const length = Math.hypot(dx, dy) || 1e-9;
      const move = (Math.min(1, step / wanted ** 2) * (length - wanted)) / (2 * length);
      (dx *= move), (dy *= move);
      (x[i] -= dx), (y[i] -= dy), (x[j] += dx), (y[j] += dy);
    }
  }
  return fitted(x, y, aspect);
}

function shuffled(list, random) {
  for (let n = list.length - 1; n > 0; n--) {
    const other = Math.floor(random() * (n + 1));
    [list[n], list[other]] = [list[other], list[n]];
  }
  return list;
}

/** Turns the long side of the drawing to the long side of the panel, and scales it to 0 ... 1. */
function fitted(x, y, aspect) {
  const count = x.length;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / count;
  const [mx, my] = [mean(x), mean(y)];
  let [xx, yy, xy] = [0, 0, 0];
  for (let i = 0; i < count; i++) (xx += (x[i] - mx) ** 2), (yy += (y[i] - my) ** 2), (xy += (x[i] - mx) * (y[i] - my));
  const angle = 0.5 * Math.atan2(2 * xy, xx - yy) + (aspect < 1 ? Math.PI / 2 : 0);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const u = Array.from(x, (_, i) => (x[i] - mx) * cos + (y[i] - my) * sin);
  const v = Array.from(x, (_, i) => (y[i] - my) * cos - (x[i] - mx) * sin);
  const [ulow, uhigh, vlow, vhigh] = [Math.min(...u), Math.max(...u), Math.min(...v), Math.max(...v)];
  // Both directions fill the panel, but neither is stretched much more than the other.
  const [wide, high] = [Math.max(uhigh - ulow, 1e-9) / aspect, Math.max(vhigh - vlow, 1e-9)];
  const [across, down] = [Math.max(wide, high / STRETCHED) * aspect, Math.max(high, wide / STRETCHED)];
  return {
    x: u.map((value) => 0.5 + (value - (ulow + uhigh) / 2) / across),
    y: v.map((value) => 0.5 + (value - (vlow + vhigh) / 2) / down),
  };
}

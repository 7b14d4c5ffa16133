"""Fig. 2(a) of the paper, panels (i) to (iii), from scratch: NumPy, random numbers of its own, no code of efhc."""

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

DEVICES, CLASSES, PIXELS = 10, 10, 784
N = CLASSES * (PIXELS + 1)
NOMINAL = 5000.0  # b_M
R = 0.05 * NOMINAL
RADIUS = 0.4
MEAN, DEVIATION = 0.2860, 0.3530
STRATEGIES = ("EF-HC", "GT", "ZT", "RG")


class Images(NamedTuple):
    """Fashion-MNIST as it is on disk: bytes, one image per row."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class World(NamedTuple):
    """What all strategies of a seed share."""

    adjacency: np.ndarray  # (m, m), True where a link is
    bandwidths: np.ndarray
    samples: list[np.ndarray]  # the training samples of each device
    initial: np.ndarray  # (m, classes, pixels + 1), the bias last


class Row(NamedTuple):
    """After iteration k: what was paid so far, and the mean over devices of the accuracy of the models W(k+1)."""

    strategy: str
    seed: int
    iteration: int
    total_time: float
    accuracy: float


def read_images(folder: Path) -> Images:
    def content(name: str, header: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    return Images(
        content("train-images-idx3-ubyte.gz", 16).reshape(-1, PIXELS),
        content("train-labels-idx1-ubyte.gz", 8),
        content("t10k-images-idx3-ubyte.gz", 16).reshape(-1, PIXELS),
        content("t10k-labels-idx1-ubyte.gz", 8),
    )


def inputs(images: np.ndarray) -> np.ndarray:
    """Standardized, and a 1 for the bias."""
    x = np.ones((len(images), PIXELS + 1), np.float32)
    x[:, :PIXELS] = (images / np.float32(255) - np.float32(MEAN)) / np.float32(DEVIATION)
    return x


def geometric_graph(rng: np.random.Generator) -> np.ndarray:
    """Links between points of the unit square at most RADIUS apart; drawn again until one can reach all from one."""
    while True:
        points = rng.random((DEVICES, 2))
        near = np.linalg.norm(points[:, None] - points[None, :], axis=2) <= RADIUS
        if (np.linalg.matrix_power(near.astype(int), DEVICES) > 0).all():
            return near & ~np.eye(DEVICES, dtype=bool)


def draw_world(seed: int, y_train: np.ndarray) -> World:
    rng = np.random.default_rng(seed)
    label_of = rng.permutation(CLASSES)
    bound = 1 / np.sqrt(PIXELS)
    return World(
        geometric_graph(rng),
        rng.uniform(0.1 * NOMINAL, 1.9 * NOMINAL, DEVICES),
        [np.flatnonzero(y_train == label) for label in label_of],
        rng.uniform(-bound, bound, (DEVICES, CLASSES, PIXELS + 1)).astype(np.float32),
    )


def thresholds(strategy: str, bandwidths: np.ndarray) -> np.ndarray:
    """Of each device, to be multiplied by gamma(k)."""
    rho = {"EF-HC": 1 / bandwidths, "GT": np.full(DEVICES, 1 / NOMINAL), "ZT": np.zeros(DEVICES)}
    return R * rho[strategy]


def transmission_time(used: np.ndarray, degrees: np.ndarray, bandwidths: np.ndarray) -> float:
    """(1/m) Σ_i (Σ_j v_ij / d_i) n / b_i"""
    return float(np.mean(used.sum(axis=1) / degrees * N / bandwidths))


def gradients(models: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of Σ_{j≠y} max(0, 1 - s_y + s_j) / classes, one sample per device."""
    devices = np.arange(DEVICES)
    scores = (models @ x[:, :, None])[:, :, 0]
    slope = (1 - scores[devices, y][:, None] + scores > 0).astype(np.float32)
    slope[devices, y] = 0
    slope[devices, y] = -slope.sum(axis=1)
    return (slope / CLASSES)[:, :, None] * x[:, None, :]


def accuracy(models: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The mean over devices."""
    scores = (x @ models.reshape(-1, PIXELS + 1).T).reshape(-1, DEVICES, CLASSES)
    return float(np.mean(scores.argmax(axis=2) == y[:, None]))


def run(
    strategy: str, seed: int, world: World, images: Images, x_test: np.ndarray, iterations: int, every: int
) -> Iterator[Row]:
    """Rows at k = 0 and wherever k + 1 is a multiple of `every`. All strategies see the same samples."""
    batches, coins = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    degrees = world.adjacency.sum(axis=1)
    weights = 1 / (1 + np.maximum(degrees[:, None], degrees[None, :]))  # β_ij
    sizes = [len(samples) for samples in world.samples]
    models, last_broadcast, total = world.initial, world.initial.copy(), 0.0
    for k in range(iterations):
        alpha = gamma = 0.1 / np.sqrt(1 + k)
        if strategy == "RG":
            fires = coins.random(DEVICES) < 1 / DEVICES
        else:
            drift = np.linalg.norm((models - last_broadcast).reshape(DEVICES, N), axis=1) / np.sqrt(N)
            fires = drift >= thresholds(strategy, world.bandwidths) * gamma
        last_broadcast[fires] = models[fires]
        used = world.adjacency & (fires[:, None] | fires[None, :])
        total += transmission_time(used, degrees, world.bandwidths)

        mixing = weights * used
        mixing += np.diag(1 - mixing.sum(axis=1))
        batch = [samples[at] for samples, at in zip(world.samples, batches.integers(sizes), strict=True)]
        gradient = gradients(models, inputs(images.x_train[batch]), images.y_train[batch])
        mixed = (mixing.astype(np.float32) @ models.reshape(DEVICES, N)).reshape(models.shape)
        models = mixed - np.float32(alpha) * gradient
        if k == 0 or (k + 1) % every == 0:
            yield Row(strategy, seed, k, total, accuracy(models, x_test, images.y_test))


def run_all(images: Images, seeds: Sequence[int], iterations: int, every: int) -> Iterator[Row]:
    x_test = inputs(images.x_test)
    for seed in seeds:
        world = draw_world(seed, images.y_train)
        for strategy in STRATEGIES:
            yield from run(strategy, seed, world, images, x_test, iterations, every)

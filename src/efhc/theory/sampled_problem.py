"""The constants of any model, estimated from gradients that the run's backend computes.

The random numbers drawn here come from streams of their own, never from those of a run, and are the same in every call:
a result depends only on the models. If a loss draws random numbers itself (dropout), all gradients except those of
mini-batches use the same ones.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Backend, Batch
from efhc.learning.batches import draw_subsets
from efhc.learning.data.dataset import Dataset
from efhc.theory.problem import Curvature, Noise, NoiseSource, Problem

AT_ONCE = 1024
"""The number of samples per device and call of the backend: the activations of a network must fit in memory."""
BATCHES, DIRECTIONS = 0, 1
"""The purposes of the random streams."""


class SampledProblem(Problem):
    """F_i of any model. The gradient over all samples of a device is the weighted mean of gradients over pieces.

    `draws` is the number of mini-batches per device from which the noise is estimated. `rounds` is the number of
    Hessian-vector products from which the curvature is estimated; each takes two gradients over all samples.
    """

    def __init__(
        self,
        backend: Backend,
        data: Dataset,
        parts: list[Ints],
        batch_size: int | Literal["full"],
        randomness: Randomness,
        *,
        draws: int = 8,
        rounds: int = 12,
    ) -> None:
        self.devices, self._backend, self._parts = len(parts), backend, parts
        self._batch_size, self._draws, self._rounds = batch_size, draws, rounds
        self._precision, self._seed = np.dtype(data.precision), randomness.seed
        self._pieces = _pieces(parts, AT_ONCE)

    @property
    def noise_source(self) -> NoiseSource | None:
        return None if self._batch_size == "full" else NoiseSource(self._draws, "mini-batches")

    def local(self, model: Floats) -> tuple[Floats, Floats]:
        return self._gradients(np.tile(model, (self.devices, 1)))

    def noise(self, models: Floats) -> Noise:
        """Return the mean of ||g_i - grad F_i||^2 over independent mini-batches, and its standard error."""
        if self._batch_size == "full":
            return Noise(np.zeros(self.devices), np.zeros(self.devices))
        size, stream = self._batch_size, self._stream(BATCHES)
        batches = np.stack(
            [part[draw_subsets(len(part), size, self._draws, stream)] for part in self._parts], axis=1
        ).astype(np.int32)
        _, exact = self._gradients(models)
        squares = np.empty((self._draws, self.devices))
        for k, samples in enumerate(batches):
            squares[k] = np.square(self._call(models, Batch(k, samples))[1] - exact).sum(axis=1)
        return Noise(squares.mean(axis=0), squares.std(axis=0, ddof=1) / np.sqrt(self._draws))

    def curvature(self, model: Floats) -> Curvature:
        """Estimate the norm and the smallest eigenvalue of each device's Hessian H_i at w by Lanczos' method.

        The method starts from a random direction v_i per device and finds the extreme eigenvalues of H_i restricted to
        the span of v_i, H_i v_i, H_i^2 v_i, ... The true norm is at least the estimate, and the true smallest
        eigenvalue (negative where F_i is not convex) is at most the estimate. Products are central differences,
        H_i v = (grad F_i(w + h v) - grad F_i(w - h v)) / 2h, for all devices at once.
        """
        w = model.astype(np.float64)
        tiny = float(np.finfo(self._precision).eps)
        h = tiny ** (1 / 3) * max(1.0, float(np.linalg.norm(w)))

        direction = self._stream(DIRECTIONS).normal(size=(self.devices, len(w)))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        before, link = np.zeros_like(direction), np.zeros(self.devices)
        diagonal, beside = np.zeros((self.devices, self._rounds)), np.zeros((self.devices, self._rounds))
        going = np.ones(self.devices, dtype=bool)
        for r in range(self._rounds):
            image = (self._gradients(w + h * direction)[1] - self._gradients(w - h * direction)[1]) / (2 * h)
            quotient = (direction * image).sum(axis=1)
            # Where the span is complete, a repeated number from within the spectrum leaves its ends alone.
            diagonal[:, r] = np.where(going, quotient, diagonal[:, 0])
            image -= quotient[:, None] * direction + link[:, None] * before
            link = np.linalg.norm(image, axis=1)
            size = np.abs(diagonal[:, : r + 1]).max(axis=1)
            going &= link > tiny ** (1 / 2) * size
            link = np.where(going, link, 0)
            beside[:, r] = link
            before, direction = direction, image / np.where(going, link, np.inf)[:, None]
        tridiagonal = np.zeros((self.devices, self._rounds, self._rounds))
        at = np.arange(self._rounds)
        tridiagonal[:, at, at] = diagonal
        tridiagonal[:, at[1:], at[:-1]] = beside[:, :-1]  # eigvalsh reads the lower triangle
        eigenvalues = np.linalg.eigvalsh(tridiagonal)
        return Curvature(np.abs(eigenvalues).max(axis=1), eigenvalues[:, 0], "estimate")

    def _stream(self, purpose: int) -> np.random.Generator:
        """Return a random generator that differs from all generators of a run."""
        return np.random.default_rng((0xEF4C, self._seed, purpose))

    def _gradients(self, models: Floats) -> tuple[Floats, Floats]:
        """Return F_i(w_i) and grad F_i(w_i), for each device at its own model."""
        losses, gradients = np.zeros(self.devices), np.zeros(models.shape)
        for samples, share in self._pieces:
            some_losses, some = self._call(models, Batch(0, samples))
            losses += share * some_losses
            gradients += share[:, None] * some
        return losses, gradients

    def _call(self, models: Floats, batch: Batch) -> tuple[Floats, Floats]:
        as_trained = np.ascontiguousarray(models, dtype=self._precision)
        gradients = np.empty_like(as_trained)
        losses, _ = self._backend.grads(as_trained, batch, self._backend.initial_local(self.devices), gradients)
        return losses.astype(np.float64), gradients.astype(np.float64)


def _pieces(parts: list[Ints], most: int) -> list[tuple[list[Ints], Floats]]:
    """Return pieces of at most `most` samples per device, each with the share of every device's samples in it.

    A device without samples in a piece contributes its first sample, with a share of 0.
    """
    count = -(-max(map(len, parts)) // most)
    cut = [np.array_split(part, count) for part in parts]
    sizes = np.array([len(part) for part in parts])
    pieces = []
    for several in zip(*cut, strict=True):
        share = np.array([len(piece) for piece in several]) / sizes
        shown = [piece if len(piece) else part[:1] for piece, part in zip(several, parts, strict=True)]
        pieces.append((shown, share))
    return pieces

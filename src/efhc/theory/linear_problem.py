"""The constants of the built-in linear classifiers: exact, or bounds that certainly hold; and w*.

The inputs are exactly what the run's models see, in the precision of the run; all further arithmetic is in float64.
Notation: x~ = (x, 1) is an input with a 1 for the bias, s = A x~ are the scores, (dl/ds) x~^T is the gradient of a
sample's loss with respect to A, and S_i is the mean of x~ x~^T over the samples of device i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import EfhcError
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.linear import SVM, LeastSquares, Softmax
from efhc.theory.problem import Curvature, Noise, NoiseSource, Optimum, Problem

HELD = 2**25
"""The number of input values up to which all inputs are kept in memory as float64 (256 MiB)."""
AT_ONCE = 2**18
"""The number of input values that are processed at once (2 MiB, small enough to stay in a processor's cache)."""
CLOSE = 1e-10
"""The largest distance ||grad F(w)|| / mu at which w counts as the minimiser."""
NEWTON_STEPS, HALVINGS, CONJUGATE_STEPS = 50, 12, 1000
"""The largest numbers of Newton steps, of halvings of one step, and of conjugate-gradient steps for one step."""
LBFGS_GRADIENT = 1e-5
"""The largest entry of grad F at which L-BFGS ends and Newton's method takes over."""
FORCING = 1e-2
"""The residual at which a Newton system counts as solved, relative to ||grad F||."""

Function = Callable[[Floats], tuple[float, Floats]]
"""Returns F and grad F at a model, which may have any shape."""


class LinearProblem(Problem):
    """F_i of an SVM, softmax regression or least squares.

    `parts` holds the training samples of each device. `noise_samples` is the number of samples per device from which
    the noise is estimated; `seed` draws them. Default: all samples, which is exact.
    """

    def __init__(
        self,
        model: SVM | Softmax | LeastSquares,
        data: Dataset,
        parts: list[Ints],
        batch_size: int | Literal["full"],
        seed: int = 0,
        noise_samples: int | None = None,
    ) -> None:
        self._seed, self._noise_samples = seed, noise_samples
        self.devices, self._model, self._data = len(parts), model, data
        self._l2 = 0.0 if isinstance(model, SVM) else model.l2
        self._sizes = np.array([len(part) for part in parts])
        self._batch_sizes = self._sizes if batch_size == "full" else np.full(self.devices, batch_size)
        # The devices' samples end to end; a sample that several devices have occurs several times.
        self._samples, self._ends = np.concatenate(parts), np.cumsum([0, *self._sizes])
        self._labels = data.y_train[self._samples]
        self._weights = np.repeat(1 / (self.devices * self._sizes), self._sizes)
        """The weight of each sample's loss in F."""

    @staticmethod
    def knows(model: Any) -> bool:
        """Return whether this class has the constants of `model`."""
        return isinstance(model, SVM | Softmax | LeastSquares)

    @property
    def noise_source(self) -> NoiseSource | None:
        most = self._noise_samples
        estimated = most is not None and ((self._batch_sizes < self._sizes) & (self._sizes > most)).any()
        return NoiseSource(most, "samples") if most is not None and estimated else None

    def local(self, model: Floats) -> tuple[Floats, Floats]:
        w = model.astype(np.float64)
        losses, gradients = np.zeros(self.devices), np.zeros((self.devices, len(w)))
        for i, n_i in enumerate(self._sizes):
            losses[i], gradients[i] = self._sums(w, self._rows_of(i), np.broadcast_to(1 / n_i, len(self._weights)))
        return losses, gradients

    def noise(self, models: Floats) -> Noise:
        """sigma_i^2 = (1/b) (n_i - b)/(n_i - 1) (1/n_i) sum_xi ||grad l_xi - grad F_i||^2.

        This is the variance of a mean over b of n_i samples, drawn without replacement. The L2 term cancels in the
        difference, and ||grad l_xi|| = ||dl/ds|| ||x~||. For a device with more than `noise_samples` samples, the sum
        is estimated from `noise_samples` of them; else it is exact.
        """
        variance, error = np.zeros(self.devices), np.zeros(self.devices)
        for i, (n_i, b) in enumerate(zip(self._sizes, self._batch_sizes, strict=True)):
            if b < n_i:
                w, share = models[i].astype(np.float64), (n_i - b) / (b * (n_i - 1))
                if self._noise_samples is None or n_i <= self._noise_samples:
                    variance[i] = share * self._spread(w, i)
                else:
                    variance[i], error[i] = share * np.array(self._estimated_spread(w, i, self._noise_samples))
        return Noise(variance, error)

    def curvature(self, model: Floats) -> Curvature:
        """Return L_i and mu_i, which are the same at every `model`.

        Least squares: the Hessian with respect to each class's row of A is S_i + l2 I, so L_i and mu_i are exact.
        Softmax: the Hessian of a sample's cross-entropy with respect to its scores, diag(p) - p p^T, has eigenvalues
        between 0 and 1/2, so L_i <= lambda_max(S_i)/2 + l2 and mu_i >= l2.
        """
        return self._curvature

    def optimum(self) -> Optimum | None:
        """Return w*, or None where it may not be unique: for an SVM, and for softmax regression without an L2 term."""
        model, data = self._model, self._data
        if isinstance(model, LeastSquares):
            shape = data.classes, data.features + 1

            def by_rows(rows: Floats) -> tuple[float, Floats]:
                loss, gradient = self._total(_flat(rows))
                return loss, _rows(gradient, shape)

            hessian = self._second_moment(self._pieces(0, len(self._samples)), self._weights)
            found = least_squares_optimum(by_rows, hessian + model.l2 * np.eye(len(hessian)), shape)
            return None if found is None else found._replace(model=_flat(found.model))
        if isinstance(model, Softmax) and model.l2 > 0:
            return smooth_optimum(self._total, self._hessian, np.zeros(model.parameters(data)), model.l2)
        return None

    @cached_property
    def _curvature(self) -> Curvature:
        if isinstance(self._model, SVM):
            return Curvature(np.full(self.devices, np.inf), np.zeros(self.devices), "exact")
        if isinstance(self._model, Softmax):
            largest = np.array([self._largest(i) for i in range(self.devices)])
            return Curvature(largest / 2 + self._l2, np.full(self.devices, self._l2), "bound")
        smallest, largest = np.array([self._extremes(i) for i in range(self.devices)]).T
        return Curvature(largest + self._l2, smallest + self._l2, "exact")

    def _largest(self, device: int) -> float:
        """Return lambda_max(S_i). S_i itself is not formed: that takes far longer than a few products with it."""
        from scipy.sparse.linalg import LinearOperator, eigsh

        n_i, size = int(self._sizes[device]), self._data.features + 1
        x = np.empty((n_i, size - 1), dtype=self._data.precision)
        for rows in self._rows_of(device):  # they are scaled once for all products
            x[rows.start - self._ends[device] : rows.stop - self._ends[device]] = self._as_trained(rows)

        def product(v: Floats) -> Floats:
            image = np.zeros(size)
            for piece in self._pieces(0, n_i):
                some = x[piece].astype(np.float64, copy=False)
                along = some @ v[:-1] + v[-1]
                image[:-1] += along @ some
                image[-1] += along.sum()
            return image / n_i

        start = np.random.default_rng(0).standard_normal(size)
        matrix = LinearOperator((size, size), matvec=product, dtype=np.float64)
        return float(eigsh(matrix, k=1, which="LA", v0=start, return_eigenvectors=False)[0])

    def _extremes(self, device: int) -> tuple[float, float]:
        """Return lambda_min(S_i), which is 0 if there are fewer samples than entries of x~, and lambda_max(S_i)."""
        n_i = self._sizes[device]
        if n_i <= self._data.features:
            x = self._inputs(slice(self._ends[device], self._ends[device + 1]))
            return 0.0, float(np.linalg.eigvalsh((x @ x.T + 1) / n_i)[-1])  # X~ X~^T has the eigenvalues of X~^T X~
        eigenvalues = np.linalg.eigvalsh(self._second_moment(self._rows_of(device)) / n_i)
        return max(0.0, float(eigenvalues[0])), float(eigenvalues[-1])

    def _second_moment(self, pieces: Iterator[slice], weights: Floats | None = None) -> Floats:
        """Return the sum of x~ x~^T over the samples, each with its weight. Default: weights of 1."""
        features = self._data.features
        moment = np.zeros((features + 1, features + 1))
        for rows in pieces:
            x = self._inputs(rows)
            scale = np.ones(len(x)) if weights is None else np.sqrt(weights[rows])
            x = x if weights is None else x * scale[:, None]
            moment[:-1, :-1] += x.T @ x
            moment[-1, :-1] += scale @ x
            moment[-1, -1] += scale @ scale
        moment[:-1, -1] = moment[-1, :-1]
        return moment

    def _spread(self, w: Floats, device: int) -> float:
        """Return (1/n_i) sum_xi ||grad l_xi - grad F_i||^2."""
        shape = self._data.classes, self._data.features + 1
        squares, total = 0.0, np.zeros(shape)
        for rows in self._rows_of(device):
            x = self._inputs(rows)
            _, by_score = self._model.score_loss(self._model.scores(w, x), self._labels[rows])
            squares += float(np.square(by_score).sum(axis=1) @ (np.square(x).sum(axis=1) + 1))
            total += _outer(by_score, x)
        mean = total / self._sizes[device]
        return max(0.0, squares / float(self._sizes[device]) - float(np.square(mean).sum()))

    def _estimated_spread(self, w: Floats, device: int, samples: int) -> tuple[float, float]:
        """Return an estimate of `_spread` from `samples` samples, the same in every call, and its standard error."""
        stream = np.random.default_rng((0xEF4C, self._seed, device))
        first, end = self._ends[device], self._ends[device + 1]
        chosen = np.sort(stream.choice(end - first, samples, replace=False)) + first
        x, labels = self._converted(chosen), self._labels[chosen]
        _, by_score = self._model.score_loss(self._model.scores(w, x), labels)
        mean = _outer(by_score, x) / samples
        # ||g - mean||^2 = ||g||^2 - 2 <g, mean> + ||mean||^2 with g = (dl/ds) x~^T
        along = ((x @ mean[:, :-1].T + mean[:, -1]) * by_score).sum(axis=1)
        squares = np.square(by_score).sum(axis=1) * (np.square(x).sum(axis=1) + 1) - 2 * along + np.square(mean).sum()
        unbiased = samples / (samples - 1)  # the mean is that of the same samples
        return float(unbiased * squares.mean()), float(unbiased * squares.std(ddof=1) / np.sqrt(samples))

    def _total(self, w: Floats) -> tuple[float, Floats]:
        """Return F(w) and grad F(w)."""
        return self._sums(w, self._pieces(0, len(self._samples)), self._weights)

    def _sums(self, w: Floats, pieces: Iterator[slice], weights: Floats) -> tuple[float, Floats]:
        """Return the weighted sums of losses and gradients. The weights sum to 1, so the L2 term is added once."""
        loss, gradient = 0.0, np.zeros((self._data.classes, self._data.features + 1))
        for rows in pieces:
            x = self._inputs(rows)
            losses, by_score = self._model.score_loss(self._model.scores(w, x), self._labels[rows])
            loss += float(weights[rows] @ losses)
            gradient += _outer(by_score * weights[rows, None], x)
        return loss + self._l2 / 2 * float(w @ w), _flat(gradient) + self._l2 * w

    def _hessian(self, w: Floats) -> Callable[[Floats], Floats]:
        """Return v -> H v for the softmax F at w: the weighted sum of (diag(p) - p p^T) V x~ x~^T, plus l2 V."""
        probabilities = np.empty((len(self._samples), self._data.classes))
        for rows in self._pieces(0, len(self._samples)):
            _, probabilities[rows] = self._model.score_loss(
                self._model.scores(w, self._inputs(rows)), self._labels[rows]
            )
        probabilities[np.arange(len(probabilities)), self._labels] += 1  # the derivative by the scores is p - e_y

        def product(v: Floats) -> Floats:
            image = np.zeros((self._data.classes, self._data.features + 1))
            for rows in self._pieces(0, len(self._samples)):
                x, p = self._inputs(rows), probabilities[rows]
                by_score = p * self._model.scores(v, x)
                by_score -= p * by_score.sum(axis=1, keepdims=True)
                image += _outer(by_score * self._weights[rows, None], x)
            return _flat(image) + self._l2 * v

        return product

    def _rows_of(self, device: int) -> Iterator[slice]:
        return self._pieces(int(self._ends[device]), int(self._ends[device + 1]))

    def _pieces(self, first: int, end: int) -> Iterator[slice]:
        """Yield the samples `first` .. `end` - 1 in pieces of at most `AT_ONCE` input values."""
        most = max(1, AT_ONCE // self._data.features)
        return (slice(low, min(low + most, end)) for low in range(first, end, most))

    def _inputs(self, rows: slice) -> Floats:
        return self._converted(rows) if self._held is None else self._held[rows]

    @cached_property
    def _held(self) -> Floats | None:
        if len(self._samples) * self._data.features > HELD:
            return None
        held = np.empty((len(self._samples), self._data.features))
        for rows in self._pieces(0, len(held)):
            held[rows] = self._converted(rows)
        return held

    def _converted(self, rows: slice | Ints) -> Floats:
        return self._as_trained(rows).astype(np.float64, copy=False)

    def _as_trained(self, rows: slice | Ints) -> Floats:
        """Return what the run's models see of these samples, in the precision of the run."""
        return self._data.inputs(self._data.x_train[self._samples[rows]])


def _outer(by_score: Floats, x: Floats) -> Floats:
    """Return the sum of (dl/ds) x~^T over the samples, (classes, features + 1)."""
    return np.column_stack([by_score.T @ x, by_score.sum(axis=0)])


def _flat(rows: Floats) -> Floats:
    """Return A, (classes, features + 1), as the flat vector of a model: the weights, then the biases."""
    return np.concatenate([rows[:, :-1].ravel(), rows[:, -1]])


def _rows(w: Floats, shape: tuple[int, int]) -> Floats:
    classes = shape[0]
    return np.column_stack([w[:-classes].reshape(classes, -1), w[-classes:]])


def least_squares_optimum(value_and_gradient: Function, hessian: Floats, shape: tuple[int, int]) -> Optimum | None:
    """Return the minimiser of a quadratic F, or None if its Hessian is singular to within rounding.

    The model has the given `shape`; H = `hessian` is the Hessian with respect to each of its rows theta_c. One Newton
    step from 0 solves the normal equations H theta_c = -grad_c F(0); a second one removes most of its rounding error.
    Raises an `EfhcError` if the result is further than `CLOSE` from w*.
    """
    eigenvalues = np.linalg.eigvalsh(hessian)
    convexity, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    if convexity <= len(hessian) * np.finfo(np.float64).eps * largest:
        return None
    factors = cho_factor(hessian)
    model: Floats = np.zeros(shape)
    for _ in range(2):
        model = model - cho_solve(factors, value_and_gradient(model)[1].T).T
    loss, gradient = value_and_gradient(model)
    norm = float(np.linalg.norm(gradient))
    if norm / convexity > CLOSE:
        raise _too_far(norm, convexity)
    return Optimum(model, loss, norm / convexity)


def _too_far(norm: float, convexity: float) -> EfhcError:
    return EfhcError(
        f"the minimiser of F is known to within {norm / convexity:.1e} only, not {CLOSE:.0e}: its gradient does not "
        f"get below {norm:.1e}, and its convexity is {convexity:g}; try a larger l2"
    )


def smooth_optimum(
    value_and_gradient: Function,
    hessian_product: Callable[[Floats], Callable[[Floats], Floats]],
    start: Floats,
    convexity: float,
) -> Optimum:
    """Return the minimiser of a smooth, strongly convex F: L-BFGS from `start`, then Newton's method.

    `convexity` is mu, and `hessian_product(w)(v)` is H v at w. A Newton step is halved until it shortens the gradient.
    A short enough step -H^-1 grad F always does: ||grad F||^2 / 2 has the slope -||grad F||^2 along it. Raises an
    `EfhcError` if no step brings the result within `CLOSE` of w*.
    """
    from scipy.optimize import minimize  # importing them takes longer than many a check that needs no w*
    from scipy.sparse.linalg import LinearOperator, cg

    model: Floats = minimize(
        value_and_gradient,
        start,
        method="L-BFGS-B",
        jac=True,
        options={"gtol": LBFGS_GRADIENT, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000},
    ).x
    loss, gradient = value_and_gradient(model)
    norm = float(np.linalg.norm(gradient))
    for _ in range(NEWTON_STEPS):
        if norm / convexity <= CLOSE:
            return Optimum(model, loss, norm / convexity)
        H = LinearOperator((len(model), len(model)), matvec=hessian_product(model))
        step, _ = cg(H, -gradient, rtol=0.0, atol=FORCING * norm, maxiter=CONJUGATE_STEPS)
        for halving in range(HALVINGS):
            size = 0.5**halving
            there = model + size * step
            loss_there, gradient_there = value_and_gradient(there)
            norm_there = float(np.linalg.norm(gradient_there))
            if norm_there <= (1 - size / 4) * norm:
                break
        else:
            break  # no step helps: what is left of the gradient is rounding
        model, loss, gradient, norm = there, loss_there, gradient_there, norm_there
    raise _too_far(norm, convexity)

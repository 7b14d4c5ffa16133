"""Sums of products whose shapes are constants of the machine code: all that the layers of small networks compute.

With a shape that is known, the sums of a tile stay in registers, every address is a constant away from another, and
loops are unrolled as far as it pays. LLVM does not find this by itself, so it is emitted here. The order of every sum
is written down, as in `lanes`; only compiled code can call the functions that are made here.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError

from efhc.kernels.lanes import BYTES, fused, intrinsic, loaded, pointer_to, size_of, spread, stored

MOST_SUMS = 12
"""Vectors of sums in a tile. With their factors they fill the 16 registers that every x86 processor has."""
UNROLLED = 8
"""Terms of an innermost loop that are written out, at most."""


class SumTerms(NamedTuple):
    """One loop over the terms of a sum: how many, and how far they lie apart in either factor."""

    number: int
    first: int
    second: int


class Product(NamedTuple):
    """out_ij = start_i + sum over all terms t of a_it x_tj, for rows i and columns j."""

    rows: int
    columns: int
    terms: tuple[SumTerms, ...]
    """Nested loops, the outermost first."""
    row_step: int
    """How far the factors a of two rows lie apart."""
    out_step: int
    """How far the sums of two rows lie apart."""
    start: Literal["zero", "bias", "add"]
    """Start from 0, from one number per row, or from what is in `out`."""


class Cross(NamedTuple):
    """out_ij += sum over all terms t of g_it * x_tj, for rows i and columns j, where g, x and out are whole vectors."""

    rows: int
    columns: int
    terms: tuple[SumTerms, ...]
    row_step: int
    column_step: int
    """How far the factors x of two columns lie apart."""
    out_step: int


@cache
def product(shape: Product) -> Any:
    """Return a function that computes it, given an array and a place in it for each of a, the biases, x and out."""

    @intrinsic
    def compute(typing, a, a_at, biases, biases_at, x, x_at, out, out_at):
        arguments = a, a_at, biases, biases_at, x, x_at, out, out_at
        return _emitting(lambda emitter, *places: emitter.product(shape, *places), arguments)

    return compute


@cache
def cross(shape: Cross) -> Any:
    """Return a function that computes it, given an array and a place in it for each of g, x and out."""

    @intrinsic
    def compute(typing, g, g_at, x, x_at, out, out_at):
        return _emitting(lambda emitter, *places: emitter.cross(shape, *places), (g, g_at, x, x_at, out, out_at))

    return compute


@cache
def transposed_tile(step: int, out_step: int) -> Any:
    """Return a function that turns a square of as many rows as a vector has numbers, given places of x and out."""

    @intrinsic
    def compute(typing, x, x_at, out, out_at):
        return _emitting(lambda emitter, x, out: emitter.transpose(x, step, out, out_step), (x, x_at, out, out_at))

    return compute


def _emitting(emit: Callable[..., None], kinds: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """The signature of a call with these kinds of arrays and places, and the code that it becomes.

    `emit` is given pointers to the places.
    """
    arrays = kinds[::2]
    if not all(kind.dtype == arrays[0].dtype and (kind.ndim, kind.layout) == (1, "C") for kind in arrays):
        raise TypingError(f"{arrays} are not rows of numbers of one precision")

    def code(context, builder, signature, values):
        pairs = zip(arrays, values[::2], values[1::2], strict=True)
        places = [pointer_to(context, builder, *pair) for pair in pairs]
        emit(_Emitter(builder, context.get_value_type(arrays[0].dtype)), *places)
        return context.get_dummy_value()

    return types.none(*kinds), code


INDEX = ir.IntType(64)


class _Emitter:
    """Emits the instructions of one product."""

    def __init__(self, builder: Any, number: Any) -> None:
        self.builder, self.number, self.lanes = builder, number, BYTES // size_of(number)

    def product(self, shape: Product, a: Any, bias: Any, x: Any, out: Any) -> None:
        """Tiles of two vectors by six rows, or one by twelve."""

        def tile(rows: int, columns: int, row: Any, column: Any) -> None:
            places = (
                self._move(a, self._times(row, shape.row_step)),
                self._move(bias, row),
                self._move(x, column),
                self._move(out, self._add(self._times(row, shape.out_step), column)),
            )
            self._product_tile(shape, rows, columns, *places)

        def most_rows(columns: int) -> int:
            return MOST_SUMS // math.ceil(columns / self.lanes)

        self._in_tiles(shape.rows, most_rows, shape.columns, 2 * self.lanes, tile)

    def _product_tile(self, shape, rows, columns, a, bias, x, out):
        vectors = [(start, min(self.lanes, columns - start)) for start in range(0, columns, self.lanes)]
        sums = []
        for i in range(rows):
            if shape.start == "bias":
                number = self.builder.load(self._move(bias, i))
            for start, width in vectors:
                if shape.start == "add":
                    sums.append(self._load(self._move(out, i * shape.out_step + start), width))
                elif shape.start == "bias":
                    sums.append(self._filled(number, width))
                else:
                    sums.append(ir.Constant(ir.VectorType(self.number, width), None))

        def step(a: Any, x: Any, sums: list[Any]) -> list[Any]:
            columns_of_x = [self._load(self._move(x, start), width) for start, width in vectors]
            after: list[Any] = []
            for i in range(rows):
                factor = self.builder.load(self._move(a, i * shape.row_step))
                for v, (_, width) in enumerate(vectors):
                    after.append(fused(self.builder, self._filled(factor, width), columns_of_x[v], sums[len(after)]))
            return after

        sums = self._summed(shape.terms, a, x, sums, step)
        for i in range(rows):
            for v, (start, _) in enumerate(vectors):
                stored(self.builder, self._move(out, i * shape.out_step + start), sums[i * len(vectors) + v])

    def cross(self, shape: Cross, g: Any, x: Any, out: Any) -> None:
        """Tiles of a few rows and columns."""

        def tile(rows: int, columns: int, row: Any, column: Any) -> None:
            places = (
                self._move(g, self._times(row, shape.row_step)),
                self._move(x, self._times(column, shape.column_step)),
                self._move(out, self._add(self._times(row, shape.out_step), self._times(column, self.lanes))),
            )
            self._cross_tile(shape, rows, columns, *places)

        def most_rows(columns: int) -> int:
            return max(1, MOST_SUMS // columns)

        self._in_tiles(shape.rows, most_rows, shape.columns, _at_once(shape.columns, 5), tile)

    def _cross_tile(self, shape, rows, columns, g, x, out):
        places = [i * shape.out_step + j * self.lanes for i in range(rows) for j in range(columns)]
        sums = [self._load(self._move(out, place), self.lanes) for place in places]

        def step(g: Any, x: Any, sums: list[Any]) -> list[Any]:
            of_rows = [self._load(self._move(g, i * shape.row_step), self.lanes) for i in range(rows)]
            after = list(sums)
            for j in range(columns):
                of_column = self._load(self._move(x, j * shape.column_step), self.lanes)
                for i in range(rows):
                    at = i * columns + j
                    after[at] = fused(self.builder, of_rows[i], of_column, sums[at])
            return after

        for place, vector in zip(places, self._summed(shape.terms, g, x, sums, step), strict=True):
            stored(self.builder, self._move(out, place), vector)

    def transpose(self, x: Any, step: int, out: Any, out_step: int) -> None:
        """Halves of rows change places, then quarters of these, and so on."""
        rows = [self._load(self._move(x, i * step), self.lanes) for i in range(self.lanes)]
        half = self.lanes // 2
        while half:
            for i in range(self.lanes):
                if not i & half:
                    upper, lower = rows[i], rows[i + half]
                    rows[i] = self._shuffled(
                        upper, lower, [j if not j & half else self.lanes + j - half for j in self._all]
                    )
                    rows[i + half] = self._shuffled(
                        upper, lower, [j + half if not j & half else self.lanes + j for j in self._all]
                    )
            half //= 2
        for j, row in enumerate(rows):
            stored(self.builder, self._move(out, j * out_step), row)

    # Small parts

    def _in_tiles(self, rows: int, most_rows: Callable[[int], int], columns: int, wide: int, tile: Any) -> None:
        """Call tile(rows, columns, first row, first column) in compiled code for every tile of a matrix."""
        for width, count, first_column in _cut(columns, wide):
            for height, times, first_row in _cut(rows, _at_once(rows, most_rows(width))):

                def at(i, j, width=width, height=height, first_row=first_row, first_column=first_column):
                    row = self._add(self._times(i, height), first_row)
                    tile(height, width, row, self._add(self._times(j, width), first_column))

                self._repeat(times, lambda i, count=count, at=at: self._repeat(count, lambda j: at(i, j)))

    def _summed(self, terms, first, second, sums, step):
        """Add the products of all terms to the sums: `step` adds those of one."""
        (count, first_step, second_step), *rest = terms
        at_once = 1
        if not rest:
            at_once = next(size for size in range(min(UNROLLED, count), 0, -1) if count % size == 0)

        def body(t: Any, sums: list[Any]) -> list[Any]:
            for u in range(at_once):
                term = self._add(self._times(t, at_once), u)
                places = (
                    self._move(first, self._times(term, first_step)),
                    self._move(second, self._times(term, second_step)),
                )
                sums = self._summed(rest, *places, sums, step) if rest else step(*places, sums)
            return sums

        return self._loop(count // at_once, sums, body)

    def _repeat(self, count, body):
        self._loop(count, [], lambda t, nothing: body(t) or [])

    def _loop(self, count, values, body):
        """Call body(t, values) -> values for t = 0 .. count-1 in compiled code; `count` is a constant above 0."""
        if count == 1:
            return body(0, values)
        builder = self.builder
        before, inside, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.branch(inside)
        builder.position_at_end(inside)
        t = builder.phi(INDEX)
        t.add_incoming(INDEX(0), before)
        phis = []
        for value in values:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        results = body(t, phis)
        following = builder.add(t, INDEX(1))
        t.add_incoming(following, builder.block)
        for phi, result in zip(phis, results, strict=True):
            phi.add_incoming(result, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, INDEX(count)), inside, after)
        builder.position_at_end(after)
        return results

    def _times(self, index: Any, step: int) -> Any:
        return index * step if isinstance(index, int) else self.builder.mul(index, INDEX(step))

    def _add(self, index: Any, more: Any) -> Any:
        if isinstance(index, int) and isinstance(more, int):
            return index + more
        return self.builder.add(*(INDEX(part) if isinstance(part, int) else part for part in (index, more)))

    def _move(self, pointer: Any, by: Any) -> Any:
        return self.builder.gep(pointer, [INDEX(by) if isinstance(by, int) else by], inbounds=True)

    def _load(self, pointer, width):
        return loaded(self.builder, pointer, ir.VectorType(self.number, width))

    def _filled(self, number, width):
        return spread(self.builder, ir.VectorType(self.number, width), number)

    @property
    def _all(self):
        return range(self.lanes)

    def _shuffled(self, a, b, chosen):
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen))


def _at_once(count: int, most: int) -> int:
    """How many rows or columns make a tile: as many as fit, or somewhat fewer if then none are left over."""
    if count <= most:
        return count
    return next((size for size in range(most, most // 2, -1) if count % size == 0), most)


def _cut(count: int, size: int) -> list[tuple[int, int, int]]:
    """(size, how many, start) of the tiles that make up 0 .. count-1: those of the full size, and one of the rest."""
    whole, rest = divmod(count, size)
    return [(size, whole, 0)] * bool(whole) + [(rest, 1, whole * size)] * bool(rest)

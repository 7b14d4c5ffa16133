"""Several numbers of a row side by side, in one vector register: the order of every sum is written down.

LLVM turns a loop over ordinary numbers into vector instructions. It orders a sum as it sees fit: the order may differ
between processors and between functions that contain the loop. In code that is compiled `as_written`, these functions
leave it no choice. So a sum has the same bits in every kernel and on every processor, also on one without fused
multiply-add, where the system's library rounds alike. (The exponentials of the softmax are those of that library.)
Called from Python, each computes what its compiled form computes, with NumPy, except that `fma` rounds twice.

`start` counts numbers from the first of an array whose numbers lie in the order of C. No index is checked.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import lower_builtin, models, register_model, type_callable

BYTES = 32
"""Bytes side by side. A processor without registers of that size uses several."""
BLOCK = 8
"""Registers in a block. They are worked on together, so that none waits for the last result of another."""


def width(array) -> int:
    """How many numbers of an array lie side by side."""
    return int(BYTES // array.dtype.itemsize)


def block_width(array) -> int:
    """How many numbers of an array are a block."""
    return BLOCK * width(array)


def load(array, start):
    """Numbers of an array, side by side."""
    return array.reshape(-1)[start : start + width(array)].copy()


def load_some(array, start, count):
    """The same, of which only the first `count` are read; the others are 0."""
    return _some_of(array, start, min(count, width(array)), width(array))


def load_some_block(array, start, count):
    """A block of numbers of an array, of which only the first `count` are read; the others are 0."""
    return _some_of(array, start, min(count, block_width(array)), block_width(array))


def _some_of(array, start, count, among):
    found = np.zeros(among, array.dtype)
    found[:count] = array.reshape(-1)[start : start + count]
    return found


def load_as(source, start, array):
    """Numbers of an array of bytes, or of the precision of `array`; in the precision of `array`."""
    return source.reshape(-1)[start : start + width(array)].astype(array.dtype)


def store(array, start, a) -> None:
    """Write them to an array."""
    array.reshape(-1)[start : start + len(a)] = a


def store_some(array, start, count, a) -> None:
    """Write the first `count` of them to an array."""
    array.reshape(-1)[start : start + min(count, len(a))] = a[:count]


def fetch(array, start) -> None:
    """Ask for the cache line of a number, and go on without waiting for it. It comes as far as the second cache."""


def filled(array, number):
    """One number, side by side, in the precision of `array`."""
    return np.full(width(array), number, array.dtype)


def repeated(array, place):
    """One number of an array, side by side."""
    return np.full(width(array), array.reshape(-1)[place], array.dtype)


def filled_block(array, number):
    """A block of one number, in the precision of `array`."""
    return np.full(block_width(array), number, array.dtype)


def fma(a, b, c):
    """a b + c, rounded once where it is compiled."""
    return a * b + c


def larger(a, b):
    """The larger of both. NaN where one of them is NaN."""
    return np.maximum(a, b)


def where_equal(a, b, c):
    """c where a = b, else 0."""
    return np.where(a == b, c, c.dtype.type(0))


def total(a):
    """Their sum: the halves are added until one number is left."""
    while len(a) > 1:
        half = len(a) // 2
        a = a[:half] + a[half:]
    return a[0]


# Instructions on one vector of numbers


def pointer_to(context, builder, kind, array, start):
    """Where a number of an array lies."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [start], inbounds=True)


def loaded(builder, pointer, vector):
    """A vector of that type from memory, wherever it begins."""
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=size_of(vector.element))


def stored(builder, pointer, value) -> None:
    """Write a vector to memory, wherever it begins."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=size_of(value.type.element))


def spread(builder, vector, number):
    """One number in all places of a vector of that type."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, number, ir.IntType(32)(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


def fused(builder, a, b, c):
    """a b + c, rounded once: where the processor has no such instruction, the system's library does it."""
    name = f"llvm.fma.v{a.type.count}{a.type.element.intrinsic_name}"
    signature = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def size_of(number) -> int:
    """The bytes of a number of that type."""
    return int(number.intrinsic_name[1:]) // 8


# How they are compiled


class Lanes(types.Type):
    """Numbers of one kind in a vector register, or in each of several."""

    def __init__(self, dtype: Any, registers: int = 1) -> None:
        self.dtype, self.registers, self.each = dtype, registers, BYTES // (dtype.bitwidth // 8)
        super().__init__(name=f"Lanes({dtype}, {registers})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        vector = ir.VectorType(manager.lookup(kind.dtype).get_value_type(), kind.each)
        super().__init__(manager, kind, ir.ArrayType(vector, kind.registers))


def _vector(context, kind):
    return context.get_value_type(kind).element


def _joined(builder, registers):
    """Several registers as one value."""
    result = ir.Constant(ir.ArrayType(registers[0].type, len(registers)), ir.Undefined)
    for place, register in enumerate(registers):
        result = builder.insert_value(result, register, place)
    return result


def _apart(builder, value):
    """The registers of a value."""
    return [builder.extract_value(value, place) for place in range(value.type.count)]


def _returns(function, kind):
    """What a function returns, by the types of its arguments; None where they are not right."""
    type_callable(function)(lambda context: kind)


def _is_plain(array):
    return isinstance(array, types.Array) and array.layout == "C"


def _of(array, registers):
    return Lanes(array.dtype, registers) if _is_plain(array) else None


def _places(context, builder, array_kind, array, start, kind):
    """Where each register of a value lies in an array."""
    first = pointer_to(context, builder, array_kind, array, start)
    return [builder.gep(first, [ir.IntType(64)(kind.each * place)], inbounds=True) for place in range(kind.registers)]


def _chosen(builder, kind, count):
    """For each register, which of its numbers are among the first `count`."""
    whole = ir.VectorType(ir.IntType(64), kind.each)
    every = spread(builder, whole, count)
    firsts = [ir.Constant(whole, [kind.each * place + t for t in range(kind.each)]) for place in range(kind.registers)]
    return [builder.icmp_signed("<", first, every) for first in firsts]


def _masked(builder, name, kind, arguments, result):
    full = f"llvm.masked.{name}.v{kind.each}f{kind.dtype.bitwidth}.p0"
    signature = ir.FunctionType(result, [each.type for each in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, full), arguments)


for _function, _registers in {width: 1, block_width: BLOCK}.items():
    _returns(_function, lambda array: types.intp if isinstance(array, types.Array) else None)

    @lower_builtin(_function, types.Array)
    def _width(context, builder, signature, arguments, _registers=_registers):
        return context.get_constant(types.intp, _registers * Lanes(signature.args[0].dtype).each)


_returns(load, lambda array, start: _of(array, 1))
_returns(load_some, lambda array, start, count: _of(array, 1))
_returns(load_some_block, lambda array, start, count: _of(array, BLOCK))
_returns(filled, lambda array, number: _of(array, 1))
_returns(repeated, lambda array, place: _of(array, 1))
_returns(filled_block, lambda array, number: _of(array, BLOCK))


@lower_builtin(load, types.Array, types.Integer)
def _load(context, builder, signature, arguments):
    kind, vector = signature.return_type, _vector(context, signature.return_type)
    places = _places(context, builder, signature.args[0], arguments[0], arguments[1], kind)
    return _joined(builder, [loaded(builder, place, vector) for place in places])


@lower_builtin(load_some_block, types.Array, types.Integer, types.Integer)
@lower_builtin(load_some, types.Array, types.Integer, types.Integer)
def _load_some(context, builder, signature, arguments):
    array, start, count = arguments
    kind, vector = signature.return_type, _vector(context, signature.return_type)
    count = context.cast(builder, count, signature.args[2], types.int64)
    align, nothing = ir.IntType(32)(kind.dtype.bitwidth // 8), ir.Constant(vector, None)
    registers = []
    places = _places(context, builder, signature.args[0], array, start, kind)
    for place, chosen in zip(places, _chosen(builder, kind, count), strict=True):
        pointer = builder.bitcast(place, vector.as_pointer())
        registers.append(_masked(builder, "load", kind, [pointer, align, chosen, nothing], vector))
    return _joined(builder, registers)


def _as(source, start, array):
    return Lanes(array.dtype) if _is_plain(source) and source.dtype in (types.uint8, array.dtype) else None


_returns(load_as, _as)


@lower_builtin(load_as, types.Array, types.Integer, types.Array)
def _load_as(context, builder, signature, arguments):
    kind, vector = signature.return_type, _vector(context, signature.return_type)
    (place,) = _places(context, builder, signature.args[0], arguments[0], arguments[1], kind)
    if signature.args[0].dtype != types.uint8:
        return _joined(builder, [loaded(builder, place, vector)])
    found = loaded(builder, place, ir.VectorType(ir.IntType(8), kind.each))
    whole = builder.zext(found, ir.VectorType(ir.IntType(32), kind.each))
    return _joined(builder, [builder.sitofp(whole, vector)])


_returns(store, lambda array, start, a: types.none if _is_plain(array) and array.dtype == a.dtype else None)
_returns(store_some, lambda array, start, count, a: types.none if _is_plain(array) and array.dtype == a.dtype else None)


@lower_builtin(store, types.Array, types.Integer, Lanes)
def _store(context, builder, signature, arguments):
    array, start, a = arguments
    places = _places(context, builder, signature.args[0], array, start, signature.args[2])
    for place, register in zip(places, _apart(builder, a), strict=True):
        stored(builder, place, register)
    return context.get_dummy_value()


@lower_builtin(store_some, types.Array, types.Integer, types.Integer, Lanes)
def _store_some(context, builder, signature, arguments):
    array, start, count, a = arguments
    kind = signature.args[3]
    count = context.cast(builder, count, signature.args[2], types.int64)
    align = ir.IntType(32)(kind.dtype.bitwidth // 8)
    places = _places(context, builder, signature.args[0], array, start, kind)
    for place, chosen, register in zip(places, _chosen(builder, kind, count), _apart(builder, a), strict=True):
        pointer = builder.bitcast(place, register.type.as_pointer())
        _masked(builder, "store", kind, [register, pointer, align, chosen], ir.VoidType())
    return context.get_dummy_value()


@lower_builtin(filled_block, types.Array, types.Number)
@lower_builtin(filled, types.Array, types.Number)
def _filled(context, builder, signature, arguments):
    kind = signature.return_type
    number = context.cast(builder, arguments[1], signature.args[1], kind.dtype)
    return _joined(builder, [spread(builder, _vector(context, kind), number)] * kind.registers)


@lower_builtin(repeated, types.Array, types.Integer)
def _repeated(context, builder, signature, arguments):
    kind = signature.return_type
    (place,) = _places(context, builder, signature.args[0], arguments[0], arguments[1], kind)
    return _joined(builder, [spread(builder, _vector(context, kind), builder.load(place))])


def _register_by_register(function, emit):
    """Compile a function of values of one type that does the same to every register."""
    count = emit.__code__.co_argcount - 1
    if count == 2:
        _returns(function, lambda a, b: a if isinstance(a, Lanes) and a == b else None)
    else:
        _returns(function, lambda a, b, c: a if isinstance(a, Lanes) and a == b == c else None)

    def each(context, builder, signature, arguments):
        rows = zip(*(_apart(builder, value) for value in arguments), strict=True)
        return _joined(builder, [emit(builder, *row) for row in rows])

    lower_builtin(function, *[Lanes] * count)(each)


def _larger(builder, a, b):
    is_larger = builder.fcmp_unordered("ugt", a, b)  # true if one of them is NaN
    b_is_nan = builder.fcmp_unordered("uno", b, b)
    return builder.select(b_is_nan, b, builder.select(is_larger, a, b))


def _where_equal(builder, a, b, c):
    return builder.select(builder.fcmp_ordered("==", a, b), c, ir.Constant(c.type, None))


_register_by_register(operator.add, lambda builder, a, b: builder.fadd(a, b))
_register_by_register(operator.sub, lambda builder, a, b: builder.fsub(a, b))
_register_by_register(operator.mul, lambda builder, a, b: builder.fmul(a, b))
_register_by_register(fma, fused)
_register_by_register(larger, _larger)
_register_by_register(where_equal, _where_equal)

_returns(total, lambda a: a.dtype if isinstance(a, Lanes) else None)


@lower_builtin(total, Lanes)
def _total(context, builder, signature, arguments):
    rest = _apart(builder, arguments[0])
    while len(rest) > 1:
        half = len(rest) // 2
        rest = [builder.fadd(*pair) for pair in zip(rest[:half], rest[half:], strict=True)]
    (sums,), count = rest, signature.args[0].each
    while count > 1:
        count //= 2
        of_half = ir.VectorType(ir.IntType(32), count)
        halves = [ir.Constant(of_half, list(range(first, first + count))) for first in (0, count)]
        sums = builder.fadd(*(builder.shuffle_vector(sums, sums, half) for half in halves))
    return builder.extract_element(sums, ir.IntType(32)(0))


_returns(fetch, lambda array, start: types.none)


@lower_builtin(fetch, types.Array, types.Integer)
def _fetch(context, builder, signature, arguments):
    array, start = arguments
    byte_pointer, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
    pointer = builder.bitcast(pointer_to(context, builder, signature.args[0], array, start), byte_pointer)
    kind = ir.FunctionType(ir.VoidType(), [byte_pointer, whole, whole, whole])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [pointer, whole(0), whole(2), whole(1)])
    return context.get_dummy_value()

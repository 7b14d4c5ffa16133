"""Several numbers of a row side by side, in one vector register: the order of every sum is written down.

LLVM turns a loop over ordinary numbers into vector instructions. It orders a sum as it sees fit: the order may differ
between processors and between functions that contain the loop. In code that is compiled `as_written`, these functions
leave it no choice. So a sum has the same bits in every kernel and on every processor, also on one without fused
multiply-add, where the system's library rounds alike. (The exponentials of the softmax are those of that library.)

Only compiled code can call these functions, apart from `width` and `block_width`. `start` counts numbers from the first
of an array whose numbers lie in the order of C. No index is checked.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import lower_builtin, models, register_model, type_callable

intrinsic: Any = extending.intrinsic
"""Compiled code calls the functions without their first argument."""

BYTES = 32
"""Bytes side by side. A processor without registers of that size uses several."""
BLOCK = 8
"""Registers in a block. They are worked on together, so that none waits for the last result of another."""


class Lanes(types.Type):
    """Numbers of one kind in a vector register, or in each of several."""

    def __init__(self, dtype: Any, registers: int = 1) -> None:
        self.dtype, self.registers, self.each = dtype, registers, BYTES // (dtype.bitwidth // 8)
        self.vector = ir.VectorType(ir.FloatType() if dtype.bitwidth == 32 else ir.DoubleType(), self.each)
        super().__init__(name=f"Lanes({dtype}, {registers})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.ArrayType(kind.vector, kind.registers))


def width(array) -> int:
    """How many numbers of an array lie side by side."""
    return int(BYTES // array.dtype.itemsize)


def block_width(array) -> int:
    """How many numbers of an array are a block."""
    return BLOCK * width(array)


for _function, _registers in {width: 1, block_width: BLOCK}.items():
    type_callable(_function)(lambda context: lambda array: types.intp if isinstance(array, types.Array) else None)

    @lower_builtin(_function, types.Array)
    def _width(context, builder, signature, arguments, _registers=_registers):
        return context.get_constant(types.intp, _registers * Lanes(signature.args[0].dtype).each)


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


# Values of several registers, and where each register lies in an array


def _joined(builder, registers):
    """Several registers as one value."""
    result = ir.Constant(ir.ArrayType(registers[0].type, len(registers)), ir.Undefined)
    for place, register in enumerate(registers):
        result = builder.insert_value(result, register, place)
    return result


def _apart(builder, value):
    """The registers of a value."""
    return [builder.extract_value(value, place) for place in range(value.type.count)]


def _lanes_of(array, registers=1):
    """The type of numbers of an array, which must lie in the order of C."""
    if not isinstance(array, types.Array) or array.layout != "C":
        raise TypingError(f"the numbers of {array} do not lie in the order of C")
    return Lanes(array.dtype, registers)


def _places(context, builder, kind, array_kind, array, start):
    """Where each register of a value lies in an array."""
    first = pointer_to(context, builder, array_kind, array, start)
    return [builder.gep(first, [ir.IntType(64)(kind.each * place)], inbounds=True) for place in range(kind.registers)]


def _masked(context, builder, name, kind, place, count, value):
    """Load the first `count` numbers of each register by "load", with 0 for the others; or "store" only these."""
    whole = ir.VectorType(ir.IntType(64), kind.each)
    every, align = spread(builder, whole, count), ir.IntType(32)(kind.dtype.bitwidth // 8)
    loads, results = name == "load", []
    for number, (pointer, register) in enumerate(zip(_places(context, builder, kind, *place), value, strict=True)):
        firsts = ir.Constant(whole, [kind.each * number + t for t in range(kind.each)])
        chosen, where = builder.icmp_signed("<", firsts, every), builder.bitcast(pointer, kind.vector.as_pointer())
        arguments = [where, align, chosen, register] if loads else [register, where, align, chosen]
        result = kind.vector if loads else ir.VoidType()
        signature = ir.FunctionType(result, [each.type for each in arguments])
        full = f"llvm.masked.{name}.v{kind.each}f{kind.dtype.bitwidth}.p0"
        results.append(builder.call(cgutils.get_or_insert_function(builder.module, signature, full), arguments))
    return results


# Memory


@intrinsic
def load(typing, array, start):
    """Numbers of an array, side by side."""
    kind = _lanes_of(array)

    def emit(context, builder, signature, arguments):
        (place,) = _places(context, builder, kind, array, *arguments)
        return _joined(builder, [loaded(builder, place, kind.vector)])

    return kind(array, types.intp), emit


def _load_some(kind, array):
    def emit(context, builder, signature, arguments):
        *place, count = arguments
        zeros = [ir.Constant(kind.vector, None)] * kind.registers
        return _joined(builder, _masked(context, builder, "load", kind, (array, *place), count, zeros))

    return kind(array, types.intp, types.intp), emit


@intrinsic
def load_some(typing, array, start, count):
    """The same, of which only the first `count` are read; the others are 0."""
    return _load_some(_lanes_of(array), array)


@intrinsic
def load_some_block(typing, array, start, count):
    """A block of numbers of an array, of which only the first `count` are read; the others are 0."""
    return _load_some(_lanes_of(array, BLOCK), array)


@intrinsic
def load_as(typing, source, start, array):
    """Numbers of an array of bytes, or of the precision of `array`; in the precision of `array`."""
    kind, source_kind = Lanes(array.dtype), _lanes_of(source).dtype
    if source_kind not in (types.uint8, kind.dtype):
        raise TypingError(f"{source_kind} is neither a byte nor {kind.dtype}")

    def emit(context, builder, signature, arguments):
        (place,) = _places(context, builder, kind, source, *arguments[:2])
        if source_kind == kind.dtype:
            return _joined(builder, [loaded(builder, place, kind.vector)])
        found = loaded(builder, place, ir.VectorType(ir.IntType(8), kind.each))
        whole = builder.zext(found, ir.VectorType(ir.IntType(32), kind.each))
        return _joined(builder, [builder.sitofp(whole, kind.vector)])

    return kind(source, types.intp, array), emit


def _require_numbers_of(array, a):
    if not isinstance(a, Lanes) or a.dtype != _lanes_of(array).dtype:
        raise TypingError(f"{a} is not of the precision of {array}")


@intrinsic
def store(typing, array, start, a):
    """Write them to an array."""
    _require_numbers_of(array, a)

    def emit(context, builder, signature, arguments):
        *place, value = arguments
        for pointer, register in zip(_places(context, builder, a, array, *place), _apart(builder, value), strict=True):
            stored(builder, pointer, register)
        return context.get_dummy_value()

    return types.none(array, types.intp, a), emit


@intrinsic
def store_some(typing, array, start, count, a):
    """Write the first `count` of them to an array."""
    _require_numbers_of(array, a)

    def emit(context, builder, signature, arguments):
        *place, count, value = arguments
        _masked(context, builder, "store", a, (array, *place), count, _apart(builder, value))
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, a), emit


@intrinsic
def fetch(typing, array, start):
    """Ask for the cache line of a number, and go on without waiting for it. It comes as far as the second cache."""

    def emit(context, builder, signature, arguments):
        byte_pointer, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = builder.bitcast(pointer_to(context, builder, array, *arguments), byte_pointer)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, whole, whole, whole])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [pointer, whole(0), whole(2), whole(1)])
        return context.get_dummy_value()

    return types.none(array, types.intp), emit


# One number, side by side


def _filled(kind, array):
    def emit(context, builder, signature, arguments):
        return _joined(builder, [spread(builder, kind.vector, arguments[1])] * kind.registers)

    return kind(array, kind.dtype), emit


@intrinsic
def filled(typing, array, number):
    """One number, side by side, in the precision of `array`."""
    return _filled(_lanes_of(array), array)


@intrinsic
def filled_block(typing, array, number):
    """A block of one number, in the precision of `array`."""
    return _filled(_lanes_of(array, BLOCK), array)


@intrinsic
def repeated(typing, array, place):
    """One number of an array, side by side."""
    kind = _lanes_of(array)

    def emit(context, builder, signature, arguments):
        number = builder.load(pointer_to(context, builder, array, *arguments))
        return _joined(builder, [spread(builder, kind.vector, number)])

    return kind(array, types.intp), emit


# Arithmetic, which does the same to every register


def _register_by_register(emit_one):
    def emit(context, builder, signature, arguments):
        rows = zip(*(_apart(builder, value) for value in arguments), strict=True)
        return _joined(builder, [emit_one(builder, *row) for row in rows])

    return emit


for _operator, _instruction in {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul"}.items():
    type_callable(_operator)(lambda context: lambda a, b: a if isinstance(a, Lanes) and a == b else None)

    @lower_builtin(_operator, Lanes, Lanes)
    @_register_by_register
    def _binary(builder, a, b, _instruction=_instruction):
        return getattr(builder, _instruction)(a, b)


@intrinsic
def fma(typing, a, b, c):
    """a b + c, rounded once."""
    return a(a, a, a), _register_by_register(fused)


@intrinsic
def larger(typing, a, b):
    """The larger of both. NaN where one of them is NaN."""

    def emit(builder, a, b):
        is_larger = builder.fcmp_unordered("ugt", a, b)  # true if one of them is NaN
        b_is_nan = builder.fcmp_unordered("uno", b, b)
        return builder.select(b_is_nan, b, builder.select(is_larger, a, b))

    return a(a, a), _register_by_register(emit)


@intrinsic
def where_equal(typing, a, b, c):
    """c where a = b, else 0."""

    def emit(builder, a, b, c):
        return builder.select(builder.fcmp_ordered("==", a, b), c, ir.Constant(c.type, None))

    return a(a, a, a), _register_by_register(emit)


@intrinsic
def total(typing, a):
    """Their sum: the halves are added until one number is left, first of the registers, then of their numbers."""

    def emit(context, builder, signature, arguments):
        rest, count = _apart(builder, arguments[0]), a.each
        while len(rest) > 1:
            half = len(rest) // 2
            rest = [builder.fadd(*pair) for pair in zip(rest[:half], rest[half:], strict=True)]
        (sums,) = rest
        while count > 1:
            count //= 2
            of_half = ir.VectorType(ir.IntType(32), count)
            halves = [ir.Constant(of_half, list(range(first, first + count))) for first in (0, count)]
            sums = builder.fadd(*(builder.shuffle_vector(sums, sums, half) for half in halves))
        return builder.extract_element(sums, ir.IntType(32)(0))

    return a.dtype(a), emit

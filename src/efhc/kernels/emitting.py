"""The instructions of LLVM that `lanes` and `products` have in common: those on one vector of numbers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils


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

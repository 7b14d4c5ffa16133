"""A trained network as an ONNX file, which other programs read without PyTorch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from efhc.base.errors import InputError
from efhc.base.extras import importing
from efhc.base.own_code import in_one_line
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.modules import input_shape
from efhc.learning.pytorch import torch

if TYPE_CHECKING:
    from torch import nn

with importing("onnx"):
    import onnxscript  # noqa: F401 - torch writes by it

SAMPLES_TO_TRACE = 2
"""torch follows this many samples through the network; with a single one, it would take their number for fixed."""


def onnx_bytes(module: nn.Module, data: Dataset) -> bytes:
    """Return the content of the file: `samples` (any number, *shape) to `scores` (as many, classes).

    Raises an `InputError` if the network has operations that ONNX lacks.
    """
    module = module.cpu()
    rows = data.inputs(data.x_test[:1]).repeat(SAMPLES_TO_TRACE, axis=0)
    samples = torch.tensor(rows).view(SAMPLES_TO_TRACE, *input_shape(data))
    try:
        with _quietly():
            program = torch.onnx.export(
                module,
                (samples,),
                input_names=["samples"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                dynamo=True,
                verbose=False,
            )
            content: bytes = program.model_proto.SerializeToString()  # type: ignore[union-attr]
    except Exception as error:  # torch's exporter raises errors of many kinds
        given = f"a {type(module).__name__} that torch cannot write ({in_one_line(error)})"
        raise InputError("onnx", given, "a network of operations that ONNX has") from error
    return content


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the warnings of torch about its own code and about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)

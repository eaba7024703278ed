"""ImageDecoder."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import U8
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import data_dim
from occ.compiler.ir.types import TensorType


@op("ImageDecoder", host="ImageDecoder", limits="needs the package pillow at run time")
class ImageDecoder:
    """The pixels of a BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP file: u8[height, width, channels]."""

    def infer(data, *, a):
        return TensorType(U8, (data_dim(0), data_dim(1), 1 if a.pixel_format == "Grayscale" else 3))


ALL: tuple[OpSpec, ...] = (ImageDecoder,)

"""Features of small images in Triton, and their gradients: see `rlgates.kernels.cpu.grid`.

A program has some images. The embeddings of their cells stay in registers: of 25 cells they would
be six times as many numbers as the features. The backward pass computes them again.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlgates.kernels.triton.launch import processor
from rlgates.kernels.triton.persistent import add_dot

_ROWS, _FEW_ROWS = 128, 32  # images at a time; few, where there are few for each processor
_PROGRAMS = 16  # of the backward pass, on a processor


@triton.jit
def _product(left, right, total, PRECISION: tl.constexpr):
    """left right + total, of operands that are rounded."""
    if PRECISION == "bf16":
        left = left.to(tl.bfloat16)
        right = right.to(tl.bfloat16)
    return add_dot(left, right, total, "ieee" if PRECISION == "ieee" else "tf32")


@triton.jit
def _embedding(cell_weight, cell_bias, CHANNELS: tl.constexpr, DIM: tl.constexpr,
               COLUMNS: tl.constexpr, BLOCK_DIM: tl.constexpr):  # fmt: skip
    """The weights of the channels, then the bias, (COLUMNS, BLOCK_DIM)."""
    channel = tl.arange(0, COLUMNS)[:, None]
    unit = tl.arange(0, BLOCK_DIM)[None, :]
    inside = unit < DIM
    weight = cell_weight + unit * CHANNELS + channel
    weight = tl.load(weight, mask=inside & (channel < CHANNELS), other=0.0)
    bias = tl.load(cell_bias + unit + channel * 0, mask=inside & (channel == CHANNELS), other=0.0)
    return weight + bias


@triton.jit
def _centred_pixels(x, row, place, images, CHANNELS: tl.constexpr, PLACES: tl.constexpr,
                    COLUMNS: tl.constexpr):  # fmt: skip
    """The channels of a place, from [0, 1] to [-1, 1], then 1, (rows, COLUMNS)."""
    channel = tl.arange(0, COLUMNS)[None, :]
    pixel = x + row.to(tl.int64)[:, None] * (CHANNELS * PLACES) + channel * PLACES + place
    inside = row[:, None] < images
    pixel = tl.load(pixel, mask=inside & (channel < CHANNELS), other=0.5)
    return 2.0 * pixel - 1.0 + tl.where(inside & (channel == CHANNELS), 1.0, 0.0)


@triton.jit(do_not_specialize=["images"])
def _forward(
    x, cell_weight, cell_bias, place_weight, place_bias, features, most_at, images,
    CHANNELS: tl.constexpr, PLACES: tl.constexpr, DIM: tl.constexpr, OUT: tl.constexpr,
    PRECISION: tl.constexpr, SAVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.arange(0, BLOCK_DIM)
    out = tl.arange(0, BLOCK_OUT)
    embedding = _embedding(cell_weight, cell_bias, CHANNELS, DIM, COLUMNS, BLOCK_DIM)
    weight = place_weight + unit[:, None] + out[None, :] * (PLACES * DIM)
    inside = (unit < DIM)[:, None] & (out < OUT)[None, :]
    total = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    none = tl.zeros((ROWS, BLOCK_DIM), tl.float32)
    most = none - 1.0
    at = tl.zeros((ROWS, BLOCK_DIM), tl.int32)
    for place in tl.range(0, PLACES):
        pixels = _centred_pixels(x, row, place, images, CHANNELS, PLACES, COLUMNS)
        cells = _product(pixels, embedding, none, PRECISION)
        cells = tl.where(cells <= 0.0, 0.0, cells)  # NaN stays
        larger = (cells > most) | ((cells != cells) & (most == most))  # the first NaN
        most = tl.where(larger, cells, most)
        at = tl.where(larger, place, at)
        w = tl.load(weight + place * DIM, mask=inside, other=0.0)
        total = _product(cells, w, total, PRECISION)
    total += tl.load(place_bias + out, mask=out < OUT, other=0.0)[None, :]
    total = tl.where(total <= 0.0, 0.0, total)
    in_rows = (row < images)[:, None]
    to = features + row.to(tl.int64)[:, None] * (OUT + DIM)
    tl.store(to + out[None, :], total, mask=in_rows & (out < OUT)[None, :])
    in_cells = in_rows & (unit < DIM)[None, :]
    tl.store(to + OUT + unit[None, :], most, mask=in_cells)
    if SAVE:
        to = most_at + row.to(tl.int64)[:, None] * DIM + unit[None, :]
        tl.store(to, at.to(tl.int16), mask=in_cells)


@triton.jit(do_not_specialize=["images", "rows"])
def _backward(
    x, cell_weight, cell_bias, place_weight, most_at, d_places, d_features, d_cell, d_place,
    images, rows,
    CHANNELS: tl.constexpr, PLACES: tl.constexpr, DIM: tl.constexpr, OUT: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    """The sums over `rows` images of what a place adds to the gradients of the weights.

    d_places (images, OUT)  behind the ReLU
    d_cell   (parts, PLACES, COLUMNS, DIM), of the channels and the bias
    d_place  (parts, PLACES, OUT, DIM)
    """
    place, part = tl.program_id(0), tl.program_id(1)
    unit = tl.arange(0, BLOCK_DIM)
    out = tl.arange(0, BLOCK_OUT)
    column = tl.arange(0, COLUMNS)
    in_dim = (unit < DIM)[None, :]
    in_out = (out < OUT)[None, :]
    embedding = _embedding(cell_weight, cell_bias, CHANNELS, DIM, COLUMNS, BLOCK_DIM)
    weight = place_weight + out[:, None] * (PLACES * DIM) + place * DIM + unit[None, :]
    weight = tl.load(weight, mask=(out < OUT)[:, None] & in_dim, other=0.0)
    none = tl.zeros((ROWS, BLOCK_DIM), tl.float32)
    cell_sum = tl.zeros((COLUMNS, BLOCK_DIM), tl.float32)
    place_sum = tl.zeros((BLOCK_OUT, BLOCK_DIM), tl.float32)
    begin = part * rows
    end = tl.minimum(begin + rows, images)
    for first in tl.range(begin, end, ROWS):
        row = first + tl.arange(0, ROWS)
        wide = row.to(tl.int64)[:, None]
        in_rows = (row < end)[:, None]
        pixels = _centred_pixels(x, row, place, end, CHANNELS, PLACES, COLUMNS)
        cells = _product(pixels, embedding, none, PRECISION)
        passive = cells <= 0.0  # NaN lets its gradient pass
        cells = tl.where(passive, 0.0, cells)
        d = tl.load(d_places + wide * OUT + out[None, :], mask=in_rows & in_out, other=0.0)
        d_most = d_features + wide * (OUT + DIM) + OUT + unit[None, :]
        d_most = tl.load(d_most, mask=in_rows & in_dim, other=0.0).to(tl.float32)
        at = tl.load(most_at + wide * DIM + unit[None, :], mask=in_rows & in_dim, other=-1)
        place_sum = _product(tl.trans(d), cells, place_sum, PRECISION)
        d_cells = _product(d, weight, tl.where(at == place, d_most, 0.0), PRECISION)
        d_cells = tl.where(passive, 0.0, d_cells)
        cell_sum = _product(tl.trans(pixels), d_cells, cell_sum, PRECISION)
    slot = (part * PLACES + place).to(tl.int64)
    to = d_cell + (slot * COLUMNS + column[:, None]) * DIM + unit[None, :]
    tl.store(to, cell_sum, mask=(column[:, None] <= CHANNELS) & in_dim)
    to = d_place + (slot * OUT + out[:, None]) * DIM + unit[None, :]
    tl.store(to, place_sum, mask=(out < OUT)[:, None] & in_dim)


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def _settings(x: Tensor, weights: Sequence[Tensor], rows: int) -> dict[str, int]:
    """The constants of the kernels: sizes, and those of the tiles."""
    channels, (dim, out) = x.shape[1], (weights[0].shape[0], weights[2].shape[0])
    return {
        "CHANNELS": channels,
        "PLACES": x.shape[2],
        "DIM": dim,
        "OUT": out,
        "ROWS": rows,
        "COLUMNS": _block(channels + 1),
        "BLOCK_DIM": _block(dim),
        "BLOCK_OUT": _block(out),
        "num_warps": 4,
        "num_stages": 1,  # loads ahead would leave room for fewer programs
        "enable_fp_fusion": True,  # the default, but Triton 3.9 warns where it is not set
    }


def forward(
    x: Tensor, weights: Sequence[Tensor], precision: str, features: Tensor, most_at: Tensor | None
) -> None:
    """Compute the features, (N, O + D), and the place of each maximum, (N, D) int16."""
    images = x.shape[0]
    rows = _ROWS if images >= _ROWS * processor(x.device)[0] else _FEW_ROWS
    if images:
        settings = _settings(x, weights, rows) | {
            "PRECISION": precision,
            "SAVE": most_at is not None,
        }
        to = features, features if most_at is None else most_at
        _forward[(triton.cdiv(images, rows),)](x, *weights, *to, images, **settings)


def backward(
    x: Tensor,
    weights: Sequence[Tensor],
    precision: str,
    features: Tensor,
    most_at: Tensor,
    d_features: Tensor,
) -> list[Tensor]:
    """The gradients of the weights."""
    settings = _settings(x, weights, _ROWS)
    images, places, dim, out = x.shape[0], *(settings[name] for name in ("PLACES", "DIM", "OUT"))
    parts = max(1, min(triton.cdiv(_PROGRAMS * processor(x.device)[0], places), images // _ROWS))
    rows = triton.cdiv(triton.cdiv(images, parts), _ROWS) * _ROWS
    d_places = d_features[:, :out].masked_fill(features[:, :out] <= 0, 0)
    d_cell = weights[0].new_empty(parts, places, settings["COLUMNS"], dim)
    d_place = weights[0].new_empty(parts, places, out, dim)
    _backward[places, parts](
        *(x, weights[0], weights[1], weights[2], most_at, d_places, d_features, d_cell, d_place),
        *(images, rows),
        PRECISION=precision,
        **settings,
    )
    channels = x.shape[1]
    of_cell = d_cell[:, :, : channels + 1].sum((0, 1))
    return [
        of_cell[:channels].t().contiguous(),
        of_cell[channels].clone(),
        d_place.sum(0).transpose(0, 1).reshape(out, places * dim),
        d_places.sum(0, dtype=torch.float32),
    ]

"""Operations on images in plain torch, the same on CPU and GPU: what augment.py drew, applied.

Images are [B, 3, S, S] uint8 and go in and out as that. Formulas are torchvision's for tensors
(transforms/_functional_tensor.py, version 0.20), the geometric ones Pillow's (Image.transform with AFFINE, nearest
pixel, black outside). Sums over an image are of integers, so that no result depends on what else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trainer.tasks.images.augment.draw import OPERATIONS, AugmentationPlan, Mix

Operation = Callable[[Tensor, Tensor], Tensor]

# ITU-R BT.601 luma, as torchvision rounds it.
_LUMA = (0.2989, 0.587, 0.114)


def apply_plan(images: Tensor, plan: AugmentationPlan) -> Tensor:
    """Return images [B, 3, S, S] uint8 after all steps of a plan."""
    result = images.clone(memory_format=torch.contiguous_format)
    for step in range(plan.operations.shape[1]):
        for number in np.unique(plan.operations[:, step]):
            operation = _BY_NAME.get(OPERATIONS[number])
            if operation is None:
                continue
            places = np.flatnonzero(plan.operations[:, step] == number)
            rows = torch.from_numpy(places).to(images.device, non_blocking=True)
            strengths = torch.from_numpy(plan.strengths[places, step]).to(images.device, non_blocking=True)
            result[rows] = operation(result[rows], strengths)
    return result


def mix_images(images: Tensor, drawn: Mix) -> Tensor:
    """Return images [B, 3, S, S] float32 mixed with those of the batch in reverse order."""
    size = images.shape[-1]
    boxes = torch.from_numpy(drawn.boxes).to(images.device, non_blocking=True)[..., None]
    along = torch.arange(size, device=images.device)
    rows = (along >= boxes[:, 0]) & (along < boxes[:, 2])
    columns = (along >= boxes[:, 1]) & (along < boxes[:, 3])
    inside = rows[:, :, None] & columns[:, None, :]
    shares = torch.from_numpy(np.where(drawn.cut, np.float32(1), drawn.shares)).to(images.device, non_blocking=True)
    kept = shares.view(-1, 1, 1, 1).masked_fill(inside[:, None], 0.0)
    return images * kept + images.flip(0) * (1 - kept)


def _blend(one: Tensor, other: Tensor, strengths: Tensor) -> Tensor:
    """Return strength 0: `one`; -1: `other`; above 0: further away from it."""
    # Both factors from float64, each rounded once.
    ratio = (1 + strengths).view(-1, 1, 1, 1)
    return (ratio.float() * one.float() + (1 - ratio).float() * other.float()).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.float().unbind(1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).to(torch.uint8)[:, None]


def _brightness(images: Tensor, strengths: Tensor) -> Tensor:
    return _blend(images, torch.zeros_like(images), strengths)


def _saturation(images: Tensor, strengths: Tensor) -> Tensor:
    return _blend(images, _grey(images), strengths)


def _contrast(images: Tensor, strengths: Tensor) -> Tensor:
    grey = _grey(images)
    mean = grey.sum(dim=(1, 2, 3), dtype=torch.int64).double() / grey[0].numel()
    return _blend(images, mean.float().view(-1, 1, 1, 1), strengths)


def _sharpness(images: Tensor, strengths: Tensor) -> Tensor:
    size = images.shape[-1]
    if size < 3:
        return images
    wide = images.int()
    total = sum(wide[..., y : y + size - 2, x : x + size - 2] for y in range(3) for x in range(3))
    assert isinstance(total, Tensor)
    centre = wide[..., 1:-1, 1:-1]
    blurred = images.clone()
    # Pillow's SMOOTH: ones around a 5, over 13; the edge stays as it is.
    blurred[..., 1:-1, 1:-1] = ((total + 4 * centre).float() / 13).round().to(torch.uint8)
    return _blend(images, blurred, strengths)


def _posterize(images: Tensor, strengths: Tensor) -> Tensor:
    mask = (256 - 2 ** (8 - strengths.int())).clamp(0, 255).to(torch.uint8)
    return images & mask.view(-1, 1, 1, 1)


def _solarize(images: Tensor, strengths: Tensor) -> Tensor:
    return torch.where(images.float() >= strengths.float().view(-1, 1, 1, 1), 255 - images, images)


def _autocontrast(images: Tensor, strengths: Tensor) -> Tensor:
    least, most = images.amin(dim=(2, 3), keepdim=True).float(), images.amax(dim=(2, 3), keepdim=True).float()
    flat = least == most
    scale = torch.where(flat, 1.0, 255 / (most - least))
    return ((images.float() - torch.where(flat, 0.0, least)) * scale).clamp(0, 255).to(torch.uint8)


def _equalize(images: Tensor, strengths: Tensor) -> Tensor:
    flat = images.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    last = counts.gather(2, flat.amax(dim=2, keepdim=True))
    step = (flat.shape[2] - last) // 255
    ramp = (counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)
    table = torch.where(step == 0, torch.arange(256, device=images.device), ramp.clamp(0, 255))
    return table.gather(2, flat).view_as(images).to(torch.uint8)


def _hue(images: Tensor, strengths: Tensor) -> Tensor:
    scaled = images.float() / 255
    most, least = scaled.amax(1), scaled.amin(1)
    spread = most - least
    red, green, blue = scaled.unbind(1)
    divisor = torch.where(spread == 0, 1.0, spread)
    hue = torch.where(
        most == red,
        (green - blue) / divisor,
        torch.where(most == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    turned = (hue / 6 + strengths.float().view(-1, 1, 1)) % 1.0
    # Each channel of a colour from hue, as in HSV: V - V S max(0, min(k, 4 - k, 1)), k = (n + 6 H) mod 6.
    channels = []
    for offset in (5, 3, 1):
        k = (offset + turned * 6) % 6
        channels.append(most - spread * torch.minimum(k, 4 - k).clamp(0, 1))
    return (torch.stack(channels, 1) * 255).round().clamp(0, 255).to(torch.uint8)


def _affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Take each pixel from where a matrix [B, 2, 3] puts its centre."""
    size = images.shape[-1]
    centres = torch.arange(size, device=images.device, dtype=torch.float64) + 0.5
    y, x = centres[None, :, None], centres[None, None, :]
    m = matrices.view(-1, 6, 1, 1)
    source_x = (m[:, 0] * x + m[:, 1] * y + m[:, 2]).floor().long()
    source_y = (m[:, 3] * x + m[:, 4] * y + m[:, 5]).floor().long()
    inside = (source_x >= 0) & (source_x < size) & (source_y >= 0) & (source_y < size)
    places = torch.where(inside, source_y * size + source_x, 0).flatten(1)[:, None].expand(-1, 3, -1)
    moved = images.flatten(2).gather(2, places).view_as(images)
    return torch.where(inside[:, None], moved, 0)


def _matrices(rows: list[Tensor | float], like: Tensor) -> Tensor:
    parts = [part if isinstance(part, Tensor) else torch.full_like(like, part) for part in rows]
    return torch.stack(parts, 1)


def _shear_x(images: Tensor, strengths: Tensor) -> Tensor:
    return _affine(images, _matrices([1.0, strengths, 0.0, 0.0, 1.0, 0.0], strengths))


def _shear_y(images: Tensor, strengths: Tensor) -> Tensor:
    return _affine(images, _matrices([1.0, 0.0, 0.0, strengths, 1.0, 0.0], strengths))


def _translate_x(images: Tensor, strengths: Tensor) -> Tensor:
    return _affine(images, _matrices([1.0, 0.0, -strengths, 0.0, 1.0, 0.0], strengths))


def _translate_y(images: Tensor, strengths: Tensor) -> Tensor:
    return _affine(images, _matrices([1.0, 0.0, 0.0, 0.0, 1.0, -strengths], strengths))


def _rotate(images: Tensor, strengths: Tensor) -> Tensor:
    """Turn counter-clockwise about the centre, by degrees."""
    angle = strengths * (math.pi / 180)
    cosine, sine, half = torch.cos(angle), torch.sin(angle), images.shape[-1] / 2
    shift_x, shift_y = half - cosine * half + sine * half, half - sine * half - cosine * half
    return _affine(images, _matrices([cosine, -sine, shift_x, sine, cosine, shift_y], strengths))


# Identity is not among them.
_BY_NAME: dict[str, Operation] = {
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
    "brightness": _brightness,
    "saturation": _saturation,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "hue": _hue,
}

"""Which kernels torch chooses for scaled-dot-product attention: it decides by device, type and shape, in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_FUSED = "_scaled_dot_product_"


class _Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.number += func is functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = str(func.overloadpacket.__name__)
        if name.startswith(_FUSED) and "backward" not in name:
            self.names[name.removeprefix(_FUSED).partition("_attention")[0]] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def watch_attention() -> Iterator[dict[str, int]]:
    """Count the calls of scaled_dot_product_attention inside the block by backend, filled at its end.

    A backend is that of the kernel seen: flash, efficient, cudnn, ...; math where torch computed by plain operations.
    """
    found: dict[str, int] = {}
    with _Calls() as calls, _Kernels() as kernels:
        yield found
    found |= kernels.names
    if (plain := calls.number - kernels.names.total()) > 0:
        found["math"] = found.get("math", 0) + plain


def describe_attention(found: dict[str, int]) -> str:
    """Say which backends were chosen."""
    chosen = ", ".join(f"{name} ({number} calls)" for name, number in sorted(found.items()))
    return f"scaled-dot-product attention of torch {torch.__version__}: {chosen}"

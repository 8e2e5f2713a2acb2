"""Host buffers: a copy of the state, laid out as the files will be, made once and used for every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from contracts.artifacts import tensor_file
from trainer.checkpoint.framing import Entry, make_header
from trainer.checkpoint.tensors import Group, Groups, Rows, is_sharded

# Name, type, shape, shape of the whole tensor or None where this is it, first row.
Described = tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...] | None, int]


@dataclass(frozen=True)
class StagedFile:
    """A file that can be written from memory."""

    group: str
    name: str
    header: bytes
    data: torch.Tensor
    """[bytes] uint8."""
    tensors: dict[str, torch.Tensor]
    """Views of `data`."""
    is_whole: bool
    """Whether it has all of its group."""


class HostBuffer:
    """A copy of one rank's part of the state.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        pinned: Take page-locked memory, which a GPU copies to without a detour.
    """

    def __init__(self, rank: int, ranks: int, *, pinned: bool) -> None:
        self._rank, self._ranks, self._pinned = rank, ranks, pinned
        self._layout: object = None
        self.files: list[StagedFile] = []

    @torch.no_grad()
    def stage(self, groups: Groups) -> list[StagedFile]:
        """Copy the tensors that this rank writes; return the files, which hold until the next call.

        The state may change as soon as this returns. Memory is taken at the first call, and again only when names,
        types or shapes differ from the call before.
        """
        mine = {name: _own(group, self._rank) for name, group in groups.items()}
        layout = {name: [_describe(key, value) for key, value in group.items()] for name, group in mine.items()}
        if layout != self._layout:
            # First let go of the old memory: two copies might not fit.
            self.files, self._layout = [], None
            self.files = [
                self._lay_out(name, groups[name], layout[name])
                for name in groups
                if self._rank == 0 or is_sharded(groups[name])
            ]
            self._layout = layout
        on_gpu = False
        for file in self.files:
            sources = {key: _tensor(value) for key, value in mine[file.group].items()}
            on_gpu |= any(tensor.is_cuda for tensor in sources.values())
            if sources:
                torch._foreach_copy_(
                    [file.tensors[key] for key in sources], list(sources.values()), non_blocking=self._pinned
                )
        if on_gpu and self._pinned:
            torch.cuda.current_stream().synchronize()
        return self.files

    def _lay_out(self, name: str, group: Group, tensors: list[Described]) -> StagedFile:
        header, entries = make_header(tensors)
        data = torch.empty(entries[-1].stop if entries else 0, dtype=torch.uint8, pin_memory=self._pinned)
        sharded = is_sharded(group)
        return StagedFile(
            group=name,
            name=tensor_file(name, self._rank, self._ranks) if sharded else tensor_file(name),
            header=header,
            data=data,
            tensors={entry.name: _view(data, entry) for entry in entries},
            is_whole=not sharded,
        )


def _own(group: Group, rank: int) -> dict[str, torch.Tensor | Rows]:
    return {
        name: value
        for name, value in group.items()
        if (value.tensor.shape[0] > 0 if isinstance(value, Rows) else rank == 0)
    }


def _tensor(value: torch.Tensor | Rows) -> torch.Tensor:
    return value.tensor if isinstance(value, Rows) else value


def _describe(name: str, value: torch.Tensor | Rows) -> Described:
    tensor = _tensor(value)
    whole, offset = (value.global_shape, value.offset) if isinstance(value, Rows) else (None, 0)
    return name, tensor.dtype, tuple(tensor.shape), whole, offset


def _view(data: torch.Tensor, entry: Entry) -> torch.Tensor:
    return data[entry.start : entry.stop].view(entry.dtype).view(entry.shape)

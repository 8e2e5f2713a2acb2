"""The same samples with the same pixels in the same places, whatever the ranks, loader processes and attempts."""

import gc
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
import torch

from contracts.artifacts import ShardManifest
from tests.trainer.data.conftest import data_section
from tests.trainer.tasks.for_tests import image_task
from trainer.data.cursor import slot_requests, steps_per_epoch
from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.order import make_order, resolve_order
from trainer.data.reader import ShardReader

pytestmark = [
    # Google's client drops the connection of an answer that is an error, and leaves it to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    # Three loader processes on a machine of two cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

BATCH, SLOT, EPOCHS = 16, 4, 2
# Of shards of 33,280 bytes, of which a window has three.
TWO_SHARDS, FOUR_SHARDS, WINDOW = 70_000, 140_000, 3
DRAWN = {
    "crop": "random_resized",
    "horizontal_flip": True,
    "augment": {"rand_augment_ops": 1, "rand_augment_magnitude": 9, "color_jitter": [0, 0, 0, 0.1], "mixup_alpha": 0.5},
}
Steps = dict[tuple[int, int], tuple[tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


def read_steps(
    uri: str, cache: Path | None, first: int, stop: int, *, ranks: int, num_workers: int, fields: dict[str, object]
) -> Steps:
    """Read the steps [first, stop) as the ranks of a training do, one rank after another; by step and slot."""
    found: Steps = {}
    manifest = ShardManifest.load(uri)
    samples = manifest.splits["train"].samples
    epoch, in_epoch = divmod(first, steps_per_epoch(samples, BATCH))
    start = epoch * samples + in_epoch * BATCH
    for rank in range(ranks):
        position = start
        data = data_section(cache, **DRAWN, **fields)
        reader = ShardReader(uri, manifest, "train", data)
        record = resolve_order(data, uri, None).order
        if record.kind == "blocks":
            record = record.model_copy(update={"window_shards": WINDOW})
        order = make_order(record, manifest, seed=1)
        reader.set_order(order)
        dataset = SlotDataset(reader, image_task(manifest, data), seed=1)
        requests = slot_requests(
            position, order=order, epochs=EPOCHS, global_batch_size=BATCH, slot_size=SLOT, rank=rank, ranks=ranks
        )
        wanted = takewhile(lambda request: request.step < stop, requests)
        ahead = reader.prefetcher(order, position, epochs=EPOCHS)
        loader = make_loader(
            dataset, ahead.start_with(wanted), num_workers=num_workers, prefetch_factor=2, pin_memory=False
        )
        try:
            for slot in read_slots(loader):
                if slot.request.last_of_step:
                    position += slot.request.batch_samples
                    ahead.advance(position)
                if slot.request.counts:
                    place = slot.request.step, slot.request.slot
                    assert place not in found
                    images, label, mix = slot.batch["images"], slot.batch["label"], slot.batch["mix"]
                    found[place] = (slot.request.samples, images, label, mix["shares"])
        finally:
            ahead.close()
    return found


@pytest.mark.parametrize(
    ("source", "cached", "fields"),
    [
        ("disk", False, {"order": "full"}),
        ("disk", False, {"order": "blocks"}),
        ("bucket", False, {"order": "blocks"}),
        ("bucket", True, {"order": "blocks"}),
        ("bucket", True, {"order": "full"}),
        ("bucket", True, {"order": "blocks", "cache_bytes": FOUR_SHARDS}),
        # Samples are read one by one.
        ("bucket", True, {"order": "blocks", "cache_bytes": TWO_SHARDS}),
    ],
)
def test_two_ranks_then_three_then_one(
    request: pytest.FixtureRequest,
    small_shards: str,
    tmp_path: Path,
    source: str,
    cached: bool,
    fields: dict[str, object],
) -> None:
    """Changed in the middle of epochs, with 0, 3 and 1 loader processes; from disk with one rank it is the same."""
    uri = request.getfixturevalue("bucket_shards") if source == "bucket" else small_shards
    samples = ShardManifest.load(uri).splits["train"].samples
    steps = EPOCHS * steps_per_epoch(samples, BATCH)
    expected = read_steps(small_shards, None, 0, steps, ranks=1, num_workers=0, fields=fields)
    found: Steps = {}
    for first, stop, ranks, num_workers in ((0, 3, 2, 0), (3, 7, 3, 3), (7, steps, 1, 1)):
        cache = tmp_path / "cache" if cached else None
        found |= read_steps(uri, cache, first, stop, ranks=ranks, num_workers=num_workers, fields=fields)
    assert {place: of[0] for place, of in found.items()} == {place: of[0] for place, of in expected.items()}
    for place, (_, *tensors) in found.items():
        assert all(torch.equal(one, other) for one, other in zip(tensors, expected[place][1:], strict=True)), place
    for epoch in range(EPOCHS):
        within = range(epoch * steps // EPOCHS, (epoch + 1) * steps // EPOCHS)
        seen = sorted(sample for (step, _), of in found.items() if step in within for sample in of[0])
        assert seen == list(range(samples))

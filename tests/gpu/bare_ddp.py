"""A bare DDP loop on data that is resident on the device, which the trainer's rate stands beside.

    torchrun --nproc-per-node=N --module tests.gpu.bare_ddp '{"model": ..., "image_size": S, "classes": C, "batch": B,
                                                             "precision": "fp32"|"bf16", "channels_last": false}'

Same network, batch, precision and optimizer as the trainer's; there is no loader, no checkpoint, no look at gradients.
The first rank prints samples per second of all ranks: of the median window of steps, the first one left out.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from contextlib import nullcontext
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from contracts.config import ModelSection
from tests.trainer.tasks.for_tests import image_network

WINDOW_STEPS, WINDOWS, RESIDENT_BATCHES = 10, 5, 4


def main() -> None:
    """Run the loop."""
    given, local_rank = json.loads(sys.argv[1]), int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        # As the trainer's default has it; the search for the fastest convolutions is this loop's to win.
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    torch.manual_seed(0)
    network = image_network(ModelSection.model_validate(given["model"]), given["classes"], given["image_size"])
    layout = torch.channels_last if given["channels_last"] else torch.contiguous_format
    network = network.to(device, memory_format=layout)  # type: ignore[call-overload]
    model = nn.parallel.DistributedDataParallel(network, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    shape = (given["batch"] // dist.get_world_size(), 3, given["image_size"], given["image_size"])
    images = [torch.randn(shape, device=device).contiguous(memory_format=layout) for _ in range(RESIDENT_BATCHES)]
    labels = torch.randint(given["classes"], shape[:1], device=device)
    half = given["precision"] == "bf16"
    ends = []
    for step in range(1, WINDOW_STEPS * WINDOWS + 1):
        with torch.autocast(device.type, dtype=torch.bfloat16) if half else nullcontext():
            loss = functional.cross_entropy(model(images[step % RESIDENT_BATCHES]), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % WINDOW_STEPS == 0:
            loss.item()  # waits for the device
            ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        seconds = statistics.median(later - earlier for earlier, later in pairwise(ends)) / WINDOW_STEPS
        print(given["batch"] / seconds, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

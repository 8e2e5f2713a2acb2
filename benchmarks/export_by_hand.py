"""An export as it is done by hand: `export_by_hand.py MODEL WEIGHTS TARGET`. Prints the seconds of its three calls.

Nothing of ours is used, and nothing is checked: model, torch.onnx.export, a conversion to fp16, an engine.
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import onnx
import tensorrt_rtx as trt
import torch
from onnxconverter_common import float16
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageClassification

given, weights, target = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
torch.set_num_threads(given["threads"])
config = AutoConfig.for_model(given["architecture"], num_labels=given["classes"])
network = AutoModelForImageClassification.from_config(config).eval()
network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in load_file(weights).items()})
times = [time.perf_counter()]

example = torch.zeros(2, 3, given["size"], given["size"])
batch = torch.export.Dim("batch", min=1)
torch.onnx.export(
    network,
    (example,),
    target / "fp32.onnx",
    dynamo=True,
    opset_version=20,
    input_names=["images"],
    output_names=["logits"],
    dynamic_shapes=({0: batch},),
    external_data=False,
)
times.append(time.perf_counter())

half = float16.convert_float_to_float16(onnx.load(target / "fp32.onnx"), keep_io_types=True)
onnx.save(half, target / "fp16.onnx")
times.append(time.perf_counter())

logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
parsed = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
assert trt.OnnxParser(parsed, logger).parse_from_file(str(target / "fp16.onnx"))
settings, profile = builder.create_builder_config(), builder.create_optimization_profile()
profile.set_shape("images", *((size, 3, given["size"], given["size"]) for size in given["profile"]))
settings.add_optimization_profile(profile)
settings.num_compute_capabilities = 1
settings.set_compute_capability(trt.ComputeCapability.SM89, 0)
(target / "model.engine").write_bytes(builder.build_serialized_network(parsed, settings))
times.append(time.perf_counter())
print(json.dumps([later - earlier for earlier, later in pairwise(times)]))

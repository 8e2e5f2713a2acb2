"""The passes of an export's gates as they are done by hand: `gates_by_hand.py GIVEN WEIGHTS GRAPH...`; prints seconds.

Each sample goes once through torch and once through each graph, in batches of 16; nothing is compared. Samples are
noise: the time does not depend on them.
"""

import json
import sys
import time

import numpy as np
import onnxruntime
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageClassification

given, weights, graphs = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]
began = time.perf_counter()
torch.set_num_threads(given["threads"])
config = AutoConfig.for_model(given["architecture"], num_labels=given["classes"])
network = AutoModelForImageClassification.from_config(config).eval()
network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in load_file(weights).items()})
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = given["threads"], 1
sessions = [onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"]) for graph in graphs]
random = np.random.default_rng(0)
for start in range(0, given["samples"], 16):
    number = min(16, given["samples"] - start)
    images = random.standard_normal((number, 3, given["size"], given["size"]), dtype=np.float32)
    with torch.inference_mode():
        network(torch.from_numpy(images))
    for session in sessions:
        session.run(None, {"images": images})
print(time.perf_counter() - began)

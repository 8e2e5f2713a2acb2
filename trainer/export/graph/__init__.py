"""ONNX graphs: from torch, to fp16 and int8, and what their nodes compute."""

"""From the best checkpoint to ONNX, to an engine, with a proof of parity."""

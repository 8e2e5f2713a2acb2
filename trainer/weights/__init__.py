"""Weights that training starts from (model.weights): read and matched with the network (docs/fine-tuning.md)."""

"""The network: built from its configuration, its precision, activation checkpointing, gradient guard and average."""

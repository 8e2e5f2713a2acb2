"""The network: built from its configuration, with its precision, activation checkpointing, gradient guard and average."""

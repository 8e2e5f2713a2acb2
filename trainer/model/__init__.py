"""The network: built from its configuration, with its precision, activation checkpointing and weight average."""

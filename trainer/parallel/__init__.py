"""Ranks: their process group, and how a network is spread over them."""

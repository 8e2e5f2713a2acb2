"""Stages in the foreground of this machine: the whole line, or one of them."""

"""Inspection of runs: RunView, report, stage pages, terminal output."""

"""Supervision of a rank: stop signals, votes, watchdog, budgets and the account of its time."""

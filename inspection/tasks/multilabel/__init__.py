"""Pages of tasks with several labels: every class at its threshold, and the samples with the largest loss."""

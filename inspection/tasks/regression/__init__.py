"""Pages of tasks that learn a number for each sample: residuals, and the samples that are farthest off."""

"""The order of samples: pure functions of (seed, epoch, global position)."""

"""What the gates of an export run and compare: samples, outputs, metrics."""

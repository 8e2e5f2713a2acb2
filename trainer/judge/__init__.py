"""The model of a run beside the one in production: both answer the run's test split, and the difference is judged."""

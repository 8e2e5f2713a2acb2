"""Reports of a training: TensorBoard's files and the log, and the readings and gauges that they show."""

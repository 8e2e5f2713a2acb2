"""Report of a run and page of each stage: RunView in, one HTML file out; a module per section."""

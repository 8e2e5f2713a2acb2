"""HTML and Markdown of reports: part types, charts as SVG, numbers with units, escaping. Nothing here reads a run."""

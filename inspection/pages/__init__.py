"""HTML and Markdown of reports: part types, charts as SVG, numbers with units, escaping; independent of runs."""

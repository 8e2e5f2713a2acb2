"""Pages as HTML and Markdown: a typed view per template, markup that cannot forget to escape, numbers with units.

`run` is the page of a run of the line, `stage` the Markdown of stages. This package imports contracts only, and nothing
here reads or writes a file.
"""

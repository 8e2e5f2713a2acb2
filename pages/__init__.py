"""Pages as one file of HTML: markup that cannot forget to escape, numbers with units, how pages look.

The page of a profiling run is pages/profile; that of a run of the line is in inspection/page. This package imports
contracts only, and nothing here reads or writes a file.
"""

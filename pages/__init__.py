"""Pages as one file of HTML: markup that cannot forget to escape, numbers with units, how pages look.

What a page is about is elsewhere: a profiling run in trainer/profiling/page, a run of the line in inspection/page. This
package imports contracts only, and nothing here reads or writes a file.
"""

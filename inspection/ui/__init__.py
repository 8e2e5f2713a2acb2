"""`shardline ui`: the runs below a root in a browser, as they are now.

    server.py     listens, says where, ends at Ctrl-C
    app.py        the routes
    guard.py      what every answer carries, and which requests get none: methods, hosts, the content security policy
    addresses.py  what runs and their files are called in addresses
    store.py      the runs: found by listing, read by one thread at a time, the ended ones remembered
    shared.py     a value that many ask for and one reads
    files.py      logs and the profiling run's page: only what a run names, only below the root, never a whole log
    shell.py      what stands around every page
    run_list.py   the rows of the list
    downloads.py  the list as a table for spreadsheets
    live.py       sections that have changed, and clocks, for pages that follow what runs
    run_page.py   what stands around a run's sections; the page of a log
    compare.py    what differs between two runs
    compare_page.py  the page of that
    history_page.py  the page of a line's history
    static/       scripts of our own; pages/static/ has those that draw curves

Nothing here writes, executes or unpickles anything of a run; every answer is to GET or HEAD.
"""

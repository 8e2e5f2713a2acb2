"""Pictures and reports of runs. Empty until the run page comes."""

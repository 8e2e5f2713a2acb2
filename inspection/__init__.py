"""Looking at runs: what is read of a run, its page, its stage pages, the terminal."""

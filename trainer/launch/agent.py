"""torchrun that ends with its launcher: `python -m trainer.launch.agent LAUNCHER_PID TORCHRUN_ARGUMENTS`.

The launcher may have threads, so the request to the kernel is made here and not between fork and exec.
"""

from __future__ import annotations

import os
import signal
import sys

from contracts.process import end_with_parent


def main(arguments: list[str]) -> None:
    """Run torchrun in this process."""
    end_with_parent()
    # A terminal sends it to all, as often as the key is pressed, and the launcher passes it on, once, as SIGTERM. At a
    # signal too many torchrun ends without waiting for its ranks, which end with it and have not saved.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != int(arguments[0]):
        # The launcher ended before the request.
        os._exit(os.EX_TEMPFAIL)
    from torch.distributed.run import main as torchrun

    torchrun(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])

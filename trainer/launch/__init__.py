"""From a machine's environment to running ranks, and from their end to an exit code. See docs/launch.md.

    nodes       the environment -> which machine of how many this is
    machine     cores, GPUs, ranks of this machine
    device      what a kind of device cannot do
    assignment  what a rank is told; how it tells why it ended
    torchrun    the ranks of one generation on this machine: started, watched, killed
    meeting     launchers of a job agree on generations, over a socket
    shared_output  whether a machine writes to the first one's output
    attempts    what is kept of a job between attempts: how many, and a user error that ends it
    generations the launcher: generation after generation until training is finished or must not go on

Nothing here imports torch: a launcher starts at once, and waits in little memory.
"""

from trainer.launch.assignment import Assignment
from trainer.launch.machine import hardware, num_gpus, num_ranks

__all__ = ["Assignment", "hardware", "num_gpus", "num_ranks"]

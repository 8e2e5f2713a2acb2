"""Where the time of a training went, over all its attempts: part of run.json, and what `shardline inspect` prints."""

from __future__ import annotations

from contracts.artifacts.document import Document


class GoodputRecord(Document):
    """The account of a training: contracts/goodput.py makes it from events."""

    wall_s: float
    """Life of all attempts; between them nobody worked, and it is not in it."""
    between_attempts_s: float
    """From the end of an attempt to the start of the next: a machine was waited for, or nobody tried."""
    productive_s: float
    """Forward, backward and update of steps that count, as the first rank's processor saw it."""
    start_up_s: float
    """Process starts, imports, meeting of the ranks, building of the network, and restoring."""
    data_wait_s: float
    """Waiting for the loader, in steps that count."""
    checkpoint_s: float
    """Steps stood still for a checkpoint that counts."""
    evaluation_s: float
    """Evaluation that counts."""
    lost_s: float
    """Steps, data, checkpoints and evaluation behind the checkpoint that training later went on from: all of it was
    done again."""
    recovery_s: float
    """From the last word of ranks that died to the first word of those that followed in the same attempt."""
    stop_s: float
    """Agreed stops: their last checkpoint, and the end of all processes; also the end of a finished training."""
    goodput_percent: float
    """productive_s as a share of wall_s."""
    attempts: int
    starts: int
    """How often the ranks were started."""
    steps: int
    """Optimizer steps that training has come to."""
    lost_steps: int
    """Steps that were told and had to be taken again."""
    preemptions: int
    """On machines that a platform may take away: agreed stops because of a signal or a notice, and attempts that ended
    without a word before another began."""
    interruptions: int = 0
    """Stops by a user's signal: Ctrl-C or SIGTERM."""
    kills: int = 0
    """On machines that nobody takes away: attempts that ended without a word before another began, or by SIGKILL."""
    crashes: int
    """Ranks that died and were started again within an attempt, and attempts that ended by a fault or a signal."""
    node_hours: float
    """wall_s times machines, in hours."""
    preemptions_per_node_hour: float | None
    """None before a second of work."""

"""What a run does with its export: it gets a version, is judged beside the one in production, and the verdict holds.

It stands behind the export stage's own work: an export is finished whatever comes of this, and a registry that cannot
be read is a warning.
"""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import ExportManifest, ShardManifest
from contracts.artifacts.promotion import JUDGEMENT_NAME, Action, Decision, Judgement, Verdict
from contracts.errors import ShardlineError
from contracts.promotions import ProductionChanged, decide, find_decision, find_production, register_model
from contracts.proof import find_unproven
from contracts.result import RESULTS_FOLDER, run_uri
from contracts.stage import Stage

_ACTIONS: dict[Verdict, Action] = {"promote": "promoted", "keep": "kept", "not judged": "not judged"}
# Runs of one line that end at once.
_TRIES = 3


def judgement_uri(line: str, run_id: str) -> str:
    """Return where the judgement of a run is."""
    return storage.join(run_uri(line, run_id), RESULTS_FOLDER, JUDGEMENT_NAME)


def judge_run(stage: Stage, export: str, shards_uri: str, shards: ShardManifest) -> None:
    """Judge the export of a run, leave the judgement with it, and write down the decision.

    Args:
        stage: Export, working for a run of a line.
        export: The finished folder.
        shards_uri: Folder of the shards.
        shards: Their manifest.
    """
    try:
        decision = _decide(stage, export, shards_uri, shards)
    except (ShardlineError, OSError) as error:
        stage.log(f"warning: not judged, production stays: {error}")
        return
    production = f"; in production: run {decision.production}" if decision.production else ""
    stage.log(f"{decision.action}: {'; '.join(decision.reasons)}{production}")


def _decide(stage: Stage, export: str, shards_uri: str, shards: ShardManifest) -> Decision:
    if (earlier := find_decision(stage.line, stage.run)) is not None:
        # An attempt before this one has got so far.
        return earlier
    # Here: numpy is not needed to find what is finished.
    from trainer.judge.judging import Trial, judge

    trial = Trial(stage.config, export, shards_uri, shards)
    proven = not find_unproven(export, ExportManifest.load(export))
    register_model(stage.line, run=stage.run, export=export, proven=proven)
    for left in reversed(range(_TRIES)):
        judgement = judge(trial, find_production(stage.line))
        _leave(stage, judgement)
        try:
            return decide(
                stage.line,
                by=f"run {stage.run}",
                action=_ACTIONS[judgement.verdict],
                run=stage.run,
                reasons=judgement.reasons,
                judgement=judgement,
            )
        except ProductionChanged:
            if not left:
                raise
    raise AssertionError


def _leave(stage: Stage, judgement: Judgement) -> None:
    content = (judgement.model_dump_json(indent=1) + "\n").encode()
    storage.replace(judgement_uri(stage.line, stage.run), content)

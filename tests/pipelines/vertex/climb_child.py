"""`submit --wait` on a small compiled pipeline, in a process that knows the local cloud by its variables only.

python -m tests.pipelines.vertex.climb_child SPEC CONFIG RUN_ID: prints a line of JSON.
"""

import json
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

from contracts.resolve import load_config  # noqa: E402
from pipelines.google import pipeline_client  # noqa: E402
from pipelines.graph.compile import CompiledLine  # noqa: E402
from pipelines.runs.follow import TaskLines  # noqa: E402
from pipelines.submission.ladder import Rung, climb  # noqa: E402
from pipelines.submission.submit import Submitted, prepare  # noqa: E402

STRATEGIES = ("SPOT", "STANDARD")


def main(spec: str, config_path: str, run_id: str) -> None:
    config = load_config(config_path)
    root = f"{config.run.root}/{config.run.name}"
    compiled = CompiledLine(
        json.loads(Path(spec).read_text()), {"strategy": "SPOT"}, {}, config.run.name, f"{root}/pipeline", {}
    )
    made: list[Submitted] = []
    ending = climb(
        pipeline_client(config.cloud.region),
        prepare(config, compiled, run_id=run_id),
        [Rung(strategy, {"strategy": strategy}, pending_limit_s=2) for strategy in STRATEGIES],
        TaskLines,
        say=lambda text: print(text, file=sys.stderr),
        submitted=made.append,
        poll_s=0.5,
    )
    cause = ending.diagnosis.kind if ending.diagnosis else ""
    print(json.dumps({"exit_code": ending.exit_code, "runs": [one.name.id for one in made], "cause": cause}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The route of a submission that docs/architecture.md names: measured on `shardline submit --dry-run`."""

import re
import subprocess
import sys
from pathlib import Path

from tests.pipelines.images import IMAGES

ROOT = Path(__file__).parents[2]
MOST = 10
# What is handed on from the command to the request.
TRACE = """
import sys
from pathlib import Path

HANDED = {"Plan", "Containers", "Container", "JobSpec", "Stages", "CompiledLine", "Prepared", "Submission"}
found = set()

def look(frame, event, value):
    file = frame.f_code.co_filename
    if f"{ROOT}/pipelines/" not in file or frame.f_code.co_name.startswith("<"):
        return
    names = {type(one).__name__ for one in ([value] if event == "return" else frame.f_locals.values())}
    if names & HANDED and event in ("call", "return"):
        found.add(str(Path(file).relative_to(ROOT)))

sys.argv = ["shardline", "submit", f"{ROOT}/configs/digits-vertex.yaml", *{IMAGES}, "--dry-run"]
from pipelines.cli import main
sys.setprofile(look)
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
finally:
    sys.setprofile(None)
    print(*sorted(found), sep="\\n", file=sys.stderr)
"""


def test_a_submission_passes_the_files_that_the_architecture_names() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.search(r"- \*\*A submission\*\*, from .*?:(.*?)\.\n", text, re.DOTALL)
    assert named is not None
    files = set(re.findall(r"`([a-z_/]+\.py)`", named[1]))
    assert len(files) <= MOST
    program = (
        TRACE.replace("{ROOT}", str(ROOT))
        .replace("{IMAGES}", repr(IMAGES))
        .replace("relative_to(ROOT)", f"relative_to({str(ROOT)!r})")
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    found = {line for line in done.stderr.splitlines() if line.startswith("pipelines/")}
    # The command holds them in its variables; the table only says the plan in words.
    assert found | {"pipelines/commands/submit.py"} == files | {"pipelines/plan/table.py"}

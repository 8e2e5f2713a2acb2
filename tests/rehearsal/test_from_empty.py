"""`shardline rehearse --from-empty`: the five commands of the quickstart, in a project that has nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import small_config, write_pictures
from tests.rehearsal.test_rehearse import ROOT, rehearse, shardline

pytestmark = pytest.mark.timeout(1800)
ACCOUNT = "acme-vision.iam.gserviceaccount.com"


@pytest.mark.line
def test_an_empty_project_the_digits_and_an_artefact_with_its_verdict(tmp_path: Path) -> None:
    raw = tmp_path / "raw" / "digits"
    subprocess.run([sys.executable, "examples/digits.py", str(raw)], cwd=ROOT, check=True, capture_output=True)
    found, kept = rehearse(tmp_path, "--from-empty", "--source", raw)
    assert found["complaints"] == [] and found["refused_hosts"] == []
    assert len(found["set_up"]) == 1 and found["set_up"][0].startswith("26 missing things named and made: 10 APIs")
    line = kept / "buckets" / "rehearsal-line" / "lines" / "digits"
    uri, said = found["artefact"].split(": ")
    assert uri.startswith("gs://rehearsal-line/lines/digits/export/")
    verdict = json.loads((line / "export" / uri.rpartition("/")[2] / "manifest.json").read_text())["verdict"]
    assert said.endswith(f", {verdict}")
    assert json.loads((line / "run.json").read_text())["state"] == "succeeded"

    # The data went up once, the images were built once, and the run has both.
    requests = [json.loads(row) for row in (kept / "bucket-requests.jsonl").read_text().splitlines()]
    sent = [row["object"] for row in requests if row["method"] == "POST" and "/source/" in (row["object"] or "")]
    assert len(sent) == len(set(sent)) == 1797 + 1
    assert len(list((line / "images").iterdir())) == 1
    (job,) = json.loads((kept / "PipelineJob.json").read_text())
    images = json.loads((kept / "images.json").read_text())
    assert images["trainer"] in json.dumps(job) and images["export"] in json.dumps(job)


def lose(tmp_path: Path, role: str) -> str:
    """Play the commands without a role of the accounts, and return what the report says that the run ended by."""
    write_pictures(tmp_path / "raw", per_class=4)
    values = small_config(
        run={"name": "small", "root": "gs://acme-line/lines"},
        sharding={"source": str(tmp_path / "raw")},
        resources={"machine": {"type": "n1-standard-4"}},
        profile={"window_s": 0.05},
        cloud={
            "project": "acme-vision",
            "region": "us-central1",
            "service_account": f"shardline-runner@{ACCOUNT}",
            "images": {"repository": "us-central1-docker.pkg.dev/acme-vision/shardline"},
        },
        project={"build_account": f"shardline-build@{ACCOUNT}"},
    )
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    done = shardline(tmp_path, "rehearse", path, "--from-empty", "--without-role", role, "-o", "json")
    found = json.loads(done.stdout)
    # What speaks against it is the run's failure alone: it names the role, and so does `project plan`.
    assert done.returncode == 1 and len(found["complaints"]) == 1, (found["complaints"], done.stderr)
    assert found["exit_code"] == 2 and found["set_up"][-1] == f"then {role} taken away"
    return str(found["ended_by"])


@pytest.mark.slow
def test_without_a_role_the_run_ends_by_the_permission_and_the_declared_role_that_has_it(tmp_path: Path) -> None:
    ended_by = lose(tmp_path, "roles/storage.objectUser")
    assert ended_by.startswith("permission: an account lacks a permission: storage.objects.")
    assert "roles/storage.objectUser on the bucket, for cloud.service_account" in ended_by


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "permission", "scope"),
    [
        ("roles/dataflow.admin", "dataflow.jobs.list", "project"),
        ("roles/iam.serviceAccountUser", "iam.serviceAccounts.actAs", "runner"),
        ("roles/aiplatform.user", "aiplatform.", "project"),
    ],
)
def test_every_role_that_a_run_uses_is_named_when_it_is_gone(
    tmp_path: Path, role: str, permission: str, scope: str
) -> None:
    ended_by = lose(tmp_path, role)
    assert ended_by.startswith(f"permission: an account lacks a permission: {permission}")
    assert f"{role} on the {scope}, for cloud.service_account" in ended_by

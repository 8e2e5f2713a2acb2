"""Images built by Cloud Build: Google's session against the local cloud, where a played Cloud Build builds nothing."""

import hashlib
import io
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from contracts import storage
from pipelines import images
from pipelines.cli import app
from rehearsal.servers.http import Request, Response, Send, json_response
from tests.pipelines.vertex.conftest import PROJECT, REGION, Cloud

ACCOUNT = f"shardline-build@{PROJECT}.iam.gserviceaccount.com"
REPOSITORY = f"{REGION}-docker.pkg.dev/{PROJECT}/shardline"
DIGEST = f"sha256:{'ab' * 32}"
RECORD = Path(f"images-{PROJECT}.json")


class PlayedBuilds:
    """Cloud Build's list, create and get of builds, and Artifact Registry's get of a repository."""

    def __init__(self) -> None:
        self.builds: dict[str, dict[str, Any]] = {}
        self.end: dict[str, Any] = {"status": "SUCCESS"}

    def serve(self, request: Request, send: Send) -> None:
        send(self._answer(request))

    def _answer(self, request: Request) -> Response:
        service, name = request.host.partition(".")[0], request.path.removeprefix("/v1/")
        if service == "artifactregistry":
            assert name == f"projects/{PROJECT}/locations/{REGION}/repositories/shardline"
            return json_response({"name": name})
        if request.method == "POST":
            build = {**request.json(), "name": f"{name}/{len(self.builds)}", "status": "QUEUED", "logUrl": "https://l"}
            self.builds[build["name"]] = build
            return json_response({"metadata": {"build": build}})
        if name.endswith("/builds"):
            (tag,) = re.findall(r'^tags="(shardline-[0-9a-f]{32})"$', request.query["filter"])
            return json_response({"builds": [each for each in self.builds.values() if tag in each["tags"]]})
        build = self.builds[name]
        if build["status"] == "QUEUED":
            build["status"] = build["steps"][1]["status"] = "WORKING"
        else:
            build |= self.end
            values = build["substitutions"]
            named = [re.sub(r"\$\{(\w+)\}", lambda found: str(values[found[1]]), each) for each in build["images"]]
            build["results"] = {"images": [{"name": each, "digest": DIGEST} for each in named]}
        return json_response(build)


@pytest.fixture
def played(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedBuilds:
    """The played services behind Google's names, and a configuration in the current folder."""
    played = PlayedBuilds()
    for service in ("cloudbuild", "artifactregistry"):
        cloud.server.sites[f"{service}.googleapis.com"] = played.serve
    monkeypatch.setattr(images, "_POLL_S", 0.0)
    monkeypatch.chdir(tmp_path)
    section = {"repository": REPOSITORY, "build_account": ACCOUNT}
    values = {
        "run": {"name": "line", "root": "gs://bucket-1/runs"},
        "resources": {"machine": {"type": "g2-standard-12"}},
        "cloud": {"project": PROJECT, "region": REGION, "images": section},
    }
    Path("line.yaml").write_text(yaml.safe_dump(values))
    return played


def build(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["images", "build", "line.yaml", *words])
    assert result.exit_code == code, result.output
    return result


def unpack(sent: dict[str, Any]) -> dict[str, bytes]:
    """Return the files that a build was sent."""
    place = sent["source"]["storageSource"]
    content = io.BytesIO(storage.read_bytes(f"gs://{place['bucket']}/{place['object']}"))
    with tarfile.open(fileobj=content) as archive:
        opened = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name: file.read() for name, file in opened.items() if file is not None}


def test_both_images_are_built_as_the_account_of_builds_and_recorded(played: PlayedBuilds) -> None:
    made = build()
    assert made.stdout == f"cpu: {REPOSITORY}/cpu@{DIGEST}\ngpu: {REPOSITORY}/gpu@{DIGEST}\n"
    assert "https://l" in made.stderr and "gpu working" in made.stderr
    record = images.ImageRecord.model_validate_json(RECORD.read_text())
    assert (record.gpu, record.cuda, record.tensorrt) == (f"{REPOSITORY}/gpu@{DIGEST}", "cu126", "11.3.0")
    assert record.sources_sha256 == images.hash_sources()
    ((name, sent),) = played.builds.items()
    assert name == f"projects/{PROJECT}/locations/{REGION}/builds/0"
    assert sent["serviceAccount"] == f"projects/{PROJECT}/serviceAccounts/{ACCOUNT}"
    assert unpack(sent) == {name: path.read_bytes() for name, path in images.list_sources().items()}


def test_what_is_built_follows_the_configuration_and_the_options(played: PlayedBuilds) -> None:
    Path("needs.txt").write_text("timm==1.0.20\n")
    build("code.requirements=needs.txt", "export.runtime=tensorrt_rtx", "--tensorrt", "none", "cloud.region=us-east4")
    record = images.ImageRecord.model_validate_json(RECORD.read_text())
    assert record.requirements_sha256 == hashlib.sha256(b"timm==1.0.20\n").hexdigest()
    ((name, sent),) = played.builds.items()
    assert "/us-east4/" in name and unpack(sent)["deploy/docker/own-requirements.txt"] == b"timm==1.0.20\n"
    build("resources.machine.type=g4-standard-48")
    build("resources.machine.type=n1-standard-8", "--cuda", "cu130")
    volta = "resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_V100}"
    refused = build(volta, "resources.serving_machine.type=g4-standard-48", code=2)
    assert "no code for the GPU of" in refused.stderr
    given = [
        [each["substitutions"][f"_{name}"] for name in ("CUDA", "TENSORRT", "RTX")] for each in played.builds.values()
    ]
    assert given == [["cu126", "", "rtx"], ["cu130", "11.3.0", ""], ["cu130", "", ""]]


def test_a_build_that_fails_is_told_with_its_log(played: PlayedBuilds) -> None:
    played.end = {"status": "FAILURE", "statusDetail": "step 1 exited with code 2"}
    assert "code 2; its log: https://l" in build(code=2).stderr
    assert not RECORD.exists()

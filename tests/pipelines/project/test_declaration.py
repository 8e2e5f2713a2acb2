import re
from pathlib import Path

import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.project.declaration import declare
from pipelines.project.roles import BUILD, RUNNER, USER
from tests.pipelines.project.conftest import configure

ROOT = Path(__file__).parents[3]


def test_the_default_declaration(config: RunConfig) -> None:
    declaration = declare(config)
    keys = [resource.key for resource in declaration.resources]
    assert keys == [
        "bucket acme-vision-line",
        "account shardline-runner@acme-vision.iam.gserviceaccount.com",
        "repository shardline",
        "network default",
    ]
    assert not any(resource.cost for resource in declaration.resources if resource.kind != "repository")
    assert {grant.member for grant in declaration.grants} == {
        "serviceAccount:shardline-runner@acme-vision.iam.gserviceaccount.com"
    }


def test_no_rule_of_the_bucket_deletes_by_age_alone(whole: RunConfig) -> None:
    bucket = declare(whole).resources[0]
    for rule in bucket.body["lifecycle"]["rule"]:
        if rule["action"]["type"] == "Delete":
            assert rule["condition"]["matchesPrefix"] == ["dataflow/temp/"]


def test_every_grant_has_a_declared_resource_and_a_reason(whole: RunConfig) -> None:
    declaration = declare(whole)
    names = {declaration.project} | {resource.name for resource in declaration.resources}
    for grant in declaration.grants:
        assert grant.resource in names
        assert grant.reason
        # Of the basic roles none: each may nearly everything.
        assert grant.role not in ("roles/owner", "roles/editor", "roles/viewer")
    assert len({grant.key for grant in declaration.grants}) == len(declaration.grants)


def test_a_private_network_has_nat_and_lets_workers_talk(whole: RunConfig) -> None:
    kinds = [resource.kind for resource in declare(whole).resources]
    assert kinds.index("network") < kinds.index("subnetwork") < kinds.index("firewall") < kinds.index("router")
    public = [resource.kind for resource in declare(configure("dataflow.network=line")).resources]
    assert "router" not in public


def test_what_belongs_to_another_project_is_not_declared() -> None:
    other = declare(
        configure(
            "cloud.images.repository=us-central1-docker.pkg.dev/other-project/images",
            "dataflow.network=projects/other-project/global/networks/shared",
            "vertex.registry=https://us-central1-kfp.pkg.dev/other-project/pipelines",
        )
    )
    assert [resource.kind for resource in other.resources] == ["bucket", "account"]
    assert "repository" not in {grant.scope for grant in other.grants}


@pytest.mark.parametrize(
    ("override", "given"),
    [
        ("cloud.project=''", "cloud.project is not set"),
        ("cloud.region=us-central1-a", "cloud.region = us-central1-a"),
        ("run.root=runs", "run.root: bucket is not set"),
        ("cloud.service_account=''", "cloud.service_account is not set"),
        ("cloud.service_account=line@acme-vision.iam.gserviceaccount.com", "cloud.service_account = line@"),
        ("cloud.service_account=shardline-runner@other.iam.gserviceaccount.com", "cloud.service_account = shard"),
        ("project.build_account=someone@acme.com", "project.build_account = someone@acme.com"),
        ('project.users=["ada@acme.com"]', "project.users.0"),
        ("project.monthly_budget=-1", "project.monthly_budget"),
    ],
)
def test_what_google_would_refuse_is_refused_first(override: str, given: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(given)) as caught:
        declare(configure(override))
    assert caught.value.exit_code == 2


def test_the_page_has_the_roles_of_the_declaration() -> None:
    """docs/vertex.md shows each role with its reason."""
    page = (ROOT / "docs" / "vertex.md").read_text(encoding="utf-8")
    for role in (*RUNNER, *BUILD, *USER):
        assert f"| `{role.name}` | {role.scope} | {role.reason} |" in page, role

"""What is executed knows of no rehearsal: no switch in its code, and no variable of ours in a machine's environment."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from rehearsal.cloud import LocalCloud

ROOT = Path(__file__).parents[2]
# Whatever a container may run: the stages, the components, and what they import.
EXECUTED = ("contracts", "records", "pages", "sharding", "trainer", "components")
WORDS = re.compile(
    r"[Rr]ehears|REHEARS|EMULATOR|GCE_METADATA|FSSPEC_GCS|_CA_BUNDLE|SSL_CERT|SSL_ROOTS|CA_CERTS|_proxy|_PROXY"
)
# Libraries' own variables, read for everybody; and the name of the package in the layers' list.
KNOWN = {
    "contracts/__init__.py": {'"rehearsal"'},
    "contracts/stores/gcs_client.py": {'"STORAGE_EMULATOR_HOST"'},
    "contracts/stores/gcs_reads.py": {'"STORAGE_EMULATOR_HOST"'},
    # A program that is shipped with a model asks a server beside it.
    "trainer/export/bundle/shipped.py": {'"NO_PROXY"', '"no_proxy"'},
    "trainer/supervise/notice.py": {'"GCE_METADATA_HOST"'},
}
# Of the clients themselves: the four sets of docs/rehearsal.md.
PROXY = {"https_proxy", "http_proxy", "all_proxy", "no_proxy"}
TRUST = {
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
}
GCSFS = {"FSSPEC_GCS", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"}
# The guard of Python processes is a folder on their path and the file in which it takes down what it refuses.
GUARD = {"PYTHONPATH", "SHARDLINE_REHEARSAL_REFUSED"}


def switches(text: str) -> set[str]:
    """Return names and strings of a program that speak of rehearsals; what explains it does not count."""
    found, starts_line = set(), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        # A string that is a statement is a docstring.
        is_code = token.type == tokenize.NAME or (token.type == tokenize.STRING and not starts_line)
        if is_code and WORDS.search(token.string):
            found.add(token.string)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            starts_line = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return found


def test_a_switch_would_be_found() -> None:
    text = "'Of a rehearsal.'\nimport os\nport = os.environ['A_REHEARSAL_PORT']  # of a rehearsal\n"
    assert switches(text) == {"'A_REHEARSAL_PORT'"}
    assert switches("rehearsed = 1\n") == {"rehearsed"}


def test_the_executed_packages_have_no_switch() -> None:
    found = {}
    for package in EXECUTED:
        for path in sorted((ROOT / package).rglob("*.py")):
            if words := switches(path.read_text()) - KNOWN.get(str(path.relative_to(ROOT)), set()):
                found[str(path.relative_to(ROOT))] = words
    assert found == {}


def test_machines_are_led_by_the_four_sets_of_variables_alone(tmp_path: Path) -> None:
    with LocalCloud(tmp_path / "cloud", projects={"acme": "123456789012"}) as cloud:
        given = set(cloud.machine_environment)
        assert given == TRUST | PROXY | {name.upper() for name in PROXY} | GCSFS | GUARD

"""What is executed knows of no rehearsal: no switch in its code, and no variable of ours in a machine's environment."""

from __future__ import annotations

from pathlib import Path

from rehearsal.cloud import LocalCloud

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


def test_machines_are_led_by_the_four_sets_of_variables_alone(tmp_path: Path) -> None:
    with LocalCloud(tmp_path / "cloud", projects={"acme": "123456789012"}) as cloud:
        given = set(cloud.vertex.machine_environment)
        assert given == TRUST | PROXY | {name.upper() for name in PROXY} | GCSFS | GUARD

"""The same conformance tests against this project's server and, where it is installed, gcp-storage-emulator."""

import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from rehearsal.gcs import BucketServer

# Tests that gcp-storage-emulator 2026.7.19 fails, with what it does instead. Strict: a difference that goes is noticed.
DIFFERENCES = {
    "test_pages": "ignores maxResults and pageToken: one page holds everything",
    "test_offsets": "ignores startOffset and endOffset",
    "test_folders_with_an_object_of_their_own": "ignores includeTrailingDelimiter",
    "test_a_page_token_of_nobody": "ignores pageToken",
    "test_bucket_names_have_rules": "takes any bucket name",
    "test_an_object_says_what_it_is": "starts at metageneration 2 when the upload brings metadata",
    "test_the_answer_names_only_the_fields_asked_for": "ignores fields",
    "test_what_is_not_there": "answers 404 without a JSON body",
    "test_ranges": "knows no suffix ranges (bytes=-3): sends everything",
    "test_a_range_behind_the_end": "answers 206 with nothing instead of 416",
    "test_a_download_carries_checksums_and_generation": "sends no x-goog-generation",
    "test_a_generation_is_read_or_missed": "ignores generation: reads what is there now",
    "test_gzip_is_stored_as_it_came": "does not send Content-Encoding: the client gets compressed bytes",
    "test_a_patch_merges_and_counts": "replaces metadata in a patch, and stores null",
    "test_an_update_replaces": "501",
    "test_generation_0_creates_and_never_overwrites": "ignores preconditions: overwrites in silence",
    "test_generations_guard_every_verb": "ignores preconditions",
    "test_a_reader_who_has_it_already_is_told_so": "ignores preconditions",
    "test_a_refused_precondition_is_in_googles_form": "ignores preconditions",
    "test_an_existing_object_is_kept": "ignores preconditions",
    "test_a_session_keeps_its_precondition": "ignores preconditions",
    "test_compose": "gives a composed object an MD5 and no component count",
    "test_compose_takes_32_sources": "takes any number of sources",
    "test_rewrite_in_steps": "ignores maxBytesRewrittenPerCall: one call does it all",
    "test_move": "501",
    "test_names_that_are_no_paths": "closes the connection: object names are file names to it",
    "test_names_that_are_refused": "takes names that Cloud Storage refuses",
    "test_a_checksum_in_a_header_is_compared": "ignores x-goog-hash",
    "test_the_last_chunk_brings_a_checksum": "ignores x-goog-hash",
    "test_chunks_status_and_the_end": "sends a Range where nothing has arrived yet",
    "test_a_finished_session_says_so": "forgets a session when it is finished",
    "test_bytes_that_are_there_are_sent_again": "400 when a chunk repeats bytes that have arrived",
    "test_odd_chunks_are_kept_in_part": "keeps chunks of any size",
    "test_a_session_is_cancelled": "501",
    "test_an_upload_needs_a_name": "closes the connection without an answer",
    "test_transfer_manager_uploads_in_parts": "501: no XML multipart upload",
    "test_parts_have_rules": "501: no XML multipart upload",
    "test_parts_are_dropped": "501: no XML multipart upload",
    "test_objects_of_the_xml_api": "ignores x-goog-if-generation-match",
}
# Not run at all: the client retries a closed connection for two minutes.
NOT_RUN = {"test_names_that_are_no_paths"}

_START_EMULATOR = """
import time
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True)
server.start()
print(server._api._httpd.server_address[1], flush=True)
time.sleep(600)
"""
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def no_hidden_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's client asks for each bucket's metadata in a thread of its own, whenever it likes: not here."""
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")


@pytest.fixture(scope="session")
def emulator() -> Iterator[str]:
    """Endpoint of gcp-storage-emulator in a process of its own."""
    if importlib.util.find_spec("gcp_storage_emulator") is None:
        pytest.skip("gcp-storage-emulator is not installed")
    process = subprocess.Popen(
        [sys.executable, "-c", _START_EMULATOR], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(params=["ours", "gcp-storage-emulator"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Client]:
    """Google's client, of our server or of the emulator."""
    if request.param == "ours":
        server: BucketServer = request.getfixturevalue("bucket_server")
        endpoint = server.endpoint
    else:
        endpoint = request.getfixturevalue("emulator")
        name = request.node.originalname
        if name in DIFFERENCES:
            mark = pytest.mark.xfail(reason=DIFFERENCES[name], strict=True, run=name not in NOT_RUN)
            request.applymarker(mark)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    made = storage.Client(project="p", credentials=AnonymousCredentials())
    yield made
    made.close()


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    """An empty bucket."""
    return client.create_bucket(f"conformance-{next(_numbers)}")

"""The certificate of Google's names outlives the longest rehearsal."""

import datetime
from pathlib import Path

from cryptography import x509

from rehearsal.guard import write_certificate


def test_it_is_valid_for_longer_than_a_job_may_run(tmp_path: Path) -> None:
    made = write_certificate(tmp_path)
    # A custom job ends after seven days: https://cloud.google.com/vertex-ai/docs/quotas
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=8)
    for path in (made.authority, made.chain):
        for certificate in x509.load_pem_x509_certificates(path.read_bytes()):
            assert certificate.not_valid_before_utc < datetime.datetime.now(datetime.UTC)
            assert certificate.not_valid_after_utc > later

"""Credentials that only this server knows, so that Google's libraries find some at once.

Where there are none, Beam looks for 24 s (four pauses) in every process before it goes on without, and others ask
the metadata server of a machine that is not Google's. A service account's key is made here, its token address is this
server's, and the token opens nothing: the server asks for none.
"""

from __future__ import annotations

import json
from pathlib import Path

from rehearsal.gcs.messages import Response, json_response

TOKEN_PATH = "/token"


def write_service_account(path: Path, endpoint: str, project: str = "emulated") -> None:
    """Write the JSON key file of a service account of `project` that exists nowhere.

    Its tokens come from `endpoint`/token.
    """
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "emulated",
        "private_key": pem,
        "client_email": f"nobody@{project}.iam.gserviceaccount.com",
        "client_id": "0",
        "token_uri": endpoint + TOKEN_PATH,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(account))


def answer_token() -> Response:
    """Answer https://developers.google.com/identity/protocols/oauth2/service-account#httprest with a token."""
    return json_response({"access_token": "emulated", "expires_in": 3600, "token_type": "Bearer"})

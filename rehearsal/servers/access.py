"""Authentication of a rehearsal's clients: a random access token, and a service account key.

Google's clients work unmodified. GOOGLE_APPLICATION_CREDENTIALS names the service account's key file. With it,
google-auth signs either a JWT as access token (https://google.aip.dev/auth/4111: gRPC clients), or an assertion that it
exchanges at https://oauth2.googleapis.com/token
(https://developers.google.com/identity/protocols/oauth2/service-account#httprest: google-cloud-storage, gcsfs, Beam).
Both are verified with the public key; the exchange returns this rehearsal's token. The key file is readable only by
this user, and the token is in no file.

Web pages can send requests to loopback, so requests with an Origin header or a foreign Host (DNS rebinding) are always
refused.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from rehearsal.errors import ServiceError

TOKEN_URI = "https://oauth2.googleapis.com/token"
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFETIME_S = 3600
# Tolerates adjustments of the system clock.
_CLOCK_SKEW_S = 300
_GOOGLES = re.compile(r"([a-z0-9.-]+\.googleapis\.com)(?::443)?", re.IGNORECASE)
_OWN = re.compile(r"(?:127\.0\.0\.1|localhost)(?::\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Caller:
    """The client of one call."""

    transport: str
    """"rest" or "grpc"."""
    user_agent: str = ""
    host: str = ""
    """The requested host: a name of Google's, or this machine's address."""
    is_there: Callable[[], bool] = lambda: True
    """False once the client has disconnected."""


def find_host(host: str) -> str:
    """Return the host in lower case if it is one of Google's, else ""."""
    match = _GOOGLES.fullmatch(host)
    return match.group(1).lower() if match else ""


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse requests of web pages.

    Args:
        headers: HTTP headers, or metadata of a gRPC call with its :authority as "host"; names in lower case.

    Raises:
        ServiceError: PERMISSION_DENIED: there is an Origin header, or a foreign host.
    """
    if "origin" in headers:
        raise ServiceError("PERMISSION_DENIED", "a request with an Origin header comes from a web page: refused")
    host = headers.get("host", "")
    if not (find_host(host) or _OWN.fullmatch(host)):
        raise ServiceError("PERMISSION_DENIED", f"{host!r} is no host of this rehearsal")


class Access:
    """The credentials of one rehearsal.

    Args:
        folder: Folder of the key file; created with mode 0700, the file with mode 0600.
        project: Project of the service account.
        token_uri: Token endpoint in the key file; the audience of assertions is always TOKEN_URI.

    Attributes:
        token: The access token.
        key_file: For GOOGLE_APPLICATION_CREDENTIALS.
    """

    def __init__(self, folder: Path, *, project: str, token_uri: str = TOKEN_URI) -> None:
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

        make_private(folder)
        self.token = secrets.token_urlsafe(32)
        self.key_file = folder / "service-account.json"
        self._email = f"rehearsal@{project}.iam.gserviceaccount.com"
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._public_key = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        account = {
            "type": "service_account",
            "project_id": project,
            "private_key_id": secrets.token_hex(8),
            "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            "client_email": self._email,
            "client_id": "0",
            "token_uri": token_uri,
        }
        write_private(self.key_file, json.dumps(account).encode())

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse requests without a token of this rehearsal, and those of web pages.

        Raises:
            ServiceError: PERMISSION_DENIED or UNAUTHENTICATED.
        """
        check_origin(headers)
        kind, _, credential = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            is_token = secrets.compare_digest(credential.encode(), self.token.encode())
            if is_token or self._is_signed(credential):
                return
        problem = "has another token than" if credential else "is missing the authentication credential of"
        text = f"Request {problem} this rehearsal: the access token that GOOGLE_APPLICATION_CREDENTIALS leads to."
        raise ServiceError("UNAUTHENTICATED", text)

    def exchange(self, form: bytes) -> tuple[int, dict[str, object]]:
        """Answer a token request with HTTP status and JSON: the token, if our key signed the assertion."""
        fields = parse_qs(form.decode("latin-1"))
        grant, assertion = (fields.get(name, [""])[0] for name in ("grant_type", "assertion"))
        if grant == _JWT_GRANT and self._is_signed(assertion, audience=TOKEN_URI):
            return 200, {"access_token": self.token, "expires_in": _LIFETIME_S, "token_type": "Bearer"}
        text = "the assertion is not signed by the service account of this rehearsal"
        return 400, {"error": "invalid_grant", "error_description": text}

    def _is_signed(self, text: str, audience: str | None = None) -> bool:
        from google.auth import exceptions, jwt

        try:
            claims = jwt.decode(text, certs=self._public_key, audience=audience, clock_skew_in_seconds=_CLOCK_SKEW_S)  # type: ignore[no-untyped-call]
        except (exceptions.GoogleAuthError, ValueError, TypeError, RecursionError):
            return False
        return bool(claims.get("iss") == self._email)


def make_private(folder: Path) -> None:
    """Create a folder with mode 0700."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(content)

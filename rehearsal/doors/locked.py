"""The lock before a site: the token endpoint, and the check of who asks before anything else is answered."""

from __future__ import annotations

from collections.abc import Callable

from rehearsal.doors.access import TOKEN_URI, Access, check_origin
from rehearsal.doors.errors import ServiceError
from rehearsal.doors.http_messages import Request, Send, Site, json_response, refusal

# An assertion of google-auth has about 1 KiB; whoever asks for a token has none yet.
_MAX_FORM_BYTES = 64 << 10
_TOKEN_HOST, _TOKEN_PATH = TOKEN_URI.removeprefix("https://").split("/")


class Locked:
    """A site that answers those alone who bring the rehearsal's token.

    Args:
        site: What is behind it.
        access: Who may call.
        log: Told of token requests and refusals: the request and "OK" or the code's name.
        is_open: Ask nobody for a token; web pages are refused all the same.
    """

    def __init__(
        self, site: Site, access: Access, log: Callable[[Request, str], None], *, is_open: bool = False
    ) -> None:
        self._site, self._access, self._log, self._is_open = site, access, log, is_open

    def serve(self, request: Request, send: Send) -> None:
        """Answer a token request or a refusal here, everything else by the site."""
        is_token_request = (
            request.method == "POST" and request.path == f"/{_TOKEN_PATH}" and request.host in ("", _TOKEN_HOST)
        )
        try:
            if is_token_request or self._is_open:
                check_origin(request.headers)
                length = request.headers.get("content-length", "0")
                is_chunked = "transfer-encoding" in request.headers
                if is_token_request and (is_chunked or int(length) > _MAX_FORM_BYTES):
                    raise ServiceError("INVALID_ARGUMENT", f"A token request has at most {_MAX_FORM_BYTES} bytes.")
            else:
                self._access.check(request.headers)
        except ServiceError as error:
            self._log(request, error.code)
            send(refusal(error))
            return
        if is_token_request:
            status, value = self._access.exchange(request.body.read())
            self._log(request, "OK" if status == 200 else "INVALID_ARGUMENT")
            send(json_response(value, status))
        else:
            self._site.serve(request, send)

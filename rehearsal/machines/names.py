"""Name server of a machine: answers that lead Google's names to the doors, names of machines to them, all else nowhere.

On Compute Engine 169.254.169.254 is the name server too: https://docs.cloud.google.com/compute/docs/internal-dns.
Messages: RFC 1035.
"""

from __future__ import annotations

import ipaddress
import re
import struct

GOOGLES = re.compile(r"([a-z0-9-]+\.)+(googleapis\.com|pkg\.dev)")
_A, _AAAA, _IN = 1, 28, 1
_NO_ERROR, _NO_SUCH_NAME = 0, 3
_TTL_S = 5


def read_question(message: bytes) -> tuple[str, int]:
    """Return the name, in small letters, and the type of a query's question.

    Raises:
        ValueError: It is no query with one question.
    """
    try:
        _, flags, questions, *_ = struct.unpack_from("!6H", message)
        labels, place = [], 12
        while size := message[place]:
            if size > 63:
                raise ValueError("a compressed name")
            labels.append(message[place + 1 : place + 1 + size].decode("ascii"))
            place += 1 + size
        kind, _ = struct.unpack_from("!2H", message, place + 1)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if flags & 0x8000 or questions != 1:
        raise ValueError("no query with one question")
    return ".".join(labels).lower(), int(kind)


def answer_question(message: bytes, address: str | None) -> bytes:
    """Return the answer to a query: an address for type A, none for other types; None: there is no such name."""
    name, kind = read_question(message)
    number, flags = struct.unpack_from("!2H", message)
    found = address is not None and kind == _A
    # A response, authoritative, recursion as asked for and available.
    flags = 0x8480 | (flags & 0x0100) | (_NO_ERROR if address is not None else _NO_SUCH_NAME)
    question = message[12 : 12 + len(name.encode()) + 2 + 4] if name else message[12:17]
    record = b""
    if found and address is not None:
        # 0xC00C: the name is the question's.
        record = struct.pack("!HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + ipaddress.IPv4Address(address).packed
    return struct.pack("!6H", number, flags, 1, int(found), 0, 0) + question + record


def is_lookup(kind: int) -> bool:
    """Whether a question is for a host's address."""
    return kind in (_A, _AAAA)

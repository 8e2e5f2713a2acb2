"""What stands between a rehearsed client and the network: nothing passes but what the local cloud answers.

    proxy         CONNECT for Google's hosts leads to the local cloud, everything else to 403, logged
    relay         the event loop it runs on, and one port that speaks TLS: h2 for gRPC, HTTP/1.1 for REST, by ALPN
    certificate   who they claim to be
    python        a sitecustomize that refuses connections of Python processes past the proxy

The proxy holds for clients that honour https_proxy and http_proxy: all of Google's, requests, curl, gRPC. The
sitecustomize holds for Python's own sockets. A C library that opens a socket by itself is not stopped.
"""

from pathlib import Path

from rehearsal.guard.certificate import Certificate, write_certificate
from rehearsal.guard.proxy import ProxyRequest
from rehearsal.guard.relay import Guard

PYTHON_GUARD = Path(__file__).parent / "python"
"""First in a child's PYTHONPATH, it refuses the child's connections to other machines."""
REFUSED_VARIABLE = "SHARDLINE_REHEARSAL_REFUSED"
"""Names the file of the hosts that were refused."""

__all__ = ["PYTHON_GUARD", "REFUSED_VARIABLE", "Certificate", "Guard", "ProxyRequest", "write_certificate"]

"""What stands between a rehearsed client and the network: nothing passes but what the local cloud answers.

    proxy         CONNECT for Google's hosts leads to the local cloud, for all others to 403, logged
    tls           one port that speaks TLS, h2 for gRPC and HTTP/1.1 for REST
    relay         the event loop that both run on
    certificate   who they claim to be

It holds for clients that honour https_proxy: all of Google's, requests and curl do. A program that opens a socket by
itself is not stopped; the e2e tests look for files and hosts instead.
"""

from rehearsal.guard.certificate import Certificate, write_certificate
from rehearsal.guard.proxy import Passage
from rehearsal.guard.relay import Guard

__all__ = ["Certificate", "Guard", "Passage", "write_certificate"]

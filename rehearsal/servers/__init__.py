"""Servers of the local cloud, and authentication.

vertex          all servers over one state, table of services, environment variables for clients
grpc, rest      gRPC and REST servers of the same methods; storage.googleapis.com
calls           dispatch of method calls: host, region, log
http            requests and responses of HTTP/1.1, authentication
http_server     sockets and threads
tls             certificate, CONNECT proxy, relay by ALPN
access          access token and checks of the origin
access_log      log of requests and calls
messages        protobuf messages as bytes and as JSON
"""

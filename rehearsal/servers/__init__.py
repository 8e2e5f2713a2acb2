"""The servers of the local cloud, and who may call them.

vertex          gRPC, REST and TLS over one state, the table of services, the variables that make clients use them
grpc, rest      a call by gRPC, or by REST as the JSON of the same messages; storage.googleapis.com
calls           one call of one method: host, region, log
http            requests and responses of HTTP/1.1, the check of the caller
http_server     sockets and threads
tls             certificate, CONNECT proxy, relay by ALPN
access          token and origin
access_log      entries of requests and calls
messages        protobuf messages as bytes and as JSON
"""

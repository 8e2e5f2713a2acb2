"""The servers of the local cloud, and who may call them: one for REST and one for gRPC, over one table of services.

server                                           both over one state, and the variables that lead clients to them
services                                         the table of services, which both read
grpc_door                                        gRPC: token, message, call
http_door, routes                                REST: which method a URL names; storage.googleapis.com
http_server, connection, http_messages, request_body     sockets, requests and answers of HTTP/1.1
messages, calls                                  requests as protobuf messages; one call of one method, logged
access, locked, hosts                            token and origin; which host has which service and region
caller, access_log                               one call's origin; the log of all
errors                                           errors in the forms of gRPC, REST and Cloud Storage
"""

"""How a call reaches a service, and who may make it: one server with a door for REST and one for gRPC.

server            all doors over one store, and the variables that lead clients to them
services          the table of services: what both doors read
http_door, grpc_door, routes, messages, calls     from bytes to a call of a function, and back
caller, access    who asks; who asked for what
hosts             what a call by a name of Google's must have
endpoints         HTTP that is no gRPC service: tokens, regions of an account
errors            how services say no
"""

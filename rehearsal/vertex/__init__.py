"""Vertex AI, and what else of Google's a line asks, on this machine: real clients, our answers, nothing leaves.

    with VertexServer(Store(), pipelines=..., custom_jobs=..., clock=Clock(), projects={"p": "1"}, folder=...) as cloud:
        subprocess.run(command, env=os.environ | cloud.environment)      # unmodified clients, by variables only
        aiplatform.init(api_endpoint=cloud.endpoint, api_transport="rest", ...)          # or REST by its address

What executes pipelines and custom jobs is given to it (`Runs`); it answers, checks, keeps, fires. One concept a file:

    server            all doors over one store, and the variables that lead clients to them
    services          the table of services: what both doors read
    http_door, grpc_door, routes, messages, calls     from bytes to a call of a function, and back
    caller            who asks
    buckets           the bucket server, as storage.googleapis.com and to be asked whether a bucket is there
    endpoints         HTTP that is no gRPC service: tokens, regions of an account
    store, world      the resources; what all services share
    errors, listing   how services say no; filters, order and pages
    pipeline_jobs, custom_jobs, dataflow_jobs, models, metadata, operations, projects        a service each
    schedules, firing, cron     what is scheduled; the thread that starts it; when a cron line fires
    logs, log_filter  what containers printed, and Cloud Logging's queries of it
    quotas            limits, who holds how much, and Cloud Quotas' view of them
    registry          a KFP repository of Artifact Registry
    rules, pipeline_rules, resource_rules, machines     what is refused, with the field that is wrong
    access            who asked for what

Request types and REST routes are the client libraries' own, so a client and this server cannot differ in them.

What it does not prove: permissions (every caller may do everything in a project that is there; one that is not is
PERMISSION_DENIED, as the real service says), that an account, network, key, TensorBoard or image that a request names
exists, that a machine is to be had (whoever executes plays stockouts), regions and their machine types, the real
service's wording, latency and eventual consistency (an upload has ended and a log entry is there at once), API quotas
of requests, service agents, VPC Service Controls, billing. Rules are written from documentation: a request that passes
here may be refused there. Names of resources carry the project's number, as the real service's do.
"""

"""Vertex AI, and what else of Google's a line asks, on this machine: real clients, our answers, nothing leaves.

    with VertexServer(Store(), pipelines=..., custom_jobs=..., clock=Clock(), projects={"p": "1"}, folder=...) as cloud:
        subprocess.run(command, env=os.environ | cloud.environment)      # unmodified clients, by variables only
        aiplatform.init(api_endpoint=cloud.endpoint, api_transport="rest", ...)          # or REST by its address

What executes pipelines and custom jobs is given to it (`Runs`); it answers, checks, keeps, fires. The doors are in
rehearsal.doors, the resources in rehearsal.resources. A service each, with what it refuses:

    pipeline_jobs, pipeline_rules     custom_jobs, rules, machines     dataflow_jobs     models
    metadata                          experiments and their runs
    schedules, schedule_runner, cron  what is scheduled; the thread that starts it; the times of a cron line
    logs              what containers printed

Request types and REST routes are the client libraries' own, so a client and this server cannot differ in them.

What it does not prove: permissions (every caller may do everything in a project that is there; one that is not is
PERMISSION_DENIED, as the real service says), that an account, network, key, TensorBoard or image that a request names
exists, that a machine is to be had (whoever executes plays stockouts), regions and their machine types, the real
service's wording, latency and eventual consistency (an upload has ended and a log entry is there at once), API quotas
of requests, service agents, VPC Service Controls, billing. Rules are written from documentation: a request that passes
here may be refused there. Names of resources carry the project's number, as the real service's do.
"""

"""The command line, the graphs, and what runs them. Heavy imports live inside command bodies only.

Every module, by what it is about:

    cli          with commands/ (a module a topic), reported, place; config_reference documents the configuration's
                 keys, initial_config writes a first one
    jobs         jobs and the interface of the places that run them
    backends/    the places: local, vertex
    graph/       wiring joins the stages; vertex is the pipeline of Vertex AI; compile
    images/      record says which image each stage runs in; build, cloud_build
    local/       this machine: run and its orchestrator, stages one by one, watch, progress, profiled, drill,
                 shard_warnings
    plan/        plan, which plan, compile, submit, schedule and rehearse make; inputs, estimate, measured, spend,
                 online; compare; table, compare_table
    rules/       what a plan refuses: preflight, names, cloud_names, submission, problem; warn; checks asks the
                 stages, and check_cache keeps what they answer
    submission/  local_data, file_hashes, preparations, submit, request, template, same_work; ladder waits for it;
                 schedule and drift
    runs/        follow, status, logs, cancel; name, tasks, jobs find what belongs to one; evidence and diagnosis say
                 why one failed, by the table known_failures
    rehearse/    rehearse, undisturbed, rehearsed, disturbances; serve, config, manifest_files, report, steps, commands
    project/     what a Google Cloud project needs: declaration, roles, permissions, terraform, gcloud; client, kinds,
                 policies and made are of inspect, apply, destroy
    google       the clients and the services' failures in our terms
    and          goodput, predict; repeat finds the configuration of a run; clean deletes what no run needs;
                 serve prints what starts a server
"""

"""The command line, the graphs, and what runs them. Heavy imports live inside command bodies only.

Every module, by what it is about:

    commands     cli, commands/ (a module a topic), reported, place; config_reference documents the configuration's keys
    graphs       training wires the stages; vertex_line and vertex_stages are its bodies on Vertex AI, with images
                 and build; compile makes the file
    jobs         jobs and the interface of the places that run them; backends/ has a module a place
    this machine local, orchestrator, stages, watch, progress, profiled, drill, goodput, predict; shard_warnings;
                 clean deletes what no run needs; serve prints what starts a server
    planning     plan, which plan, compile, submit, schedule and rehearse make; plan_inputs; its rules preflight,
                 name_rules, cloud_names, submission_rules, spend, warn, problem; checks asks the stages, and
                 check_cache keeps what they answer; estimate, measured, online; compare; plan_table, compare_table
    submission   submit, request, template, same_work; follow and ladder wait for it; schedule and drift
    runs         status, logs, cancel; run_name, run_tasks, run_jobs find what belongs to one; evidence and diagnosis
                 say why one failed, by the table known_failures; google has the clients and the services' failures in
                 our terms
    rehearsal    rehearse, undisturbed, rehearsed, disturbances; rehearsal_serve; rehearsal_config, rehearsal_options,
                 rehearsal_report, rehearsal_steps
"""

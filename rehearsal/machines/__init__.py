"""Machines, played by this one: what runs on each, its environment, its folders, its end.

network           machines beside each other on the loopback: start, notice, end
metadata          a machine's metadata server: project, service account, notice of a preemption
machine           the replicas of a custom job, and what Vertex tells them by their environment
processes         a command with everything that it starts, heard and ended as one
mount             /gcs without root
"""

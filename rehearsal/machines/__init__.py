"""Machines of the local cloud, simulated by processes of this one.

machine       the replicas of a custom job, and the environment of their containers
metadata      a machine's metadata server: project, service account, notice of a preemption
processes     a container: a command with everything that it starts, read and ended as one
"""

"""Machines of the local cloud, simulated by processes.

machine       replicas of a custom job, and the environment of their containers
metadata      metadata server of a machine: project, service account, preemption notice
processes     process tree of a container: output, signals, end
"""

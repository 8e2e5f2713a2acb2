"""Machines, played by this one: a network of them, what runs on each, its environment, its folders, its end.

network           machines that reach each other and the doors, and nothing else: start, notice, bandwidth, end
namespaces        network namespaces from outside; inside.py is the program that makes and enters them
metadata          the server at 169.254.169.254: project, service account, notice of a preemption
names             the name server there
machine           the replicas of a custom job, and what Vertex tells them by their environment
processes         a command with everything that it starts, heard and ended as one
mount             /gcs without root
"""

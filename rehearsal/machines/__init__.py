"""Machines, played by this one: what runs on each, its environment, its folders, its end.

machine           one machine of a custom job, and what Vertex tells it by its environment
processes         a command with everything that it starts, heard and ended as one
mount             /gcs without root
"""

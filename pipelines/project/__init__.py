"""`shardline project`: what a Google Cloud project needs before the first submission.

declaration       APIs, resources and grants that a configuration needs, as data
roles             roles of each account and person, each with its reason
permissions       what of a line's requests the declared roles permit
terraform, gcloud the declaration as files for other tools
client            Google's APIs, and waits for what takes time to be known
kinds, policies   how resources and grants are found, made and taken away
made              the record of what is ours
inspect, apply, destroy   the commands
"""

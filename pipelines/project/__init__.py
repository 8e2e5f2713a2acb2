"""`shardline project`: what a Google Cloud project needs before the first submission.

declaration       APIs, resources and grants that a configuration needs, as data
roles             roles of each account and person, each with its reason
terraform, gcloud the declaration as files for other tools
"""

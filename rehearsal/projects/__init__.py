"""The APIs by which a project is set up: enabled APIs, IAM policies, accounts, repositories, networks, budgets.

routes    methods of an API from Google's discovery documents, and the method that a request names
state     what a project has: enabled APIs, resources, policies, operations
policies  IAM policies: etags, conflicts, members that are not known yet
permissions   the permission of each method, and who has it
methods   what each method does
builds    Cloud Build: checked and answered with digests, never run
apis      the endpoint before all others: an API that is not enabled refuses
"""

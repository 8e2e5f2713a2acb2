"""`shardline rehearse`: a submission against a Google Cloud on this machine, and what it is compared with."""

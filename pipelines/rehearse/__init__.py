"""`shardline rehearse`: a submission to a simulated Google Cloud on this machine, compared with an undisturbed run."""

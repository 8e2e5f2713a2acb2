"""The KFP components: one file each; they say how a stage is launched and hold no logic."""

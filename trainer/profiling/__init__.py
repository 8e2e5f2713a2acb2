"""The profile stage: finds the fastest slot size and number of loader workers."""

"""What whoever makes a Triton repository and whoever serves it must agree on."""

# Name of the model in the repository, and so its folder.
MODEL_NAME = "classifier"

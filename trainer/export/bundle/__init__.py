"""What an export ships beside the model: the task's files, the Triton repository, the model card."""

"""The Controller worker: the process that runs workflows and activities. Run two or more in production."""

"""What a FaultManager knows of its instance and decides: evidence in, one decision out, what a strategy does to the state."""

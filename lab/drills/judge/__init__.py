"""What must hold afterwards: checks over what was recorded, each with the number of observations that it judged."""

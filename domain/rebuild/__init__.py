"""What is done where a group cannot shrink: new engines for all or for the remaining ranks, and the wait for self-healing."""

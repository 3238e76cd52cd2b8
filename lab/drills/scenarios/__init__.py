"""What happens to an installation, one module a kind: scripts that inject and wait, and what they expect."""

"""What happens to an installation, one module a kind: scripts that inject and wait, how that must end, and what must hold."""

"""The `autotomy` command. Thin: it reads arguments, shows what others do, and imports that only when it is asked to."""

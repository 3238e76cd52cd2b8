"""The client side of an engine: its fault-tolerance API in both dialects, and its process tree under supervision."""

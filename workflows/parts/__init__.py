"""What workflows are made of.

Loaded once a process and shared by the sandboxes of all workflows, so nothing here keeps state in a module.
"""

"""The Controller API: HTTP for NodeManagers, Coordinators, monitors and operators; behind it, Temporal."""

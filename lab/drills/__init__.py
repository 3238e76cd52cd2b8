"""Acceptance scenarios as code: inject, observe, judge, write the evidence bundle (`autotomy drill --list`)."""

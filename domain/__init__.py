"""Pure rules and models: standard library and pydantic only; no I/O, no clock, no Temporal."""

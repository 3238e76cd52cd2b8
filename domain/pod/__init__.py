"""A Pod and who may command it: `fence.py` first, then what it keeps, `records.py`."""

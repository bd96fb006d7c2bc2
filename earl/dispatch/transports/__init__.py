"""How messages get from process to process: `base.py` has the protocol."""

"""The checks of an audit, one family per file; `earl.audit.registry` lists them."""

"""The checks of an audit, one family per file; `earl.audit` lists them."""

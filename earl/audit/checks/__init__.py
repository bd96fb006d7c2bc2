"""The checks of an audit, one family a file; `earl.audit.registry` names them."""

"""What must not be said: passwords in addresses, and whatever the environment holds under a secret's name."""

import os
import re

_USER = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 6
"""Shorter values are no secrets, and would be found in every other word."""


def without_secrets(text: str) -> str:
    """Text with the secrets blotted out.

    Example:
        >>> without_secrets("no answer from https://me:pass@host/")
        'no answer from https://***@host/'
    """
    text = _USER.sub("***@", text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET.search(name):
            text = text.replace(value, "***")
    return text

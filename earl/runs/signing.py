"""Signatures of runs and checkpoints: ed25519 over the digests of their contents.

    earl key ─▶ signing_key ─▶ earl train signs        trusted_keys ─▶ load, audit, eval and report check

A checksum shows damage; a signature shows who vouches for the contents. Without a key runs are unsigned.
"""

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.runs.folder import RunFolder
from earl.runs.storage import MOST_BYTES, OddFile, opened, read_below, storage, write_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE = "signature.json"  # in a run's folder; a checkpoint's signature is in its state.json
DEMAND = "EARL_REQUIRE_SIGNED"  # environment variable; 1: refuse what no trusted key has signed
_DOMAIN = b"earl signature 1\n"
_KEY = re.compile("[0-9a-f]{64}")
_INSTALL = "pip install 'earl[sign]'"

Digests = Mapping[str, str]  # signed entries: a name, such as a file's, and its SHA-256 or value


@dataclass(frozen=True, slots=True)
class Signer:
    said: str  # in words, such as "signed by anna"
    trusted: bool  # whether the user trusts the key


UNSIGNED = Signer("unsigned", False)


class SignatureError(EarlError):
    """An invalid signature, or a required one that is missing."""


def key_path(name: str = "signing_key") -> Path:
    """The user's private key, or another file beside it. Runs are signed if the key exists."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "earl" / name


def trusted_path() -> Path:
    """Lines `ed25519 PUBLIC-KEY NAME` of the keys that the user trusts."""
    return key_path("trusted_keys")


def new_key(name: str) -> str:
    """Make a key pair, trust it under `name`, return its public line. Raises EarlError when a key exists already."""
    with _library("making a key"):
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    key, path = Ed25519PrivateKey.generate(), key_path()
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    line = f"ed25519 {_public(key)} {name}"
    with storage(path, then="try again"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError as error:
            raise EarlError(f"{path} exists already, its public line is in {trusted_path()}; move it away") from error
        with trusted_path().open("a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")
    return line


def _public(key: "Ed25519PrivateKey") -> str:
    return key.public_key().public_bytes_raw().hex()


def _own_key() -> "Ed25519PrivateKey | None":
    """The user's private key; None when there is none. Raises EarlError when others can read it, or it is invalid."""
    path = key_path()
    secret = _user_file(path, private=True)
    if secret is None:
        return None
    with _library(f"{path} is there, but signing with it"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    try:
        key = load_pem_private_key(secret, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None  # the cause is not shown: it may quote the file
    if not isinstance(key, Ed25519PrivateKey):
        raise EarlError(f"{path} is no ed25519 key in PEM without a password: move it away and run `earl key`")
    return key


@contextmanager
def _library(what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise EarlError(f"{what} needs the library cryptography, which is not installed: {_INSTALL}") from error


def _trusted_keys() -> dict[str, str]:
    """Names of the trusted keys, by public key. Raises EarlError for an invalid line."""
    path, names = trusted_path(), {}
    text = (_user_file(path) or b"").decode(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(maxsplit=2)
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[0] != "ed25519" or not _KEY.fullmatch(words[1]):
            raise EarlError(f"{path}, line {number}, is not 'ed25519 PUBLIC-KEY NAME': mend it, or remove the line")
        names[words[1]] = words[2]
    return names


def signature(found: Callable[[], Digests]) -> dict[str, Any] | None:
    """Sign the digests that `found` computes, as JSON for `checked`; None when the user has no key."""
    key = _own_key()
    if key is None:
        return None
    digests = dict(found())
    proof = key.sign(_message(digests)).hex()
    return {"signed": digests, "key": _public(key), "proof": proof}


def _message(digests: Digests) -> bytes:
    return _DOMAIN + json.dumps(digests, sort_keys=True).encode()


def checked(folder: Path, signature: object, found: Callable[[], Digests]) -> Signer:
    """The signer of the contents of `folder`, whose present digests `found` computes; `signature` may be any JSON
    value. Raises SignatureError if it is invalid, or not of a trusted key although EARL_REQUIRE_SIGNED is set."""
    signer = UNSIGNED if signature is None else _verified(folder, signature, found)
    if not signer.trusted and os.environ.get(DEMAND, "") not in ("", "0"):
        cure = f"add its owner's key to {trusted_path()}, or unset it"
        raise SignatureError(f"{folder} is {signer.said}, and {DEMAND} is set: {cure}")
    return signer


def _verified(folder: Path, signature: object, found: Callable[[], Digests]) -> Signer:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return Signer(f"signed, but not checked (that needs {_INSTALL})", False)
    if not _is_signature(signature):
        raise _bad(folder, "it cannot be read")
    signed, key, proof = signature["signed"], signature["key"], signature["proof"]
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(proof), _message(signed))
    except (InvalidSignature, ValueError) as error:
        raise _bad(folder, "it was not made with the key that it names") from error
    now = found()
    if changed := sorted(name for name in {*signed, *now} if signed.get(name) != now.get(name)):
        raise _bad(folder, _difference(changed[0], signed, now))
    name = _trusted_keys().get(key)
    return Signer(f"signed by {name}", True) if name else Signer(f"signed by an unknown key {key[:12]}…", False)


def _is_signature(value: object) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(value, dict) or set(value) != {"signed", "key", "proof"} or not isinstance(value["signed"], dict):
        return False
    texts = [value["key"], value["proof"], *value["signed"].values()]
    return all(isinstance(text, str) for text in texts) and bool(_KEY.fullmatch(value["key"]))


def _difference(name: str, signed: Digests, now: Digests) -> str:
    if name in signed and name in now:
        change = f"was {signed[name]!r}, is {now[name]!r}" if name in ("run", "step") else "has changed since"
        return f"{name} {change}"
    return f"{name} has gone since" if name in signed else f"{name} was not signed with it"


def _bad(folder: Path, fault: str) -> SignatureError:
    cure = "do not trust this copy: get it again from its owner, or undo the change"
    return SignatureError(f"BAD signature of {folder}: {fault}; {cure}")


def _user_file(path: Path, private: bool = False) -> bytes | None:
    """A file with keys of the user, never a link; None when it is missing."""
    with storage(path, then="try again"):
        try:
            with opened(path.parent, path) as file:
                about = os.fstat(file.fileno())
                if private and (about.st_mode & 0o077 or about.st_uid != os.geteuid()):
                    raise EarlError(f"{path} is a private key that others can read: chmod 600 it, or make a new one")
                return file.read(MOST_BYTES)
        except FileNotFoundError:
            return None
        except OddFile as error:
            raise EarlError(f"{path} cannot be opened, it is not a regular file: put a plain file there") from error


@contextmanager
def signed_run(folder: RunFolder) -> Iterator[None]:
    """Sign a run as a whole after the block; until then it is unsigned. The caller holds the run's lock."""
    _own_key()  # an unusable key is reported now, not after the training
    with storage(folder.path):
        (folder.path / FILE).unlink(missing_ok=True)
    yield
    if _own_key() is None:
        return
    with storage(folder.database), closing(sqlite3.connect(folder.database, timeout=10)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that no later connection changes the file
    if document := signature(lambda: _digests_of(folder)):
        write_text(folder.path / FILE, json.dumps(document, indent=1))


def signer(folder: RunFolder) -> Signer:
    """The signer of a run as a whole, when it last ended or stopped. Raises as `checked`."""
    signature = None
    try:
        with storage(folder.path), suppress(FileNotFoundError):
            signature = parse_json_object(read_below(folder.path, folder.path / FILE))
    except (EarlError, ValueError) as error:
        raise _bad(folder.path, f"{FILE} cannot be read ({error})") from error
    return checked(folder.path, signature, lambda: _digests_of(folder))


def _digests_of(folder: RunFolder) -> Digests:
    """Digests of recipe, database, episodes, and each checkpoint's state.json, which holds those of its other files."""
    log = folder.database.with_name(f"{folder.database.name}-wal")
    kept = [*folder.trajectories.glob("step-*.parquet"), *folder.checkpoints.glob("step-*/state.json")]
    paths = [folder.config, folder.database, *kept, *([log] if log.exists() and log.stat().st_size else [])]
    return {"run": folder.path.resolve().name} | {str(path.relative_to(folder.path)): _sha256(path) for path in paths}


def _sha256(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        raise SignatureError(f"{path} is not a regular file, so it cannot be signed or checked: move it away")
    with storage(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

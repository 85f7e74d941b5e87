"""A bundle in the Redis that the state is in (SPEC B-3): pushed once, taken by every instance within a second. How it
is stored is `state.shelf`'s; here it becomes a source like the others, and a checked file becomes something to push."""

from __future__ import annotations

from hashlib import sha256

from breakloop.errors import BundleError, Problem, StateError, UnreadableError
from breakloop.policy.fetched import Document, Fetched, Stamp
from breakloop.policy.load import LoadedBundle
from breakloop.policy.pace import Pace
from breakloop.state.shelf import BUNDLE_KEY, EmptyShelfError, Shelf, Shelved


class RedisSource:
    """What lies on the shelf."""

    __slots__ = ("_pace", "_shelf", "name")

    whole = True  # a push is one step

    def __init__(self, shelf: Shelf, pace: Pace) -> None:
        self._shelf = shelf
        self._pace = pace
        self.name = f"{shelf.name}#{BUNDLE_KEY}"

    @property
    def key(self) -> str:
        """The address of the Redis."""
        return self.name

    def wait_s(self, failures: int) -> float:
        """As its pace says."""
        return self._pace.wait_s(failures)

    def fetch(self, known: Stamp | None) -> Fetched | None:
        """Take what was pushed, unless that is known."""
        try:
            found = self._shelf.fetch(known)
        except EmptyShelfError:
            raise self._unreadable("nothing was pushed yet", "breakloop bundle push FILE") from None
        except StateError as error:
            raise self._unreadable(f"cannot be read: {error}", "") from None
        if found is None:
            return None
        if sha256(found.data).hexdigest() != found.digest:
            hint = "it was damaged or tampered with: push it again"
            raise BundleError([Problem(self.name, 1, 1, "", "is not what was pushed: its digest does not fit", hint)])
        return Fetched((Document(self.name, found.data),), found.stamp, found.signature, forced=found.forced)

    def _unreadable(self, message: str, hint: str) -> UnreadableError:
        return UnreadableError([Problem(self.name, 1, 1, "", message, hint)])


def to_push(fetched: Fetched, loaded: LoadedBundle, *, by: str, force: bool) -> Shelved:
    """Return a bundle that was loaded (so it is valid) as something to push. A directory is several files: not this."""
    (document,) = fetched.documents
    digest = sha256(document.data).hexdigest()
    signature = " ".join(fetched.signature.split())
    return Shelved(loaded.bundle.bundle_version, digest, document.data, signature, forced=force, pushed_by=by)

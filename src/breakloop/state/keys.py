"""Parts of state keys. A key is its parts joined by `:`; whatever a client can choose is escaped, so that
("a:b", "c") and ("a", "b:c") are different keys and nobody can name another's."""

from __future__ import annotations

from hashlib import blake2b

PART_MAX = 256


def part(value: str) -> str:
    """Return `value` with `%`, `:` and `|` written as percent escapes; of a long one, a digest.

    A store is bounded by its number of entries, so that a client must not choose how large they are.
    """
    if len(value) > PART_MAX:
        # No escaped value begins with `%~`.
        return "%~" + blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    if value.isalnum():
        return value
    return value.replace("%", "%25").replace(":", "%3A").replace("|", "%7C")


def plain(escaped: str) -> str:
    """Return what `part` was given, for people; of a long one, its digest as it stands."""
    return escaped.replace("%7C", "|").replace("%3A", ":").replace("%25", "%")


def joined(values: list[str]) -> str:
    """Return several values as one part, in their order."""
    if len(values) == 1:
        return part(values[0])
    return "|".join([part(value) for value in values])

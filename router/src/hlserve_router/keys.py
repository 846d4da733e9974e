"""Step 1: whose key it is, and whether it may be used now. Pure."""

from hashlib import sha256
from hmac import compare_digest

from hlserve_api.answers import Reason
from hlserve_api.routing import KeyEntry
from hlserve_router.errors import Refusal
from hlserve_router.head import INVALID_KEY
from hlserve_router.pools import Keyrings


def find_key(keyrings: Keyrings, key: bytes, wall_seconds: float) -> KeyEntry:
    """The credential of a key, if it may be used at this Unix time. Raises Refusal (401, 403)."""
    digest = sha256(key).hexdigest()
    entry = keyrings.find(digest)
    if entry is None or not compare_digest(entry.digest, digest):
        raise Refusal(Reason.INVALID_KEY, INVALID_KEY)
    if entry.suspended:
        raise Refusal(Reason.KEY_SUSPENDED, f"The client {entry.client!r} is suspended: ask the platform team.")
    if entry.not_before is not None and wall_seconds < entry.not_before.timestamp():
        raise Refusal(Reason.KEY_NOT_YET_VALID, f"This key is valid from {entry.not_before.isoformat()} on.")
    if entry.not_after is not None and wall_seconds >= entry.not_after.timestamp():
        raise Refusal(Reason.KEY_EXPIRED, f"This key expired at {entry.not_after.isoformat()}: use its successor.")
    return entry

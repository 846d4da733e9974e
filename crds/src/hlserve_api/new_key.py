"""Making client keys. Apart from the pure parts of the contract: a key comes from the system's own randomness."""

import base64
import secrets
from typing import Final

KEY_PREFIX: Final = "hls_"
KEY_BYTES: Final = 32


def new_key() -> str:
    """A key of 256 random bits: `hls_` and 43 base64url characters."""
    return KEY_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).rstrip(b"=").decode("ascii")

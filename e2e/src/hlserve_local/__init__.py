"""The one-machine stack."""

"""The hlserve command."""

"""What can go wrong with a cluster of ours, told so that the reader knows what to do."""


class ClusterError(RuntimeError):
    """The cluster cannot do what was asked. The message says why, and what to do."""

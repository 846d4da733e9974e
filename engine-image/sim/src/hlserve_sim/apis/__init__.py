"""The generation APIs: how each reads a body, words a whole answer, and words a stream."""

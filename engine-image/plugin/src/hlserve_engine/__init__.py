"""HlServe's scheduling policy for SGLang: what the human-less mode decides, apart from the engine it decides for.

Here belong pure decisions: the prefill token budget (`budget`), when prefill may join decode (`two_stage`), and which of the
engine's caps the mode lifts (`caps`). No module here imports sglang, torch or anything else of HlServe, does I/O or reads a
clock, so that each is tested without an engine. Values that change between two passes live in the caller's hands: every
decision takes the old state and returns the new one.
"""

"""The words that simulated replies are made of."""

_WORDS = """
the a of to and in is for on with that as by from at it this one two three each both all some most more less new old same pool queue
token cache prefix engine model batch chunk step slot limit load rate time wave line path node edge key value small large early late
fast slow first last next open full free busy clear plain exact steady warm cold short long runs waits holds sends reads writes finds
keeps moves takes gives starts ends fills drains grows falls stays turns asks then when while after before because so but or if not
only also again still never always often here there now soon answer question reason result file test change part whole number word
page list table place point side hand work day
"""
LEXICON: tuple[str, ...] = tuple(_WORDS.split())

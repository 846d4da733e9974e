"""The router's benchmark: our router beside other proxies and a bare control, on one core, interleaved, in one run.

`cases` says what is measured, `candidates` on whom; `running` does it and writes rows; `figures` and `goals` turn rows into medians,
ratios and verdicts, and `page` into the page. Only `processes`, `measuring`, `peers`, `programs` and `running` touch the machine.
"""

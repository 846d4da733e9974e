"""The `hlserve` command: a click group that finds the subcommands of the installed members.

Here belongs only the finding, describing and loading of commands. The commands themselves live in their members and are
announced by the entry-point group `hlserve.commands`; this member imports none of them until one is run.
"""

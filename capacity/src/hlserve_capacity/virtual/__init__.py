"""A cluster in virtual time: engines, a router model, open-loop chat and closed-loop agents, without HTTP or a clock."""

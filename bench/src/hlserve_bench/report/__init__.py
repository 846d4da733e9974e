"""From records to a report: `build` computes, `model` is the published schema, `terminal` and `html` show it, `checks` judges it.

`build`, `checks` and `statement` are pure. Every number that a view prints comes from the model, so `report.json` holds all of it.
"""

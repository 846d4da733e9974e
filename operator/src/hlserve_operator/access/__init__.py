"""Who may call and where requests go: classes and keys to the routers' documents and to statuses.

`observed` and `actions` are what goes into and comes out of `plan`, which is pure. The operator reconciles all of it under one key,
because the documents are one: a key's change and a class's change end in the same objects.
"""

"""What tests of the operator share: small clusters as values, and a model of what a cluster does."""

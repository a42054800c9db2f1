"""Names of the controls that an analyst would fit; see `analyst_controls`."""

BASE_RATE = "Base rate of all clients"
LINEAR = "Linear model per client"
BOOSTED = "Boosting per client"
POOLED_BOOSTING = "Boosting of pooled rows"
PARTIAL = "Partial pooling"

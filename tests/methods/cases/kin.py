"""Settings of Kin that make its groups and its choices matter within three rounds of a tiny federation."""

from fedkin.methods.kin import Kin

CASES = {
    "kin-groups": Kin(degrees="groups", alpha=0.9, least=0.0),
    "kin-many": Kin(alpha=0.9, least=0.0, regroup_every=1, weights="equal"),
}

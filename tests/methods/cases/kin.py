"""Settings of Kin that make its groups and its choices matter within three rounds of a tiny federation."""

from fedkin.methods import METHODS

CASES = {
    "kin-harm": METHODS["kin"](trials=2, held=0.3, fewest=3, margin=0.0),
    "kin-many": METHODS["kin"](alpha=0.9, least=0.0, every=1, weights="equal"),
}

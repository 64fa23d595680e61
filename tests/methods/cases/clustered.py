"""Settings of the clustered methods that make groups matter within three rounds of a tiny federation."""

from fedkin.methods import METHODS

CASES = {
    "pca-km-hc-two": METHODS["pca-km-hc"](clusters=2, centres=2, components=3),
    "pca-km-hc-own": METHODS["pca-km-hc"](clusters=3, basis="own", distance="minimum", linkage="ward"),
    "fedsem-three": METHODS["fedsem"](clusters=3, weights="equal"),
    "fedsem-head": METHODS["fedsem"](compare="head"),
    "ifca-anew": METHODS["ifca"](clusters=3, choose="anew", share="body"),
    "cfl-eager": METHODS["cfl"](eps1=2.0, eps2=0.0),
    "cfl-pairs": METHODS["cfl"](eps1=1e9, eps2=1e-9, scale="absolute", min_size=2, weights="equal"),
}

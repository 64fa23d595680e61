"""Settings of the clustered methods that make groups matter within three rounds of a tiny federation."""

from fedkin.methods.cfl import Cfl
from fedkin.methods.fedsem import FedSem
from fedkin.methods.ifca import Ifca
from fedkin.methods.pca_km_hc import PcaKmHc

CASES = {
    "pca-km-hc-two": PcaKmHc(clusters=2, centres=2, components=3),
    "fedsem-three": FedSem(clusters=3, weights="equal"),
    "fedsem-head": FedSem(compare="head"),
    "ifca-anew": Ifca(clusters=3, choose="anew", share="body"),
    "pca-km-hc-same": PcaKmHc(clusters="same:0.9", centres=2, components=3),
    "fedsem-same": FedSem(clusters="same:0.9"),
    "ifca-same": Ifca(clusters="same:0.9"),
    "cfl-same": Cfl(split="same:0.9", after=1),
    "cfl-eager": Cfl(eps1=2.0, eps2=0.0),
    "cfl-pairs": Cfl(eps1=1e9, eps2=1e-9, scale="absolute", min_size=2, weights="equal"),
}

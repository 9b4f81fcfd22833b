"""Shop: find a product in a catalogue, choose its options and buy it, as in WebShop (arXiv 2207.01206)."""

from reflectrl.envs.shop.env import Shop

__all__ = ["Shop"]

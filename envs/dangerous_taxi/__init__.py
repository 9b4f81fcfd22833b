"""DangerousTaxi: gymnasium's Taxi as text, where any mistake ends the episode (section 5 and appendix D.1)."""

from reflectrl.envs.dangerous_taxi.env import DangerousTaxi

__all__ = ["DangerousTaxi"]

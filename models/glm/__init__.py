"""GLM: the architectures `glm4` (GLM 4, dense) and `glm4moe` (GLM 4.5 to 4.7)."""

"""GLM: the architecture `glm4` (GLM 4, dense)."""

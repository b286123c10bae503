"""BART and Marian: encoders and decoders whose norms stand behind each part of a layer."""

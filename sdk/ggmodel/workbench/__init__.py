"""Tools for authors of architectures and for users who look into a model.

Files and memory: `show`, `check`, `estimate`. Speed and quality: `bench`, `profile`, `perplexity`.
Computation: `diagram`, `trace`, `diff`. New architectures: `scaffold`, `golden`. All return data;
`ggmodel.cli` prints it.
"""

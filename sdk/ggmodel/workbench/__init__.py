"""Tools for authors of architectures and for users who look into a model.

Files and memory: `show`, `check`, `estimate`; `certify`: is a file the model that it is said to be.
Speed and quality: `bench`, `profile`, `text_statistics`, `compare`; `mixture` chooses types.
Computation: `diagram`, `trace`, `diff`. New architectures: `scaffold`, `port`, `golden`. All return
data; `ggmodel.cli` prints it.
"""

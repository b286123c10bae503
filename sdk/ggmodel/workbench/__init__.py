"""For those who write architectures: looking into files and at how a model fits them.

`ggmodel.workbench.show` describes a file, `ggmodel.workbench.check` holds it against the
declaration of its architecture. Both give data; `ggmodel.cli` prints it.
"""

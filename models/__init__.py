"""The architectures that come with ggmodel: one file or folder each."""

"""The architectures that come with ggmodel: a folder for each, or for a family of them."""

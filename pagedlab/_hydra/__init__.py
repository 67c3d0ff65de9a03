"""Holds `hydra_plugins`, a folder that is put on the path: where Hydra looks for plugins."""
